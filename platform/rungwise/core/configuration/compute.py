"""The block `compute` of a recipe: where and how stages are computed. It enters no fingerprint."""

from typing import Literal

from pydantic import Field, field_validator

from rungwise.core.configuration.config import Config

TokenizerBackend = Literal["auto", "memo", "nanotoken", "gigatoken"]


class ComputeConfig(Config):
    """Where and how stages are computed. Changing a value here rebuilds nothing."""

    num_workers: int = Field(default=2, ge=1)  # Ray Train workers of a training stage
    cpus_per_worker: float = Field(default=1.0, gt=0)
    gpus_per_worker: float = Field(default=0.0, ge=0)
    micro_batch_size: int = Field(default=32, ge=1)  # instances that a worker computes at once
    # parts of a batch that the workers share out, each with its own micro-batches and dropout, so
    # that their number changes neither; null: one for each worker
    logical_workers: int | None = Field(default=None, ge=1)
    # continue with this few workers when machines are lost; null: num_workers
    min_workers: int | None = Field(default=None, ge=1)
    # ddp: each worker holds the model; fsdp: a part of it; hybrid: a part, within groups
    parallel: Literal["ddp", "fsdp", "hybrid"] = "ddp"
    shard_workers: int = Field(default=8, ge=2)  # hybrid: workers that hold one model together
    compile: bool = False  # torch.compile; micro-batches are then padded to one shape
    # in the backward pass: a third more work for about a tenth of the memory
    recompute_activations: bool = False
    # in a Ray task while training goes on, where the cluster has room for one more worker
    asynchronous_validation: bool = False
    # of all machines together; null: costs are not shown
    price_per_hour: float | None = Field(default=None, ge=0)
    # cost of a run above which it alerts, but does not end; null: none
    budget: float | None = Field(default=None, gt=0)
    max_failures: int = Field(default=3, ge=0)  # worker failures before a training stage gives up
    checkpoint_every_steps: int = Field(default=100, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)  # latest checkpoints to keep
    # keep the checkpoints of every so many steps for good; null: none
    keep_checkpoint_every_steps: int | None = Field(default=None, ge=1)
    max_concurrent_stages: int = Field(default=1, ge=1)  # independent stages built at the same time
    # trials of a sweep at the same time; fewer if fewer fit
    max_concurrent_trials: int = Field(default=2, ge=1)
    cpus_per_trial: float = Field(default=1.0, gt=0)
    gpus_per_trial: float = Field(default=0.0, ge=0)  # several divide each batch among them
    # All give the same ids. auto: the fastest one installed, once proved on the text at hand.
    tokenizer_backend: TokenizerBackend = "auto"
    shard_cache_megabytes: int = Field(default=8192, ge=1)  # cache for remote shards, per machine
    # object store of a Ray that rungwise starts
    object_store_megabytes: int = Field(default=512, ge=80)

    @property
    def is_one_process(self) -> bool:
        """Whether training takes a single process on CPUs."""
        return self.num_workers == 1 and not self.gpus_per_worker

    def parts_of_a_batch(self, world_size: int) -> int:
        """The logical workers; one for each worker if those left after a loss cannot share them."""
        logical = self.logical_workers
        return logical if logical and logical % world_size == 0 else world_size

    @field_validator("gpus_per_trial")
    @classmethod
    def _whole_gpus(cls, gpus: float) -> float:
        if gpus > 1 and gpus % 1:
            raise ValueError(
                f"expected a part of one GPU or a whole number of GPUs, found {gpus:g}"
            )
        return gpus
