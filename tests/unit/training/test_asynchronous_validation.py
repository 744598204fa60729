"""Validation in a task beside training: the rows of the loop, whatever becomes of the task."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from rungwise.core.errors import UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.training.parallel import Work, WorkerTask
from tests.training_runs import (
    CPU,
    Killed,
    KilledAt,
    Notes,
    assert_same_weights,
    config,
    run,
    together,
)

ALONE: dict[str, Any] = {"num_workers": 1, "asynchronous_validation": True}


class Elsewhere(WorkerTask):
    """A task that ends when it is waited for, or at once if it is `prompt`. It gets bytes, as one
    in another process does, and leaves a line in a file."""

    def __init__(
        self, log: Path, work: Work, prompt: bool = False, error: Exception | None = None
    ) -> None:
        self.log, self.prompt, self.error = log, prompt, error
        self._work = cloudpickle.dumps(work)
        self._write("starts")

    def is_done(self) -> bool:
        return self.prompt

    def result(self, timeout_seconds: float) -> dict[str, float]:
        self._write("ends")
        if self.error is not None:
            raise self.error
        return cloudpickle.loads(self._work)(CPU)

    def close(self) -> None:
        self._write("closed")

    def _write(self, event: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{event}\n")


class NotFinite(Elsewhere):
    def result(self, timeout_seconds: float) -> dict[str, float]:
        return super().result(timeout_seconds) | {"loss": float("nan")}


def events(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


def room(log: Path, kind: type[Elsewhere] = Elsewhere, **how: Any) -> Callable[[Work], WorkerTask]:
    return functools.partial(kind, log, **how)


EMA = {"pretrain.average": {"kind": "ema", "decay": 0.5}}
EVERY_THIRD = {"pretrain.validation_every_steps": 3}
EVERY_FIFTH = {"pretrain.validation_every_steps": 5}  # as the checkpoints


@pytest.mark.parametrize(
    ("changes", "how", "expected"),
    [
        # Of steps 3 to 18; the first and the last wait. Half as many if each runs until a
        # checkpoint of a later step, since that of the step between is in the loop then.
        ({}, {"prompt": True}, ["starts", "ends"] * 6),
        (EMA, {}, ["starts", "ends"] * 4),
        ({}, {"error": RuntimeError("the node is gone")}, ["starts", "ends"] * 4),
        # No more tasks after one that hung.
        ({}, {"error": TimeoutError("it has not ended")}, ["starts", "ends"]),
        ({"pretrain.early_stop": {"patience": 9}}, {}, []),
    ],
    ids=["prompt", "late", "lost", "hung", "early stop"],
)
def test_rows_are_those_of_the_loop_in_the_order_of_steps(
    instances: Artifact,
    tmp_path: Path,
    changes: dict[str, Any],
    how: dict[str, Any],
    expected: list[str],
) -> None:
    settings, log = config(**EVERY_THIRD, **changes), tmp_path / "log"
    plain, beside = Notes(), Notes()
    inside = run(settings, instances, tmp_path / "plain", report=plain)
    progress = run(
        settings, instances, tmp_path / "beside", report=beside, submit=room(log, **how), **ALONE
    )
    assert progress == inside
    assert [row["step"] for row in progress.validation] == [*range(0, 20, 3), 20]
    for name in ("validation/loss", "validation/mlm_accuracy"):
        assert beside.points[name] == plain.points[name]
    assert_same_weights(tmp_path / "plain", tmp_path / "beside")
    assert events(log) == expected
    failed = [note for note in beside.notes if note.endswith(str(how.get("error", "in vain")))]
    assert len(failed) == (len(expected) // 2 if "error" in how else 0)


def test_a_run_that_is_killed_while_validations_run_has_every_row(
    instances: Artifact, tmp_path: Path
) -> None:
    """The task of a step runs when the checkpoint of that step is written, and is lost by the kill
    after it: the run that goes on from there validates first."""
    settings, log = config(**EVERY_FIFTH, **EMA), tmp_path / "log"
    whole = run(settings, instances, tmp_path / "whole")
    more: dict[str, Any] = {"submit": room(log), "keep_checkpoints": 9, **ALONE}
    for step in (4, 7, 12, 17):
        with pytest.raises(Killed):
            run(settings, instances, tmp_path / "cut", report=KilledAt(step), **more)
    resumed = run(settings, instances, tmp_path / "cut", **more)
    assert resumed == whole
    assert_same_weights(tmp_path / "whole", tmp_path / "cut")
    records = sorted((tmp_path / "cut").glob("checkpoints/*/checkpoint.json"))
    saved = [json.loads(record.read_text())["progress"] for record in records]
    rows = {each["step"]: each["validation"][-1]["step"] for each in saved}
    assert rows == {5: 0, 10: 5, 15: 10, 20: 20}
    assert events(log) == ["starts", "closed"] * 3


def test_a_loss_of_a_task_that_is_not_finite_ends_the_run(
    instances: Artifact, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="the validation loss is not finite at step 5; lower"):
        run(
            config(**EVERY_FIFTH),
            instances,
            tmp_path / "run",
            submit=room(tmp_path / "log", NotFinite),
            **ALONE,
        )


def test_without_room_training_waits_and_says_so_once(instances: Artifact, tmp_path: Path) -> None:
    report = Notes()
    run(config(**EVERY_FIFTH), instances, tmp_path / "full", report=report, **ALONE)
    assert report.notes == [
        "compute.asynchronous_validation: no machine has room for one more worker at step 5, so "
        "training waits for that validation"
    ]


def test_what_is_free_is_left_to_workers_that_are_missing(
    instances: Artifact, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    keys: dict[str, Any] = ALONE | {"num_workers": 2}
    run(config(**EVERY_FIFTH), instances, tmp_path / "run", submit=room(log), **keys)
    assert not events(log)


FSDP = {"parallel": "fsdp"}
ONCE = {"pretrain.validation_every_steps": 10}
NARROW = {"pretrain.precision": "bfloat16", "pretrain.bfloat16_stream": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "changes", "compute"),
    [
        (3, EMA, {}),
        (3, EMA, FSDP),
        (2, NARROW, FSDP),
        (4, NARROW, {"parallel": "hybrid", "shard_workers": 2}),
        (3, {"pretrain.objective": "simcse"}, {}),
        (2, ONCE, {"compile": True}),
        (2, ONCE, {"compile": True, "parallel": "fsdp"}),
    ],
    ids=["ddp", "fsdp", "fsdp bfloat16", "hybrid bfloat16", "simcse", "compiled", "compiled fsdp"],
)
def test_a_task_has_the_bits_of_several_workers(
    instances: Artifact,
    tmp_path: Path,
    workers: int,
    changes: dict[str, Any],
    compute: dict[str, Any],
    free_ports: list[int],
) -> None:
    settings, log = config(**(EVERY_THIRD | changes)), tmp_path / "log"
    more = compute | {"num_workers": workers}
    inside = together(workers, settings, instances, tmp_path / "plain", free_ports[0], **more)
    more |= {"asynchronous_validation": True, "submit": room(log, prompt=True)}
    progress = together(workers, settings, instances, tmp_path / "beside", free_ports[1], **more)
    assert progress == inside
    assert_same_weights(tmp_path / "plain", tmp_path / "beside")
    assert events(log) == ["starts", "ends"] * (1 if changes is ONCE else 6)
