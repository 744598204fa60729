"""Records of trials, the best of them, and the expected best by their number.

The driver adds to a trial's record what only it knows (stopped early, failed). After a kill, the
records alone tell which trials have ended; Tune's snapshots lag.

Dodge et al. 2019, "Show your work", EMNLP, arXiv:1909.03004: a result means little without the
number of trials it is the best of. Trials are drawn without replacement, which is unbiased (Tang et
al. 2020, "Showing your work doesn't always work", ACL).
"""

import json
import logging
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import comb, inf
from typing import Any, Literal

from rungwise.core.configuration.canonical import flatten
from rungwise.core.stages.artifact import Summary, SummaryPart, seal, unseal
from rungwise.core.stages.stage import LazyFunction, StageType
from rungwise.core.storage.folder import Folder
from rungwise.finetune import FinetuneConfig


def rank_trials(
    trials: Iterable[tuple[int, float | None, float | None]], higher_is_better: bool = True
) -> list[int]:
    """The numbers of trials that have a score, the best first, of (number, score, loss). Ties:
    smaller loss, then number, so that the same scores have the same winner."""
    sign = -1 if higher_is_better else 1
    ranked = sorted(
        (sign * score, inf if loss is None else loss, number)
        for number, score, loss in trials
        if score is not None
    )
    return [number for *_, number in ranked]


def expected_best(scores: Sequence[float], higher_is_better: bool) -> list[float]:
    """The mean of the best of 1, 2, ... of these scores over all ways to draw so many of them."""
    ranked = sorted(scores, reverse=not higher_is_better)  # the worst first
    total = len(ranked)
    return [
        sum(score * comb(worse, count - 1) for worse, score in enumerate(ranked))
        / comb(total, count)
        for count in range(1, total + 1)
    ]


def best_so_far(scores: Sequence[float], higher_is_better: bool) -> list[float]:
    """The best of the first 1, 2, ... scores: for trials that were chosen by earlier ones."""
    return list(accumulate(scores, max if higher_is_better else min))


logger = logging.getLogger(__name__)

FOLDER = "trials"
STATES = ".states"  # training states to resume from, in the artifact until the sweep ends
# waiting: at a milestone of successive halving
State = Literal["running", "waiting", "finished", "stopped_early", "failed"]


class Epoch(SummaryPart):
    """One epoch of a trial."""

    epoch: int
    score: float
    loss: float | None
    seconds: float  # since the start of the trial
    metrics: dict[str, float]

    def points(self) -> dict[str, float]:
        """The points of curves."""
        return {f"validation/{key}": value for key, value in self.metrics.items()}


class TrialRecord(SummaryPart):
    """A trial of a sweep or of a search; `score` is None if it failed."""

    number: int
    values: dict[str, Any]  # by dotted key of the recipe
    state: State
    score: float | None
    seconds: float
    error: str

    @property
    def stopped_early(self) -> bool:
        return self.state == "stopped_early"

    @property
    def name(self) -> str:
        return trial_name(self.number)

    def columns(self) -> dict[str, Any]:
        """The cells of a table of trials besides those that every trial has."""
        return {}


class SweepTrial(TrialRecord, frozen=False):
    """A trial of a sweep, which changes as it runs. Score and loss are those of its last epoch.
    `finetune` is the resolved block, `saved_epoch` that of the state to resume from."""

    finetune: FinetuneConfig
    seed: int
    state: State = "running"
    history: tuple[Epoch, ...] = ()
    saved_epoch: int | None = None
    score: float | None = None
    loss: float | None = None
    seconds: float = 0.0
    error: str = ""

    @property
    def ended(self) -> bool:
        """True if it need not run again; failed trials are retried."""
        return self.state in ("finished", "stopped_early")

    @property
    def epochs_run(self) -> int:
        return len(self.history)

    @property
    def epochs_asked(self) -> int:
        return self.finetune.epochs

    def fail(self, error: str) -> None:
        self.state, self.error, self.score, self.loss = "failed", error, None, None

    def state_file(self, epoch: int) -> str:
        """The file of its training state after an epoch."""
        return f"{STATES}/{self.name}-{epoch:04d}"

    def parameters(self) -> dict[str, Any]:
        """Parameters for tracking: the whole `finetune` block."""
        return flatten(self.finetune.model_dump(mode="json"), "finetune")

    def columns(self) -> dict[str, Any]:
        return {"epochs_run": self.epochs_run, "epochs_asked": self.epochs_asked, "loss": self.loss}


class SweepSummary(Summary):
    """All trials and the winner."""

    trials: tuple[SweepTrial, ...]
    best: SweepTrial
    metric: str
    stopped_early: int
    failed: int
    epochs_run: int
    epochs_asked: int
    seconds: float

    @property
    def best_score(self) -> float:
        assert self.best.score is not None, "the best did not fail"
        return self.best.score


SWEEP = StageType(
    "sweep", 13, LazyFunction("rungwise.tuning.running:run_sweep"), SweepSummary, resumes=True
)


def trial_name(number: int) -> str:
    return f"trial-{number:03d}"


def write_record(record: SweepTrial, output: Folder) -> None:
    sealed = seal(record.model_dump(mode="json"))
    text = json.dumps(sealed, indent=1, ensure_ascii=False, allow_nan=False)
    output.write_bytes(f"{FOLDER}/{record.name}.json", text.encode("utf-8"))


def read_record(name: str, output: Folder) -> SweepTrial | None:
    """The record of one trial; None if it has not begun, or what is there was damaged or edited."""
    file = f"{FOLDER}/{name}.json"
    if not output.exists(file):
        return None
    try:
        return SweepTrial.model_validate(unseal(json.loads(output.read_bytes(file))))
    except (ValueError, TypeError, AttributeError) as error:
        logger.warning("%s is damaged (%s): the trial runs again", output.path(file), error)
        return None


def read_records(output: Folder) -> list[SweepTrial]:
    """The records of all trials that have begun, by number."""
    files = [file for file in (output / FOLDER).names() if not file.startswith(".")]
    records = [read_record(file.removesuffix(".json"), output) for file in files]
    return sorted((each for each in records if each), key=lambda record: record.number)


def tabulate(trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """Trials as flat rows, with a column for each key of the space."""

    def cell(value: Any) -> Any:
        return json.dumps(value) if isinstance(value, dict | list | bool | None) else value

    return [
        {
            "trial": trial.name,
            "state": trial.state,
            **{key: cell(value) for key, value in trial.values.items()},
            "score": "" if trial.score is None else trial.score,
            "seconds": trial.seconds,
            **trial.columns(),
            "error": trial.error,
        }
        for trial in trials
    ]
