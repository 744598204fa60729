"""Benchmarks: what they derive from runs, by hand, and the one for a GPU, tried on a CPU."""

import json
from pathlib import Path

import pytest
from scipy import stats

from benchmarks import gpu, learning, perplexity
from benchmarks.learning import ARMS
from rungwise.pipeline.workflow import load_recipe
from rungwise.training.fit_config import check_rows


@pytest.mark.slow
def test_a_simulation_runs_every_part_to_its_end(tmp_path: Path) -> None:
    assert gpu.main(["--simulate", "--to", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*-gpu-simulated.json")
    parts = json.loads(file.read_text(encoding="utf-8"))["parts"]
    assert list(parts) == list(gpu.PARTS)
    assert set(parts["workers"]["over one"]) == {"ddp", "fsdp"}
    assert all(parts["resume"]["same bits"].values())
    throughput = parts["throughput"]
    assert set(throughput) == {case.name for case in gpu.CASES["simulated"]}
    assert all("tokens_per_second" in each for each in throughput.values())
    page = file.with_suffix(".md").read_text(encoding="utf-8")
    assert gpu.ONLY_A_GPU in page
    assert all(f"## {name.capitalize()}" in page for name in gpu.PARTS)


@pytest.mark.parametrize("name", ARMS)
def test_each_arm_fits_the_quickstart(name: str) -> None:
    recipe, arm = load_recipe("quickstart"), ARMS[name]
    assert sum(step.share for step in arm.steps) == (0.5 if name == "masked_half" else 1)
    for step in arm.steps:
        optimizer = {f"optimizer.{key}": value for key, value in arm.optimizer.items()}
        changed = learning._of_step(recipe, step, optimizer)
        assert changed.instances is not None
        check_rows(learning.find_fit(changed), changed.instances.kind, changed.instances.length)


@pytest.mark.parametrize(
    ("null", "count"), [("signs", 10), ("centred", 30), ("heavy", 100), ("drawn", 548)]
)
def test_equally_good_models_are_seldom_called_different(null: str, count: int) -> None:
    trials, documents = 500, perplexity.read_documents()
    draw = perplexity.draw_heavy if null == "heavy" else getattr(documents, null)
    shares = perplexity.count_calls(draw, count, trials)
    for share, most in zip(shares["in use"], (0.06, 0.01), strict=True):
        calls = round(share * trials)
        assert stats.binomtest(calls, trials, most, alternative="greater").pvalue > 1e-3
    if (null, count) == ("drawn", 548):  # a third of the draws miss the largest document
        assert shares["jackknife"][0] > 0.06 > shares["in use"][0]


def test_a_page_of_equally_good_models_has_seldom_a_verdict() -> None:
    calls = round(100 * perplexity.count_pages(perplexity.read_documents(), 30, 100))
    assert stats.binomtest(calls, 100, 0.05, alternative="greater").pvalue > 1e-3
