"""A sweep whose trials train nothing: scores by a formula with a known best, in no time."""

import json
import math
import time
import uuid
from pathlib import Path
from typing import Any

from rungwise.core.stages.artifact import Artifact, Summary
from rungwise.finetune import FinetuneConfig
from rungwise.tasks.kinds.examples import ExampleCounts, TaskInfo, TaskSummary
from rungwise.tuning.running import Train
from rungwise.tuning.trials import SweepStageConfig
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
