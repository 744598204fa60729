"""The benchmark of objectives: its arms are recipes, and what it derives from runs, by hand."""

import io
from typing import Any

import pytest
from rich.console import Console

from benchmarks import learning
from benchmarks.learning import ARMS, report, steps_to, values_of
from rungwise.pipeline.workflow import load_recipe
from rungwise.pretraining.config import check_rows


def run_of(held_out: list[list[float]], test: list[list[float]], **more: Any) -> dict[str, Any]:
    """A run with scores by rate and tuning."""
    facts = {"operations": 1e12, "seconds": 60.0, "steps": [100]}
    return {**facts, "scores": {"validation": held_out, "test": test}, **more}


@pytest.mark.parametrize("name", ARMS)
def test_each_arm_fits_the_quickstart(name: str) -> None:
    recipe, arm = load_recipe("quickstart"), ARMS[name]
    assert sum(step.share for step in arm.steps) == (0.5 if name == "masked_half" else 1)
    for step in arm.steps:
        optimizer = {f"optimizer.{key}": value for key, value in arm.optimizer.items()}
        changed = learning._of_step(recipe, step, optimizer)
        assert changed.instances is not None
        check_rows(learning.find_fit(changed), changed.instances.kind, changed.instances.length)


def test_the_rate_is_that_of_all_runs_and_a_pretraining_is_one_value() -> None:
    runs = [
        run_of([[0.1, 0.3], [0.5, 0.5]], [[0.9, 0.9], [0.2, 0.4]]),
        run_of([[0.9, 0.9], [0.6, 0.7]], [[0.8, 0.8], [0.6, 0.6]]),
    ]
    assert values_of(runs) == pytest.approx([0.3, 0.6])  # 0.575 over 0.55 on validation
    assert values_of(runs[1:]) == pytest.approx([0.8])


def test_steps_to_a_loss_lie_on_a_line_between_validations() -> None:
    rows = [{"step": 0, "loss": 8.0}, {"step": 10, "loss": 6.0}, {"step": 20, "loss": 5.0}]
    runs = [{"validation": rows}, {"validation": [*rows[:2], {"step": 20, "loss": 4.0}]}]
    assert steps_to(runs[:1], 7.0) == pytest.approx(5.0)
    assert steps_to(runs, 5.5) == pytest.approx((15.0 + 12.5) / 2)
    assert steps_to(runs, 4.5) is None


def test_the_table_has_paired_differences_and_the_steps_of_muon() -> None:
    def arm(scores: list[float], last: float) -> dict[str, Any]:
        curve = [{"step": 0, "loss": 8.0}, {"step": 100, "loss": last}]
        return {
            str(seed): run_of([[0.5], [0.4]], [[score], [0.0]], validation=curve)
            for seed, score in enumerate(scores)
        }

    results = {
        "operations": {
            "masked": arm([0.50, 0.52, 0.54], 4.0),
            "causal": arm([0.52, 0.55, 0.55], 5.0),
            "masked_half": arm([0.5], 6.2),
            "adamw_1e-3": arm([0.4], 6.0),
        }
    }
    text = io.StringIO()
    report(results, Console(file=text, width=120))
    assert "2.0 [-0.5, 4.5]" in text.getvalue()
    for line in (
        "loss 6.000 of adamw_1e-3 after 100 steps: Muon 50 steps, 0.50 of them",
        "Muon ends at 6.200 if it is given 100 steps",
    ):
        assert line in text.getvalue()
