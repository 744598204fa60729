"""The surroundings of a stage besides its config and inputs: where it runs, and whom it tells.

    build_corpus(config, inputs, output, context) -> CorpusSummary

Nothing here enters a fingerprint. A stage reports through `context.report` and never writes to the
terminal or to MLflow itself, so one process alone speaks to each of them whatever runs where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import Field, field_validator

from rungwise.core.config import Config

TokenizerBackend = Literal["auto", "rust", "memo", "nanotoken", "gigatoken"]


class ComputeConfig(Config):
    """Where things are computed. Changing a value here rebuilds nothing."""

    num_workers: int = Field(default=2, ge=1)  # Ray Train workers of a training stage
    cpus_per_worker: float = Field(default=1.0, gt=0)
    gpus_per_worker: float = Field(default=0.0, ge=0)
    micro_batch_size: int = Field(default=32, ge=1)  # instances a worker takes through at once
    min_workers: int | None = Field(default=None, ge=1)  # go on with so few when machines are lost
    parallel: Literal["ddp", "fsdp", "hybrid"] = "ddp"  # the model whole or in parts on each worker
    shard_workers: int = Field(default=8, ge=2)  # hybrid: workers that hold one model together
    compile: bool = False  # torch.compile; micro-batches are then padded to one shape
    recompute_activations: bool = False  # a third more work for about a tenth of the memory
    price_per_hour: float | None = Field(default=None, ge=0)  # of all machines together
    budget: float | None = Field(default=None, gt=0)  # for a run; past it an alert, not an end
    max_failures: int = Field(default=3, ge=0)  # of workers, before a training stage gives up
    checkpoint_every_steps: int = Field(default=100, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)
    keep_checkpoint_every_steps: int | None = Field(default=None, ge=1)  # these are never removed
    max_concurrent_stages: int = Field(default=1, ge=1)  # that do not need each other
    max_concurrent_trials: int = Field(default=2, ge=1)  # of a sweep; fewer where fewer fit
    cpus_per_trial: float = Field(default=1.0, gt=0)
    gpus_per_trial: float = Field(default=0.0, ge=0)  # above 1 a whole number; they share a batch
    # The ids are the same. auto: the fastest that is installed and proved on the text at hand.
    tokenizer_backend: TokenizerBackend = "auto"
    shard_cache_megabytes: int = Field(default=8192, ge=1)  # of remote shards, a machine
    object_store_megabytes: int = Field(default=512, ge=80)  # of a Ray started by rungwise itself

    @field_validator("gpus_per_trial")
    @classmethod
    def _whole_gpus(cls, gpus: float) -> float:
        if gpus > 1 and gpus % 1:
            raise ValueError(
                f"expected a part of one GPU or a whole number of GPUs, found {gpus:g}"
            )
        return gpus


class Reporter(Protocol):
    """How a stage tells what it does. Every call returns at once and never fails the stage."""

    def progress(self, done: float, total: float, **shown: float | str) -> None:
        """`done` of `total` units; `shown` are a few values for the live line, such as loss."""

    def metrics(self, values: dict[str, float], step: int, run: str | None = None) -> None:
        """Points of curves. `run` names a nested run (a trial, a seed), None the stage's own."""

    def nested(self, run: str, params: dict[str, Any], status: str = "RUNNING") -> None:
        """Open (RUNNING) or close (FINISHED, FAILED, KILLED) a nested run with its parameters."""

    def note(self, message: str) -> None:
        """One line the user should read, such as a loss that starts where it should not."""

    def flush(self) -> None:
        """Return when all that this process has reported has arrived. Call as the last thing."""


class SilentReporter(Reporter):
    """Tells nobody: for tests and for calling a stage as a plain function."""


@dataclass(frozen=True)
class TrackingRun:
    """The MLflow run of a stage that runs in the driver: the server's URI and the run's id; `page`
    is the file among the artifacts of the run of the whole that is its page."""

    uri: str
    run_id: str
    page: str


@dataclass(frozen=True)
class Context:
    """The compute block, the reporter and the whole recipe, all blocks resolved, of one stage;
    `tracking` only for stages in the driver."""

    compute: ComputeConfig = field(default_factory=ComputeConfig)
    report: Reporter = field(default_factory=SilentReporter)
    tracking: TrackingRun | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
