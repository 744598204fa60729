"""The context of a stage besides its config and inputs: where it runs and whom it reports to.

Nothing here enters a fingerprint. A stage never writes to the terminal or to MLflow itself, so that
a single process writes to each of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rungwise.core.configuration.overrides import ComputeConfig


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
