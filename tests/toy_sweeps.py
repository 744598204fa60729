"""A sweep whose trials train nothing: scores by a formula with a known best, in no time."""

import json
import math
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import SilentReporter
from rungwise.core.stages.summary import Summary
from rungwise.core.storage.folder import Folder
from rungwise.finetune import FinetuneConfig, OnEpoch, SplitData, finetune
from rungwise.tasks.kinds.examples import ExampleCounts, TaskInfo, TaskSummary, Text
from rungwise.tuning import SweepStageConfig
from rungwise.tuning.config import draw_trials, resolve_settings
from rungwise.tuning.record import Epoch, write_record
from rungwise.tuning.running import SweepJob, Train, new_record, summarise
from tests.summaries import standing

BEST_RATE = 1e-3


def artifact(
    folder: Path, stage: str, config: dict[str, Any], summary: Summary | None = None
) -> Artifact:
    """An artifact by hand: what a sweep reads of one."""
    record = {"label": "toy", "inputs": {}, "fingerprint": f"{stage}-0"}
    return standing(stage, folder / stage, summary or Summary(headline=stage), config, **record)


def inputs(folder: Path) -> dict[str, Artifact]:
    """What a sweep over `finetune` alone reads."""
    task = TaskSummary(
        info=TaskInfo("classification", ("a", "b"), False, "accuracy"),
        examples=ExampleCounts(train=24, validation=24, test=24),
        baselines={},
        overlap={},
        irregular={},
        headline="task",
    )
    return {
        "task": artifact(folder, "task", {}, task),
        "tokenizer": artifact(folder, "tokenizer", {"vocab_size": 100}),
        "pretrain": artifact(folder, "pretrain", {"model": {"num_layers": 1}, "pretrain": {}}),
    }


def stage_config(finetune: dict[str, Any] | None = None, **sweep: Any) -> SweepStageConfig:
    return SweepStageConfig.model_validate({"finetune": finetune or {}, "sweep": sweep})


def score_of(settings: FinetuneConfig, epoch: int) -> float:
    """Highest, near 1, at a learning rate of 1e-3, and better with every epoch."""
    distance = abs(math.log10(settings.learning_rate / BEST_RATE))
    return (1 - 0.2 * distance) * (1 - 0.5**epoch)


def toy(starts: Path | None = None, seconds: float = 0.0) -> Train:
    """A trainable that takes `seconds` an epoch."""

    def train(settings: FinetuneConfig, inputs: Any, seed: int, on_epoch: Any, start: Any) -> None:
        if starts is not None:
            mark(starts, settings.model_dump(mode="json"))
        for epoch in range(int(start or b"0") + 1, settings.epochs + 1):
            time.sleep(seconds)
            metrics = {"accuracy": score_of(settings, epoch), "loss": 1 / epoch}
            on_epoch(epoch, metrics, lambda here=epoch: str(here).encode())

    return train


def real(settings: FinetuneConfig, inputs: Any, seed: int, on_epoch: OnEpoch, start: Any) -> None:
    """Real fine-tuning of a tiny model on the 24 examples of a toy task."""
    from tests.toy_tasks import toy_data

    data = toy_data("classification")
    splits = {
        name: SplitData(
            [Text("", "", None, data.info.labels[i.target]) for i in split.items], split.items
        )
        for name, split in data.splits.items()
    }
    finetune(settings, replace(data, splits=splits), seed, on_epoch, start)


def swept(
    folder: Path, finetune: dict[str, Any], shift: float = 0.0, failed: int = 0, **sweep: Any
) -> Artifact:
    """A sweep artifact of scores less `shift`; halving stops every third, `failed` fail."""
    config, output = stage_config(finetune, **sweep), Folder.at(folder / "sweep-records")
    draws, first = draw_trials(config.sweep), config.rounds[0]
    output.remove()
    for number, values in enumerate(draws):
        settings = resolve_settings(config, values)
        epochs = settings.epochs
        if config.sweep.halving and number % 3 == 2:
            epochs = min(epochs, first)
        trial = new_record(config, number)
        trial.state = "finished" if epochs == settings.epochs else "stopped_early"
        for epoch in range(1, epochs + 1):
            score = score_of(settings, epoch) - shift
            row = Epoch(
                epoch=epoch,
                score=score,
                loss=1 / epoch,
                seconds=1.0 * epoch,
                metrics={"accuracy": score},
            )
            trial.history, trial.score, trial.loss = (*trial.history, row), row.score, row.loss
        if number >= len(draws) - failed:
            trial.fail("it broke")
            trial.history = ()
        write_record(trial, output)
    summary = summarise(SweepJob(config, {}, output, "accuracy", SilentReporter(), toy()))
    summary = summary.model_copy(update={"seconds": 1.0, "headline": "sweep"})
    return artifact(folder, "sweep", config.model_dump(mode="json"), summary)


def mark(folder: Path, data: dict[str, Any]) -> None:
    """Leave a file that says that something began."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{time.time_ns()}-{uuid.uuid4().hex[:6]}.json").write_text(json.dumps(data))


def marks(folder: Path) -> list[dict[str, Any]]:
    """What was left there, in order."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


class Events:
    """A Reporter that leaves what it is told as files, for processes that cannot see each other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def began(self) -> None: ...

    def progress(self, done: float, total: float, **shown: float | str) -> None:
        mark(self.folder, {"kind": "progress", "done": done, "total": total, **shown})

    def metrics(self, values: dict[str, float], step: int, run: str | None = None) -> None:
        mark(self.folder, {"kind": "metrics", "values": values, "step": step, "run": run})

    def nested(self, run: str, params: dict[str, Any], status: str = "RUNNING") -> None:
        mark(self.folder, {"kind": "nested", "run": run, "params": params, "status": status})

    def note(self, message: str) -> None:
        mark(self.folder, {"kind": "note", "message": message})

    def flush(self) -> None: ...
