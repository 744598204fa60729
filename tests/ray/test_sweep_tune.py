"""Sweeps on Ray Tune with a trainable whose best is known."""

import csv
from pathlib import Path
from typing import Any

import pytest

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.finetune import FinetuneConfig
from rungwise.tuning.running import Train, run_sweep
from rungwise.tuning.trials import SweepSummary
from tests.toy_sweeps import BEST_RATE, Events, inputs, marks, stage_config, toy

BREAKS = 1e-1  # a learning rate that no trial survives


def sweep(
    folder: Path, train: Train, finetune: dict[str, Any], **block: Any
) -> tuple[SweepSummary, Path]:
    context = Context(ComputeConfig(max_concurrent_trials=4), Events(folder / "events"))
    output = folder / "sweep"
    config = stage_config(finetune, **block)
    return run_sweep(config, inputs(folder), Folder.at(output), context, train), output


def brittle(starts: Path) -> Train:
    sound = toy(starts)

    def train(settings: FinetuneConfig, inputs: Any, seed: int, on_epoch: Any, start: Any) -> None:
        if settings.learning_rate == BREAKS:
            raise UserError(f"a rate of {BREAKS} breaks it")
        sound(settings, inputs, seed, on_epoch, start)

    return train


@pytest.fixture(scope="module")
def swept(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepSummary, Path]:
    folder = tmp_path_factory.mktemp("swept")
    rates = {"kind": "choice", "values": [BEST_RATE, BREAKS, 1e-2, 1e-5]}
    block = {"halving": {"grace_period": 0.5}, "space": {"finetune.learning_rate": rates}}
    return sweep(folder, brittle(folder / "starts"), {"epochs": 2}, **block)


def test_more_trials_than_cpus_end_and_the_best_wins(swept: tuple[SweepSummary, Path]) -> None:
    summary, folder = swept
    assert len(summary.trials) == 4
    assert summary.best.values["finetune.learning_rate"] == BEST_RATE
    assert summary.best.finetune.learning_rate == BEST_RATE
    assert summary.best.state == "finished"
    assert summary.metric == "accuracy"
    assert len(marks(folder.parent / "starts")) == 3 + 1  # runs


def test_trials_that_fail_end_no_sweep_and_say_why(swept: tuple[SweepSummary, Path]) -> None:
    summary, _ = swept
    failed = [row for row in summary.trials if row.state == "failed"]
    assert summary.failed == len(failed) == 1
    for row in failed:
        assert row.values["finetune.learning_rate"] == BREAKS
        assert row.error == "a rate of 0.1 breaks it"
        assert row.score is None


def test_the_record_counts_what_was_run_and_saved(swept: tuple[SweepSummary, Path]) -> None:
    summary, folder = swept
    rows = summary.trials
    assert summary.epochs_run == sum(len(row.history) for row in rows)
    assert summary.epochs_asked == 4 * 2
    for row in rows:
        whole = [item.epoch for item in row.history] == [1, 2]
        assert (row.state == "finished") == whole
        if row.history:
            assert row.score == row.history[-1].score
    # Three came to the milestone, and one went on.
    assert [len(row.history) for row in rows] == [2, 0, 1, 1]
    assert [row.stopped_early for row in rows] == [False, False, True, True]
    table = list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))
    assert [row["trial"] for row in table] == [row.name for row in rows]
    left = {path.name for path in folder.iterdir()}
    assert left == {"trials", "trials.csv"}


@pytest.mark.slow
def test_a_sweep_whose_trials_all_fail_says_why(ray_session: None, tmp_path: Path) -> None:
    space = {"finetune.dropout": {"kind": "uniform", "low": 0.0, "high": 0.5}}
    with pytest.raises(UserError, match=r"all 2 trials of the sweep failed, .* breaks it"):
        sweep(tmp_path, brittle(tmp_path), {"learning_rate": BREAKS}, space=space, trials=2)
