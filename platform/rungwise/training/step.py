"""One optimizer step, as the loop runs it and as benchmarks and tests measure it.

    step = Step(model, objective, exchange, optimizers, config, group, bfloat16, compile=True)
    sums, norm, verdict = step(micro_batches, counts, learning_rate)

Nothing in it waits for the device, except for losses that need the vectors of the whole batch
(`with_vectors`). The device also decides whether the step counts: if its gradient is not finite, or
if it is an outlier, weights and moments stay as they are; in the first case the states of streams
do too.

P parts of the objective

Metrics of the steps, summed over the workers, and what happens to steps that go wrong.

Before the forward pass, one all-reduce sums what depends on the batch alone: the counts that divide
the loss, tokens, the hash of the rows. What depends on the forward pass stays on each device, one
row per step, until it is needed (at a logged or saved step); then one all-reduce sums the rows
since the last time. So no step waits for the host, and all workers have the same values.

not finite   A step whose gradient holds a NaN or an infinity changes neither weights nor moments.
             It is counted and named; more than `max_skipped_steps` of them end the run. (With cross
             entropy, the loss is not finite exactly if its gradient is not.)
spike        Each gradient is clipped to `optimizer.clip_norm`, which bounds the effect of one
             batch. A step whose loss exceeds `spike_factor` times the median of the hundred before
             it, in a mixture of those of its own objective, is counted and named, and nothing else.
outlier      With `skip_outliers`, a step whose loss exceeds `loss_factor` times that median, or
             whose gradient norm before clipping exceeds `norm_factor` times theirs, changes neither
             weights nor moments. It is counted, named and enters the medians like any other step,
             so a lasting change of level soon becomes the median. (Chowdhery et al. 2022,
             arXiv:2204.02311, section 5.1, rewound and skipped batches by hand.)

The first twenty steps never stand out. All workers decide the same from the same sums.

P parts of the objective
"""

import functools
import hashlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rungwise.core.errors import UserError
from rungwise.core.wording import format_count
from rungwise.instances.batch import Batch
from rungwise.models.losses.objectives import BatchShapes, Losses, LossSum, Objective
from rungwise.training.config import GradientFit, OutlierConfig
from rungwise.training.feed import StepBatch
from rungwise.training.optimizer import (
    MuonConfig,
    OptimizerConfig,
    Optimizers,
    clip_gradients,
    set_learning_rate,
    update,
)
from rungwise.training.parallel import Exchange, Group, Worker
from rungwise.training.state import StreamStates
from rungwise.training.throughput import Progress

_MOST_GRAPHS = 64  # compiled graphs of one function
# Takes the sums (3, P) of this worker and the norm (); returns the loss over all workers and
# whether to skip the step, both ().
Judge = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Step:
    """Forward, backward, clipping and update of `model` in place."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        exchange: Exchange,
        optimizers: Optimizers,
        config: OptimizerConfig | MuonConfig,
        group: Group,
        bfloat16: bool,
        compile: bool = False,
        judge: Judge | None = None,
    ) -> None:
        """With `bfloat16`, matrix products use it. Without `judge`, no step is an outlier."""
        self.model = model
        self.objective = objective
        self._exchange = exchange
        self._optimizers = optimizers
        self._config = config
        self.group = group
        self._bfloat16 = bfloat16
        # Host time in forward and backward of the last step, before waiting for other workers.
        self.computed_seconds = 0.0
        self._judge = judge
        self._compiled = _compile(objective, model, group) if compile else None

    def losses(self, part: Batch[Tensor]) -> LossSum:
        """The sums over a micro-batch, from one forward pass."""
        with self._autocast():
            if self._compiled is None:
                return self.objective(self.model, part)
            (total, correct, state), counts = self._compiled(part)
            return LossSum(total, counts, correct, self.objective.parts, state)

    def _autocast(self) -> torch.autocast:
        kind = self.group.device.type
        return torch.autocast(kind, dtype=torch.bfloat16, enabled=self._bfloat16)

    def with_vectors(
        self, parts: Iterable[Batch[Tensor]], seeds: Sequence[int] = ()
    ) -> Iterable[Batch[Tensor]]:
        """Add the vectors of the whole global batch to its micro-batches, if losses need them.
        The forward passes that compute them draw the dropout of `seeds` again."""
        if not self.objective.needs_whole_batch:
            return parts
        parts, group = list(parts), self.group
        if group.world_size == len(parts) == 1:
            return parts
        device = group.device
        forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with forked, torch.no_grad(), self._autocast():
            own = [self.objective.outputs(self.model, part) for part in _seed_dropout(parts, seeds)]
        by_rank = group.gather(own)
        whole_2ND = torch.cat([each for one in by_rank for each in one], dim=1).to(device)
        begin = sum(each.shape[1] for one in by_rank[: group.rank] for each in one)
        whole: list[Batch[Tensor]] = []
        for part in parts:
            place_B = torch.arange(begin, begin + len(part.ids), device=device)
            vectors: Any = {"vectors": whole_2ND, "place": place_B}
            whole.append(replace(part, **vectors))
            begin += len(part.ids)
        return whole

    def __call__(
        self,
        parts: Sequence[Batch[Tensor]],
        counts_P: Tensor,
        learning_rate: float,
        streams: StreamStates | None = None,
        seeds: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Take one step over micro-batches that are on the device.

        Losses are divided by `counts_P`, those of the whole global batch. Each of
        `seeds` seeds the dropout of an equal number of micro-batches. Returns the sums (3, P)
        of `LossSum.packed` on this worker, the gradient norm (), and the judge's result.
        """
        device = self.group.device
        sums_3P = torch.zeros(3, len(self.objective.parts), dtype=torch.float64, device=device)
        whole = list(self.with_vectors(parts, seeds))
        began = time.perf_counter()
        for number, part in enumerate(_seed_dropout(whole, seeds)):
            with self._exchange.backward(last=number == len(parts) - 1):
                losses = self.losses(part)
                losses.loss(counts_P).backward()
            sums_3P += losses.packed()
            if streams is not None:
                streams.leave(part, losses.state)
        self.computed_seconds = time.perf_counter() - began
        self._exchange.finish()
        if self.objective.mixture:
            # Momentum goes on moving the weights that this step's objective does not use. They
            # need a gradient, of zeros, to move alike on every worker.
            for parameter in self.model.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        norm = clip_gradients(self.model, self._config)
        for optimizer in self._optimizers:
            set_learning_rate(optimizer, learning_rate)
        loss, outlier = torch.zeros_like(norm), torch.zeros_like(norm, dtype=torch.bool)
        if self._judge is not None:
            loss, outlier = self._judge(sums_3P, norm)
        update(self._optimizers, norm.isfinite() & ~outlier)
        if streams is not None:
            streams.settle(norm.isfinite())
        self._exchange.zero()
        return sums_3P, norm, (loss, outlier)


def _seed_dropout(parts: Sequence[Batch[Tensor]], seeds: Sequence[int]) -> Iterator[Batch[Tensor]]:
    """Yield `parts`, and seed dropout before the first part of each logical worker."""
    each = len(parts) // max(1, len(seeds))
    for number, part in enumerate(parts):
        if seeds and number % each == 0:
            torch.manual_seed(seeds[number // each])
        yield part


def _compile(
    objective: Objective, model: nn.Module, group: Group
) -> Callable[[Batch[Tensor]], tuple[Losses, Tensor]]:
    """Compile the losses of a forward pass and their counts as one graph, from ids to sums.

    If workers exchange gradients, each function that the model's classes name in `graphs`
    (embeddings, each block, heads) is a graph, and so are the losses: the backward of a single
    graph returns all gradients at its end, when it is too late to overlap their exchange.

    Shapes are static except for the number of documents, and of rows of each sort if a batch has
    two. There are few of them, but more than the compiler's default limit per function: two phases
    have two lengths, and batches of training and of validation two numbers of rows each.
    """
    torch._dynamo.config.recompile_limit = _MOST_GRAPHS

    # None: a size that has changed once may change again.
    dynamic = None if objective.shapes is BatchShapes.ROWS_VARY else False
    graph = functools.partial(torch.compile, fullgraph=True, dynamic=dynamic)
    losses = objective.losses
    if group.world_size > 1:
        losses = graph(losses)
        for module in model.modules():
            for name in getattr(module, "graphs", ()):
                setattr(module, name, graph(getattr(module, name)))

    def run(part: Batch[Tensor]) -> tuple[Losses, Tensor]:
        return losses(objective.outputs(model, part), part), objective.counts(part)

    whole = graph(run) if group.world_size == 1 else run

    def of_any_size(part: Batch[Tensor]) -> tuple[Losses, Tensor]:
        for tensor in part.of_varying_size():
            if len(tensor) > 1:  # for 1 the compiler makes a graph of its own
                torch._dynamo.mark_dynamic(tensor, 0)
        return whole(part)

    return of_any_size


T = TypeVar("T")
WINDOW = 100
ENOUGH = 20  # losses needed before one can stand out
_HALF = 1 << 32
_FLAGS = 4  # values at the end of a row: loss, norm, outlier, skipped


class StepTotals:
    """Sums of one step over the workers that do not depend on the model.

    `counts` (P,) stays on the device. The rest is copied to the host asynchronously; reading it
    waits until the device begins the step, not until it finishes. Only the leader's `seconds` and
    `ask` count.
    """

    def __init__(
        self, counts_P: Tensor, batch: StepBatch, seconds: float, ask: bool, group: Group
    ) -> None:
        leader = (seconds, float(ask)) if group.leads else (0.0, 0.0)
        # A hash in two halves, whose sums over any number of workers are exact in float64.
        halves = (batch.data_hash % _HALF, batch.data_hash // _HALF)
        on_gpu = group.device.type == "cuda"
        values = torch.tensor(
            [*leader, batch.tokens, *halves], dtype=torch.float64, pin_memory=on_gpu
        )
        sums = group.sum(torch.cat((values.to(group.device, non_blocking=True), counts_P.double())))
        self.counts = sums[len(values) :].to(counts_P.dtype)
        self._copied: torch.cuda.Event | None = None
        self._host = sums
        if sums.is_cuda:
            self._host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
            self._host.copy_(sums, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> tuple[float, bool, int, int]:
        """Seconds, whether to ask for notices, tokens, and the hash of the step's rows."""
        if self._copied is not None:
            self._copied.synchronize()
        seconds, ask, tokens, low, high = self._host[:5].tolist()
        return seconds, ask > 0, int(tokens), (int(low) + int(high) * _HALF) % _HALF**2


class Outliers:
    """The rule of `skip_outliers`, with the loss and norm of each previous step on the device."""

    def __init__(
        self, config: OutlierConfig, before: Sequence[Sequence[float]], device: torch.device
    ) -> None:
        """`before` are rows of [loss, norm], oldest first."""
        factors = [factor or math.inf for factor in (config.loss_factor, config.norm_factor)]
        self._factors_2 = torch.tensor(factors, dtype=torch.float64, device=device)
        rows = [[math.nan] * 2] * (WINDOW - len(before)) + [list(row) for row in before]
        self._before = torch.tensor(rows, dtype=torch.float64, device=device)  # (WINDOW, 2)

    def stands_out(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Whether the step is an outlier, (); if finite, it enters the medians of the next."""
        values_2 = torch.stack((loss.double(), norm.double()))
        median_2 = torch.nanquantile(self._before, 0.5, dim=0)
        enough = self._before[-ENOUGH].isfinite().all()
        above = (values_2 > self._factors_2 * median_2).any()
        finite = values_2.isfinite().all()
        window = torch.cat((self._before[1:], values_2[None]))
        self._before = torch.where(finite, window, self._before)
        return above & enough & finite


class StepMetrics:
    """Adds steps to a progress; the rows of the latest are still on the devices."""

    def __init__(self, progress: Progress, config: GradientFit, worker: Worker) -> None:
        self._progress = progress
        self._parts = config.objective.parts
        self._settings = config.pretrain
        self._worker = worker
        rule, device = self._settings.skip_outliers, worker.group.device
        self._outliers = None if rule is None else Outliers(rule, progress.compared, device)
        names = [each.name for each in config.objective.members]
        self._turns = self._settings.draw_turns(names) if self._settings.mixture else None
        # (3 P + 4,) each: the sums, then the step's loss, norm, and flags for outlier and skipped.
        # The loss is known only if outliers are skipped.
        self._rows: list[Tensor] = []

    def judge(self, sums_3P: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of the step over all workers, and whether to skip the step, both ()."""
        assert self._outliers is not None
        total_P, count_P, _ = self._worker.group.sum(sums_3P.clone()).unbind(0)
        loss = (total_P / count_P.clamp(min=1)).sum()
        return loss, self._outliers.stands_out(loss, norm)

    def enter(
        self,
        totals: StepTotals,
        sums_3P: Tensor,
        norm: Tensor,
        verdict: tuple[Tensor, Tensor],
        flops_per_token: float | None,
    ) -> bool:
        """Count the step; returns True if it is time to ask for notices."""
        progress = self._progress
        loss, outlier = verdict
        skipped = ~norm.isfinite()
        sums = torch.where(skipped, torch.zeros_like(sums_3P), sums_3P).flatten()
        # These are the same on all workers, and rows will be summed, so only the leader's count.
        flags = torch.stack([each.double() for each in (loss, norm, outlier, skipped)])
        flags *= self._worker.group.leads
        self._rows.append(torch.cat((sums, flags.nan_to_num())))
        progress.seconds, ask, tokens, data_hash = totals.read()
        progress.step += 1
        progress.tokens += tokens
        progress.flops += tokens * (flops_per_token or 0.0)
        before = progress.data_hash.encode()
        rolled = hashlib.sha256(before + data_hash.to_bytes(8, "little"))
        progress.data_hash = rolled.hexdigest()[:32]
        return ask

    def gather(self) -> dict[str, float]:
        """Sum the rows over all workers; report skipped steps, outliers and spikes. Returns the
        newest `loss`, if there is a row with one. Raises UserError if too many were skipped."""
        if not self._rows:
            return {}
        progress, note = self._progress, self._worker.report.note
        rows = self._worker.group.sum(torch.stack(self._rows)).tolist()
        first = progress.step - len(rows) + 1
        self._rows.clear()
        newest: dict[str, float] = {}
        for step, row in enumerate(rows, first):
            progress.pending.append(row)
            judged_loss, norm, outlier, skipped = row[-_FLAGS:]
            if skipped:
                progress.skipped.append(step)
                note(f"step {step} is skipped, its gradient is not finite")
                continue
            if self._outliers is not None:
                remember([judged_loss, norm], progress.compared)
            if outlier:
                progress.outliers.append(step)
                note(
                    f"step {step} is left out, it stands out: loss {judged_loss:.3f}, norm of the "
                    f"gradient {norm:.3g}"
                )
            newest["loss"] = loss = self._metrics(row)["loss"]
            if is_spike(loss, self._peers(step), self._settings.spike_factor):
                progress.spikes.append(step)
                note(f"the loss of step {step} stands out: {loss:.3f}")
            remember(loss, progress.recent)
        check_skipped(progress.skipped, self._settings.max_skipped_steps)
        return newest

    def _peers(self, step: int) -> Sequence[float]:
        """The losses that this step's is compared with: in a mixture, those of its objective."""
        recent, turns = self._progress.recent, self._turns
        if turns is None:
            return recent
        skipped = set(self._progress.skipped)
        before = (each for each in range(step - 1, 0, -1) if each not in skipped)
        pairs = zip(islice(before, len(recent)), reversed(recent), strict=True)
        return [loss for each, loss in pairs if turns[each - 1] == turns[step - 1]]

    def take(self) -> dict[str, float]:
        """Metrics of the steps since the last logged one; empty if all of them were skipped."""
        progress = self._progress
        rows, progress.pending = progress.pending, []
        progress.data.append([progress.step, progress.data_hash])
        good = [row for row in rows if not row[-1]]
        if not good:
            return {}
        total = [math.fsum(column) for column in zip(*good, strict=True)]
        return {
            "gradient_norm": good[-1][1 - _FLAGS],
            **self._metrics(total),
            "skipped_steps": float(len(progress.skipped)),
            "spikes": float(len(progress.spikes)),
            "outlier_steps": float(len(progress.outliers)),
        }

    def _metrics(self, row: list[float]) -> dict[str, float]:
        sums_3P = torch.tensor(row[:-_FLAGS], dtype=torch.float64).view(3, -1)
        return LossSum.unpacked(sums_3P, self._parts).metrics()


def is_spike(loss: float, recent: Sequence[float], factor: float) -> bool:
    return len(recent) >= ENOUGH and loss > factor * statistics.median(recent)


def remember(value: T, recent: list[T]) -> None:
    """Append `value` to the window that the next one is compared with."""
    recent.append(value)
    del recent[:-WINDOW]


def check_skipped(skipped: Sequence[int], most: int) -> None:
    """Raise UserError if more than `most` steps had to be skipped."""
    if len(skipped) > most:
        last = ", ".join(str(step) for step in skipped[-5:])
        raise UserError(
            f"the loss is not finite at step {skipped[-1]}; lower "
            "pretrain.optimizer.learning_rate or raise its schedule.warmup_fraction "
            f"(skipped {format_count(len(skipped), 'step')}, the last {last}; "
            f"pretrain.max_skipped_steps is {most})"
        )
