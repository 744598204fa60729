"""Metrics of the steps, summed over the workers, and what happens to steps that go wrong.

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

The first twenty steps never stand out. All workers decide the same from the same sums.

P parts of the objective
"""

import hashlib
import math
import statistics
from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from rungwise.core.errors import UserError
from rungwise.core.wording import format_count
from rungwise.models.losses.objectives import LossSum
from rungwise.training.config import GradientFit
from rungwise.training.feed import StepBatch
from rungwise.training.parallel import Group, Worker
from rungwise.training.throughput import Progress

WINDOW = 100
ENOUGH = 20  # losses needed before one can stand out
_HALF = 1 << 32
_FLAGS = 2  # values at the end of a row: norm, skipped


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


class StepMetrics:
    """Adds steps to a progress; the rows of the latest are still on the devices."""

    def __init__(self, progress: Progress, config: GradientFit, worker: Worker) -> None:
        self._progress = progress
        self._parts = config.objective.parts
        self._settings = config.pretrain
        self._worker = worker
        names = [each.name for each in config.objective.members]
        self._turns = self._settings.draw_turns(names) if self._settings.mixture else None
        # (3 P + 2,) each: the sums, then the norm, and whether the step was skipped.
        self._rows: list[Tensor] = []

    def enter(
        self, totals: StepTotals, sums_3P: Tensor, norm: Tensor, flops_per_token: float | None
    ) -> bool:
        """Count the step; returns True if it is time to ask for notices."""
        progress = self._progress
        skipped = ~norm.isfinite()
        sums = torch.where(skipped, torch.zeros_like(sums_3P), sums_3P).flatten()
        # These are the same on all workers, and rows will be summed, so only the leader's count.
        flags = torch.stack((norm.double(), skipped.double()))
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
        """Sum the rows over all workers; report skipped steps and spikes. Returns the newest
        `loss`, if there is a row with one. Raises UserError if too many were skipped."""
        if not self._rows:
            return {}
        progress, note = self._progress, self._worker.report.note
        rows = self._worker.group.sum(torch.stack(self._rows)).tolist()
        first = progress.step - len(rows) + 1
        self._rows.clear()
        newest: dict[str, float] = {}
        for step, row in enumerate(rows, first):
            progress.pending.append(row)
            if row[-1]:
                progress.skipped.append(step)
                note(f"step {step} is skipped, its gradient is not finite")
                continue
            newest["loss"] = loss = self._metrics(row)["loss"]
            if is_spike(loss, self._peers(step), self._settings.spike_factor):
                progress.spikes.append(step)
                note(f"the loss of step {step} stands out: {loss:.3f}")
            progress.recent.append(loss)
            del progress.recent[:-WINDOW]
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
            "gradient_norm": good[-1][-_FLAGS],
            **self._metrics(total),
            "skipped_steps": float(len(progress.skipped)),
            "spikes": float(len(progress.spikes)),
        }

    def _metrics(self, row: list[float]) -> dict[str, float]:
        sums_3P = torch.tensor(row[:-_FLAGS], dtype=torch.float64).view(3, -1)
        return LossSum.unpacked(sums_3P, self._parts).metrics()


def is_spike(loss: float, recent: Sequence[float], factor: float) -> bool:
    return len(recent) >= ENOUGH and loss > factor * statistics.median(recent)


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
