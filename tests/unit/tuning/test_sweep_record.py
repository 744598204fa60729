"""Records of trials, and room for them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ray.exceptions import ActorDiedError

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.core.stages.stage import SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.finetune import FinetuneConfig, finetune
from rungwise.tuning.running import SweepJob, count_concurrent, run_trial, summarise
from rungwise.tuning.trials import Epoch, SweepTrial, read_record, write_record
from tests.toy_sweeps import inputs, stage_config, toy
from tests.toy_tasks import stand_in, toy_data

RECORD = SweepTrial(
    number=3, values={"finetune.batch_size": 8}, finetune=FinetuneConfig(batch_size=8), seed=0
)
ROW = Epoch(epoch=1, score=0.7, loss=None, seconds=0.5, metrics={"accuracy": 0.7})


def test_a_trial_scores_what_it_would_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(settings: FinetuneConfig, inputs: Any, seed: int, on_epoch: Any, start: Any) -> None:
        for epoch, score in enumerate((0.4, 0.6, 0.5), start=1):
            kept = {"kept/score": min(0.2 + 0.2 * epoch, 0.6), "kept/loss": 0.25}
            on_epoch(epoch, {"accuracy": score, "loss": 1.0, **kept})

    told: list[dict[str, Any]] = []
    monkeypatch.setattr("ray.tune.report", told.append)
    space = {"finetune.best_epoch": {"kind": "choice", "values": [True]}}
    config, output = stage_config(space=space), Folder.at(tmp_path)
    job = SweepJob(config, inputs(tmp_path), output, "accuracy", SilentReporter(), train)
    run_trial({"number": 0}, job=job, cpus=1, end=3)
    record = read_record("trial-000", output)
    assert record is not None
    assert [row.metrics["accuracy"] for row in record.history] == [0.4, 0.6, 0.5]
    assert [row.score for row in record.history] == pytest.approx([0.4, 0.6, 0.6])
    assert [each["score"] for each in told] == [row.score for row in record.history]
    assert (record.score, record.loss) == (pytest.approx(0.6), 0.25)


@pytest.mark.parametrize(
    ("epochs", "end", "state"), [(2, 1, "waiting"), (1, 1, "finished"), (2, 2, "running")]
)
def test_a_killed_trial_has_not_failed(tmp_path: Path, epochs: int, end: int, state: str) -> None:
    """Its board dies with the driver; a trial of a halving that failed would be out of the race."""

    class Orphaned(SilentReporter):
        def flush(self) -> None:
            raise ActorDiedError

    space = {"finetune.batch_size": {"kind": "choice", "values": [8]}}
    config = stage_config({"epochs": epochs}, space=space, halving={})
    output = Folder.at(tmp_path)
    job = SweepJob(config, inputs(tmp_path), output, "accuracy", Orphaned(), toy())
    with pytest.raises(ActorDiedError):
        run_trial({"number": 0}, job=job, cpus=1, end=end)
    record = read_record("trial-000", output)
    assert record is not None
    assert (record.state, record.error, len(record.history)) == (state, "", 1)


def test_of_equally_good_trials_the_one_with_the_lowest_number_wins(tmp_path: Path) -> None:
    space = {"finetune.batch_size": {"kind": "choice", "values": [8, 16]}}
    config, output = stage_config(space=space), Folder.at(tmp_path)
    job = SweepJob(config, inputs(tmp_path), output, "accuracy", SilentReporter(), toy())
    for number in (999, 1000):
        fields = {"number": number, "history": (ROW,), "score": 0.7, "state": "finished"}
        write_record(RECORD.model_copy(update=fields), output)
    assert summarise(job).best.name == "trial-999"


def test_a_batch_may_be_larger_than_the_training_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = toy_data("classification", examples=24)

    def train(settings: FinetuneConfig, inputs: Any, seed: int, on_epoch: Any, start: Any) -> None:
        finetune(settings, data, seed, on_epoch, start)

    stand_in(monkeypatch)
    monkeypatch.setattr("ray.tune.report", lambda told: None)
    space = {"finetune.batch_size": {"kind": "choice", "values": [64]}}
    config = stage_config({"epochs": 1, "sequence_length": 16}, space=space)
    output = Folder.at(tmp_path)
    job = SweepJob(config, inputs(tmp_path), output, "accuracy", SilentReporter(), train)
    run_trial({"number": 0}, job=job, cpus=1, end=1)
    assert summarise(job).best.values == {"finetune.batch_size": 64}


@pytest.mark.parametrize(
    ("nodes", "asked", "fits"),
    [
        ([{"CPU": 2}], {"max_concurrent_trials": 8}, 2),
        ([{"CPU": 2}], {"max_concurrent_trials": 1}, 1),
        ([{"CPU": 4}, {"CPU": 3}], {"max_concurrent_trials": 8, "cpus_per_trial": 2}, 3),
        ([{"CPU": 1}], {"cpus_per_trial": 0.1, "max_concurrent_trials": 20}, 10),
        (
            [{"CPU": 16, "GPU": 2}, {"CPU": 64}],
            {"gpus_per_trial": 0.5, "max_concurrent_trials": 9},
            4,
        ),
    ],
)
def test_as_many_trials_run_at_once_as_fit(
    nodes: list[dict[str, float]], asked: dict[str, float], fits: int
) -> None:
    assert count_concurrent(ComputeConfig.model_validate(asked), nodes) == fits


def test_a_trial_that_fits_on_no_node_is_refused_with_the_numbers() -> None:
    nodes = [{"CPU": 2.0}, {"CPU": 4.0, "GPU": 1.0}]
    with pytest.raises(UserError, match=r"asks for 3 CPUs and 2 GPUs .* 4 CPUs and 1 GPUs"):
        count_concurrent(ComputeConfig(cpus_per_trial=3, gpus_per_trial=2), nodes)
    with pytest.raises(UserError, match=r"compute\.cpus_per_trial"):
        count_concurrent(ComputeConfig(cpus_per_trial=5), nodes)


def test_a_trial_has_a_part_of_a_gpu_or_whole_ones() -> None:
    with pytest.raises(ValidationError, match=r"a part of one GPU or a whole number .* found 1\.5"):
        ComputeConfig(gpus_per_trial=1.5)
