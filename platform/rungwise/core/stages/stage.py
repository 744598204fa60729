"""A stage is a plain function plus what determines its output; `plan` tells what must be built.

    build_corpus(config, inputs, output, context) -> CorpusSummary
    CORPUS = StageType("corpus", 3, LazyFunction("..."), CorpusSummary)
    CORPUS.stage(config)                                              one box of a workflow

The fingerprint hashes the stage's name and version, the identity part of its config, digests of
the outside data it reads, and the fingerprints of its inputs. Raise `version` when a change of code
changes the output. A title is for people, like the label, and names an input; no code parses it.

The context says where a stage runs and whom it reports to: nothing there enters a fingerprint. A
stage never writes to the terminal or to MLflow itself, so that a single process writes to each.
"""

import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, Protocol, TypeVar

from rungwise.core.configuration.canonical import fingerprint, flatten, plain
from rungwise.core.configuration.config import Config
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import list_first
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact, Inputs, Summary
from rungwise.core.storage.folder import Folder


class Reporter(Protocol):
    """How a stage reports. Except for `flush`, calls return at once; none fails the stage."""

    def began(self) -> None:
        """Say that the stage works: its process has imported what it needs."""

    def progress(self, done: float, total: float, **shown: float | str) -> None:
        """Report `done` of `total` units; `shown` are values for the live line, such as loss."""

    def metrics(self, values: dict[str, float], step: int, run: str | None = None) -> None:
        """Add points to curves. `run` names a nested run (a trial, a seed); None is the stage."""

    def nested(self, run: str, params: dict[str, Any], status: str = "RUNNING") -> None:
        """Open (RUNNING) or close (FINISHED, FAILED, KILLED) a nested run with its parameters."""

    def note(self, message: str) -> None:
        """Show the user one line, such as a warning about an unexpected initial loss."""

    def flush(self) -> None:
        """Wait until everything this process has reported has arrived. Call it last."""


class SilentReporter(Reporter):
    """Discards reports: for tests and for calling a stage as a plain function."""


@dataclass(frozen=True)
class TrackingRun:
    """The MLflow run of a stage in the driver, and its `page` in the run of the whole recipe."""

    uri: str
    run_id: str
    page: str


@dataclass(frozen=True)
class Context:
    """Where a stage runs and whom it tells. `recipe` is the whole recipe with all blocks
    resolved; `tracking` is set only for stages in the driver. `trains_here`: the stage's task holds
    the CPUs of its only worker, and trains itself."""

    compute: ComputeConfig = field(default_factory=ComputeConfig)
    report: Reporter = field(default_factory=SilentReporter)
    tracking: TrackingRun | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    trains_here: bool = False


@dataclass(frozen=True)
class Title:
    """A stage and what it is for, such as `pretrain/gpt/seed-2` and `evaluate/sst-2/100`. `budget`
    is a number of labelled examples, `part` one of the pretrainings of a `trial` of a search."""

    stage: str
    step: str | None = None
    task: str | None = None
    variant: str | None = None
    budget: int | None = None
    seed: int | None = None
    trial: int | None = None
    part: str | None = None

    def __str__(self) -> str:
        seed = None if self.seed is None else f"seed-{self.seed}"
        trial = None if self.trial is None else f"trial-{self.trial:03d}"
        place = (self.stage, self.step, self.task, self.variant)
        parts = (*place, self.budget, trial, self.part, seed)
        return "/".join(str(part) for part in parts if part is not None)


_MOST_CHANGES = 5
# The reason to build, for a stage that resumes a stopped attempt.
GOES_ON = "goes on where it was stopped"

StageConfigT = TypeVar("StageConfigT", bound=Config)
SummaryT = TypeVar("SummaryT", bound=Summary)
Place = Literal["task", "driver"]
Trunk = tuple[str, int]  # what the work of several stages begins with, and how much of it one does


@dataclass(frozen=True)
class LazyFunction:
    """Calls the function at `place`, "package.module:function", imported by the process that calls.

    What builds a stage takes seconds to import, which a plan does not need.
    """

    place: str

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return import_function(self)(*arguments, **options)


def import_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Import and return the function that a LazyFunction stands for; return any other as it is."""
    return pkgutil.resolve_name(function.place) if isinstance(function, LazyFunction) else function


@dataclass(frozen=True)
class ContinuableRun:
    """The finished artifact whose work a stage would continue, from so many steps on."""

    artifact: Artifact
    steps: int

    def __str__(self) -> str:
        name = f"{self.artifact.label}-{self.artifact.fingerprint}"
        return f"goes on from step {self.steps} of {name}"


@dataclass(frozen=True)
class StageType(Generic[StageConfigT, SummaryT]):
    """The name, version and functions that all stages of one name share.

    `identity` gives the part of the config that determines the output, `outside` digests of data
    read from elsewhere. `resumes` keeps the files of a killed attempt. `goes_on_from` finds the
    artifact whose work the stage would continue; `trunk` says what work it shares with others.
    `trains_alone`: the training of a config takes one worker without a GPU.
    """

    name: str
    version: int
    run: Callable[[StageConfigT, dict[str, Artifact], Folder, Context], SummaryT]
    summary: type[SummaryT]
    identity: Callable[[StageConfigT], Config | Mapping[str, Any]] = lambda config: config
    outside: Callable[[StageConfigT], Mapping[str, Any]] = lambda config: {}
    resumes: bool = False
    place: Place = "task"
    goes_on_from: Callable[
        [StageConfigT, Mapping[str, str], Sequence[Artifact]], ContinuableRun | None
    ] = lambda config, inputs, finished: None
    trunk: Callable[[StageConfigT, Mapping[str, str]], Trunk | None] = lambda config, inputs: None
    trains_alone: Callable[[StageConfigT, ComputeConfig], bool] = lambda config, compute: False

    def stage(
        self,
        config: StageConfigT,
        inputs: "Mapping[str, Stage] | None" = None,
        title: Title | None = None,
    ) -> "Stage":
        """Make a stage with this config. Raises what `outside` raises, as for a missing file."""
        identity, outside = self.identity(config), self.outside(config)
        return Stage(self, config, dict(inputs or {}), identity, outside, title or Title(self.name))


@dataclass(frozen=True)
class Stage:
    """One box of a workflow, made by its StageType. `title` is only for people."""

    type: StageType[Any, Any]
    config: Config
    inputs: "Mapping[str, Stage]"
    identity: Config | Mapping[str, Any]
    outside: Mapping[str, Any]
    title: Title

    @property
    def name(self) -> str:
        return self.type.name

    @property
    def display_name(self) -> str:
        return str(self.title)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The data that the fingerprint hashes."""
        return {
            "stage": self.name,
            "version": self.type.version,
            "config": plain(self.identity),
            "outside": self.outside,
            "inputs": self.input_fingerprints,
        }

    @property
    def input_fingerprints(self) -> dict[str, str]:
        return {name: stage.fingerprint for name, stage in self.inputs.items()}

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.facts)

    @cached_property
    def trunk(self) -> Trunk | None:
        """The work that it shares with other stages, and how much of it; None if it shares none."""
        return self.type.trunk(self.config, self.input_fingerprints)

    def continues(self, other: "Stage") -> bool:
        """Whether it could go on from where the work that it shares with `other` ends there."""
        if self.trunk is None or other.trunk is None:
            return False
        (shared, length), (of_other, shorter) = self.trunk, other.trunk
        return shared == of_other and shorter < length


@dataclass(frozen=True)
class Planned:
    """A row of a plan. `artifact` is None unless it is done; building would continue `earlier`."""

    stage: Stage
    folder: Folder
    artifact: Artifact | None
    reason: str
    earlier: ContinuableRun | None = None


def plan(stages: Sequence[Stage], root: Folder, label: str) -> list[Planned]:
    """Find which of `stages` are done under `root`, and why the others must be built."""
    rows: list[Planned] = []
    for stage in stages:
        folder = artifacts.find_folder(root, stage.name, label, stage.fingerprint)
        if artifact := artifacts.load(folder):
            rows.append(Planned(stage, folder, artifact, "done"))
            continue
        finished = artifacts.list_artifacts(root, stage.name)
        earlier = stage.type.goes_on_from(stage.config, stage.input_fingerprints, finished)
        if stage.type.resumes and folder.names():
            reason = GOES_ON
        else:
            own = [each for each in finished if each.label == label]
            reason = str(earlier) if earlier else _reason(stage, own)
        rows.append(Planned(stage, folder, None, reason, earlier))
    return rows


def _reason(stage: Stage, finished: Sequence[Artifact]) -> str:
    """Say what changed since the closest build of this title in `finished`."""
    records, title = [each.record for each in finished], stage.display_name
    facts = [record["facts"] for record in records if record.get("title") == title]
    if not facts:
        return "first run"
    changes = min((_changes(before, stage.facts) for before in facts), key=len)
    own = [change for change in changes if not change.startswith("inputs.")]
    if own:
        return list_first(own, _MOST_CHANGES, "; ")
    names = [change.removeprefix("inputs.").partition(" ")[0] for change in changes]
    return f"other inputs: {list_first(names, _MOST_CHANGES)}"


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Name the keys that differ, with their values."""
    before, after = flatten(old), flatten(new)
    changes = []
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            texts = [str(values.get(key, "unset")) for values in (before, after)]
            short = [text if len(text) <= 40 else text[:37] + "..." for text in texts]
            changes.append(f"{key.removeprefix('config.')} {' -> '.join(short)}")
    return changes


def run_stage(run: Any, config: Any, inputs: Inputs, output: Folder, context: Context) -> Summary:
    """Run a stage in a Ray task, whose process imports this module and the function's."""
    function = import_function(run)
    # Ray puts the threads of the task's CPUs into the environment; PyTorch may have read those of
    # an earlier stage of this process.
    threads, torch = os.environ.get("OMP_NUM_THREADS"), sys.modules.get("torch")
    if threads and torch is not None:
        torch.set_num_threads(int(threads))
    context.report.began()
    try:
        return function(config, inputs, output, context)
    finally:
        context.report.flush()
