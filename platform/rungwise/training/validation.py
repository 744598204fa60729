"""Validation: the losses over held-out rows, inside the loop or in a task while training goes on.

A task has a copy of the weights. It computes the parts of all workers, one after the other, in
their micro-batches and with their order of additions: the numbers are those of the loop, to the bit
on one kind of processor.

Rows are logged in the order of steps. A checkpoint waits for the validations of earlier steps. It
does not wait for that of its own step: a run that resumes without its row validates first.

R workers whose parts a process computes, P parts of the objective
"""

import contextlib
import copy
import functools
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.models.device import use_threads
from rungwise.models.losses.objectives import CarriesState, LossSum, Objective
from rungwise.models.transformer.block import Block, set_stream
from rungwise.training.average import WeightAverage
from rungwise.training.config import GradientFit
from rungwise.training.curriculum import DataPhase, Phase, find_phase, open_phases
from rungwise.training.parallel import Group, Worker, WorkerTask, distribute
from rungwise.training.state import StreamStates, is_sharded
from rungwise.training.step import Step
from rungwise.training.throughput import Progress, log_validation

# For a task, once training has come to wait for it. Workers wait for their leader meanwhile, ten
# minutes by NCCL's default.
_PATIENCE_SECONDS = 240.0


@torch.no_grad()
def validate(
    step: Step, phases: Sequence[Phase], ranks: Sequence[int] | None = None
) -> dict[str, float]:
    """Losses and accuracies over the validation instances of a phase, with the same masks each
    time, or of all members of a mixture. This process computes the parts of the workers `ranks`, by
    default its own.

    `perplexity` is that of the objective's first part, the one over tokens; `bits_per_byte` is
    given if every token of the text is predicted and its bytes are known.
    """
    model, group, phase = step.model, step.group, phases[0]
    model.eval()
    objective, device, ranks = phase.objective, group.device, ranks or [group.rank]
    shape = len(ranks), 3, len(objective.parts)
    totals_R3P = torch.zeros(shape, dtype=torch.float64, device=device)
    for each in phases:
        step.objective = each.objective
        shares = [each.validation(rank) for rank in ranks]
        batches = (batch.to(device) for share in shares for batch in share)
        parts = iter(step.with_vectors(batches))
        for rank, share, total_3P in zip(ranks, shares, totals_R3P, strict=True):
            streams = new_streams(model, each, rank, device)  # separate from training's
            for part in itertools.islice(parts, len(share)):
                if streams is not None:
                    part = streams.enter(part)
                losses = step.losses(part)
                if streams is not None:
                    streams.leave(part, losses.state)
                    streams.settle(torch.tensor(True, device=device))
                total_3P += losses.packed()
    # Added here, because the order of an all-reduce is not known.
    totals = [total for one in group.gather([totals_R3P]) for total in one]
    values = LossSum.unpacked(torch.cat(totals).sum(0), objective.parts).metrics()
    nats = values[f"{objective.parts[0]}_loss"]
    values["perplexity"] = math.exp(min(nats, 700.0))
    if phase.tokens_per_byte is not None:
        values["bits_per_byte"] = nats / math.log(2) * phase.tokens_per_byte
    return values | {"sequence_length": float(phase.sequence_length)}


def new_streams(
    model: nn.Module, phase: Phase, rank: int, device: torch.device
) -> StreamStates | None:
    """The streams of the worker `rank` at their start, if the model carries a state."""
    if phase.streams is None:
        return None
    shape = cast(CarriesState, model).state_shape
    return StreamStates(shape, phase.streams(rank), phase.global_batch_size, device)


class _AllWorkers(Group):
    """Stands for all workers of a run in a process that computes their parts."""

    def gather(self, tensors: list[Tensor]) -> list[list[Tensor]]:
        return [[tensor.cpu() for tensor in tensors]]


@dataclass(frozen=True)
class Replica:
    """A copy of the model of a run, for a task, and how the run validates it."""

    model: nn.Module | None  # on the leader
    config: GradientFit
    turns: Sequence[DataPhase]
    compute: ComputeConfig
    workers: int
    bfloat16: bool
    narrow: bool  # sharded blocks are sent in bfloat16

    @torch.no_grad()
    def take_weights(self, model: nn.Module) -> None:
        """Copy the weights of `model`; all workers call this, since each may hold a part."""
        own = iter(()) if self.model is None else _list_tensors(self.model)
        for tensor in _list_tensors(model):
            whole = tensor.full_tensor() if is_sharded(tensor) else tensor
            if self.model is not None:
                next(own).copy_(whole)

    def validate(self, done: int, device: torch.device) -> dict[str, float]:
        """Validate the copy, that of `done` steps, on `device`; changes it."""
        model, config, compute = self.model, self.config, self.compute
        assert model is not None
        use_threads(compute.cpus_per_worker)
        exchange = distribute(model, Group(0, 1, device))
        if self.narrow and compute.parallel != "ddp" and self.workers > 1:
            for block in (each for each in model.modules() if isinstance(each, Block)):
                block.to(torch.bfloat16)
        stream = self.bfloat16 and config.pretrain.bfloat16_stream
        set_stream(model, torch.bfloat16 if stream else None)
        group = _AllWorkers(0, self.workers, device)
        optimizer = config.pretrain.optimizer
        step = Step(
            model, config.objective, exchange, (), optimizer, group, self.bfloat16, compute.compile
        )
        phases = open_phases(config, self.turns, Worker(group, compute))
        due = select_phases(phases, config.objective, done)
        return validate(step, due, range(self.workers))


def select_phases(phases: Sequence[Phase], objective: Objective, done: int) -> Sequence[Phase]:
    """Those that are validated after `done` steps."""
    return phases if objective.members else [find_phase(phases, done - 1)]


def _list_tensors(model: nn.Module) -> Iterator[Tensor]:
    return itertools.chain(model.parameters(), model.buffers())


@dataclass
class Validations:
    """The validations of a run; with a `replica`, in tasks where there is room. Only the leader has
    the rows of tasks."""

    config: GradientFit
    step: Step
    phases: Sequence[Phase]
    worker: Worker
    progress: Progress
    average: WeightAverage | None
    replica: Replica | None
    # Not logged yet, in the order of steps: step, tokens and values, or the task that has these.
    _rows: list[tuple[dict[str, float], WorkerTask | None]] = field(default_factory=list)
    _has_noted: bool = False
    _has_hung: bool = False

    def validate(self, now: bool) -> float:
        """Validate the weights of this step, `now` or in a task; returns the seconds that training
        stopped."""
        began, done = time.perf_counter(), self.progress.step
        row: dict[str, float] = {"step": done, "tokens": self.progress.tokens}
        self.settle(0)  # frees the replica, if its task has ended
        with self.average.swap_averages(done) if self.average else contextlib.nullcontext():
            if now or self.replica is None or not self._submit(row, self.replica):
                due = select_phases(self.phases, self.config.objective, done)
                self._rows.append((row | validate(self.step, due), None))
        self.settle(done if now else 0)
        return time.perf_counter() - began

    def settle(self, before: int) -> float:
        """Log the rows that are known, and wait for those of steps before `before`; returns the
        seconds that this took."""
        began = time.perf_counter()
        while self._rows:
            row, task = self._rows[0]
            if task is not None:
                if row["step"] >= before and not task.is_done():
                    break
                row |= self._finish(task, int(row["step"]))
            log_validation(self.progress, row, self.worker.report)
            self._rows.pop(0)
        return time.perf_counter() - began

    def close(self) -> None:
        """End a task that still runs, when the run ends with an error."""
        for _, task in self._rows:
            if task is not None:
                task.close()

    def _submit(self, row: dict[str, float], replica: Replica) -> bool:
        """Start the task of `row` unless one runs or there is no room; all workers call this."""
        worker, group = self.worker, self.worker.group
        # While workers are missing, what is free is for them.
        is_whole = group.world_size == worker.compute.num_workers
        is_running = any(task for _, task in self._rows)
        if not group.from_leader(int(is_whole and not is_running and not self._has_hung)):
            return False
        replica.take_weights(self.step.model)
        task = None
        if group.leads:
            task = worker.submit(functools.partial(replica.validate, self.progress.step))
        if task is not None:
            self._rows.append((row, task))
        elif not self._has_noted:
            self._has_noted = True
            worker.report.note(
                "compute.asynchronous_validation: no machine has room for one more worker at step "
                f"{self.progress.step}, so training waits for that validation"
            )
        return group.from_leader(int(task is not None)) > 0

    def _finish(self, task: WorkerTask, done: int) -> dict[str, float]:
        """Wait for the task's values. If it fails or hangs, the leader validates the replica
        itself, and the others wait for it at the next sum; after a task that hung there are no
        more, so that this costs the time to wait once."""
        try:
            return task.result(_PATIENCE_SECONDS)
        except Exception as error:
            self._has_hung = self._has_hung or isinstance(error, TimeoutError)
            self.worker.report.note(
                f"the validation of step {done} failed in its task, so training waits for it: "
                f"{(str(error).strip() or repr(error)).splitlines()[-1]}"
            )
            replica = copy.deepcopy(self.replica)
            assert replica is not None
            return replica.validate(done, self.worker.group.device)
