"""Averages of the weights, and steps that are left out because they stand out."""

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact
from rungwise.training import step as training_step
from rungwise.training.config import GradientConfig, OutlierConfig
from rungwise.training.initial import build_model
from rungwise.training.step_metrics import Outliers
from tests.training_runs import (
    CPU,
    VOCAB,
    Killed,
    KilledAt,
    Notes,
    checkpoints_in,
    config,
    kill_and_resume,
    run,
    together,
    weights,
)

EMA = {"kind": "ema", "decay": 0.8}
LAST = {"kind": "last", "steps": 6}


def averaged(average: dict[str, Any] | None, **changes: Any) -> Any:
    """A run whose weights are all near zero, where averages in float32 are exact to 1e-6."""
    zeros = {"pretrain.output_bias": "zeros"}
    return config(**{"pretrain.average": average, **zeros, **changes})


def of_every_step(output: Path) -> list[dict[str, np.ndarray]]:
    """The weights after each step, of a run that kept all its checkpoints."""
    files = checkpoints_in(output / "checkpoints")._files
    saved = [files.tensors(each) for each in files.finished()]
    names = [name for name in saved[0].tensors if name.startswith("model/")]
    return [
        {name.removeprefix("model/"): one.read(name).double().numpy() for name in names}
        for one in saved
    ]


@pytest.mark.parametrize("average", [EMA, LAST])
def test_an_average_is_that_of_the_weights_of_each_step_and_training_takes_no_notice(
    instances: Artifact, tmp_path: Path, average: dict[str, Any]
) -> None:
    progress = run(
        averaged(average), instances, tmp_path / "a", checkpoint_every_steps=1, keep_checkpoints=30
    )
    plain = run(averaged(None), instances, tmp_path / "plain")
    assert [row["loss"] for row in progress.history] == [row["loss"] for row in plain.history]
    rows = of_every_step(tmp_path / "a")
    assert len(rows) == 20
    left, raw = weights(tmp_path / "a"), weights(tmp_path / "plain")
    draw = build_model(averaged(average), VOCAB).state_dict()
    for name, expected in rows[-1].items():
        assert np.array_equal(expected, raw[name].double().numpy())
        if average is LAST:
            expected = np.mean([row[name] for row in rows[-6:]], axis=0)
        else:
            expected = draw[name].double().numpy()
            for step, row in enumerate(rows, 1):
                share = min(0.8, (1 + step) / (10 + step))
                expected = share * expected + (1 - share) * row[name]
        assert np.abs(left[name].numpy() - expected).max() < 1e-6
    assert progress.validation[-1]["loss"] != plain.validation[-1]["loss"]


@pytest.mark.parametrize(("average", "killed_at"), [(EMA, 8), (LAST, 8), (LAST, 17)])
def test_a_resumed_run_has_the_same_average(
    instances: Artifact, tmp_path: Path, average: dict[str, Any], killed_at: int
) -> None:
    kill_and_resume(averaged(average), instances, tmp_path, killed_at=[killed_at])


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_workers_have_the_average_of_one_and_train_on_after_validation(
    instances: Artifact, tmp_path: Path, unused_port: int, parallel: str
) -> None:
    """A sharded model must not go on with averages that validation has put together."""
    settings = averaged(EMA, **{"pretrain.validation_every_steps": 3})
    alone = run(settings, instances, tmp_path / "alone")
    progress = together(2, settings, instances, tmp_path / "two", unused_port, parallel=parallel)
    assert progress is not None
    for one, other in ((alone.history, progress.history), (alone.validation, progress.validation)):
        assert [row["loss"] for row in one] == pytest.approx([r["loss"] for r in other], rel=1e-5)
    left, other = weights(tmp_path / "alone"), weights(tmp_path / "two")
    for name, tensor in left.items():
        assert torch.allclose(tensor, other[name], atol=1e-5), name


def test_the_rule_for_outliers_by_hand() -> None:
    """Against the median of statistics, over more steps than the window holds."""
    generator = np.random.default_rng(0)
    rows = [[2.0 + 0.1 * a, 1.0 + 0.1 * b] for a, b in generator.normal(size=(260, 2))]
    rows[30][0], rows[140][1], rows[150] = 3.1, 4.5, [2.0, math.nan]
    rule = Outliers(OutlierConfig(), [], CPU)
    found, before = [], []
    for number, (loss, norm) in enumerate(rows):
        if number == 200:  # resumed
            rule = Outliers(OutlierConfig(), before[-100:], CPU)
        if rule.stands_out(torch.tensor(loss), torch.tensor(norm)):
            found.append(number)
        if math.isfinite(norm):
            before.append([loss, norm])
        medians = [statistics.median(column) for column in zip(*before[-100:], strict=True)]
        kept = rule._before[rule._before.isfinite().all(1)]
        assert kept.quantile(0.5, dim=0).tolist() == pytest.approx(medians)
    assert found == [30, 140]


def test_an_outlier_changes_nothing_is_counted_and_survives_a_kill(
    instances: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = training_step.clip_gradients

    def run_with_large_gradients(output: Path, begin: int = 0, **keys: Any) -> Any:
        steps = iter(range(begin + 1, 10**6))

        def enlarge(model: torch.nn.Module, settings: Any) -> torch.Tensor:
            if next(steps) in (25, 33):
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad *= 1e4
            return clip(model, settings)

        monkeypatch.setattr(training_step, "clip_gradients", enlarge)
        return run(settings, instances, output, checkpoint_every_steps=1, **keys)

    changes: dict[str, Any] = {"pretrain.steps": 40, "pretrain.skip_outliers": {}}
    settings = config(**changes, **{"pretrain.optimizer.learning_rate": 1e-3})
    notes = Notes()
    whole = run_with_large_gradients(tmp_path / "whole", report=notes, keep_checkpoints=50)
    assert whole.outliers == [25, 33]
    assert whole.skipped == []
    assert [note for note in notes.notes if note.startswith("step 25 is left out")]
    assert whole.history[-1]["outlier_steps"] == 2
    rows = of_every_step(tmp_path / "whole")
    still = [
        step
        for step in range(2, 41)
        if all(np.array_equal(rows[step - 1][name], rows[step - 2][name]) for name in rows[0])
    ]
    assert still == [25, 33]
    with pytest.raises(Killed):
        run_with_large_gradients(tmp_path / "cut", report=KilledAt(30))
    resumed = run_with_large_gradients(tmp_path / "cut", begin=29)
    assert resumed.attempts[-1]["step"] == 29
    assert resumed == whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"average": LAST, "early_stop": {}}, "early_stop could end the run before them"),
        ({"average": {"kind": "last", "steps": 21}}, "average.steps is 21, more than steps 20"),
        ({"skip_outliers": {"loss_factor": None, "norm_factor": None}}, "are both null"),
        (
            {"optimizer": {"kind": "adamw", "schedule": {"warmup_steps": 12, "decay_steps": 9}}},
            "warmup_steps 12 and decay_steps 9, more than steps 20",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(GradientConfig, {"steps": 20, **changes})
