"""Metrics of the steps: summed over the workers, kept in the progress, told by the leader.

Before the forward pass one all-reduce adds up what depends on the batch alone: the counts that the
loss is divided by, tokens, the hash of the rows. What depends on the forward pass stays on each
device, a row a step, until somebody wants to know (a logged or a saved step): then one all-reduce
adds up the rows since the last time. So no step waits for the host, and all workers know the same.

P parts of the objective
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from rungwise.core.context import Reporter
from rungwise.core.errors import UserError
from rungwise.models.objectives import LossSum, Objective
from rungwise.training.checkpoint import Checkpoints
from rungwise.training.feed import StepBatch
from rungwise.training.parallel import Group
from rungwise.training.progress import Progress, check_skipped, is_spike, remember
from rungwise.training.throughput import Clock

_HALF = 1 << 32


class StepTotals:
    """Sums of one step over the workers that do not depend on the model.

    `counts` (P,) stays on the device. The rest is copied to the host meanwhile, and reading it
    waits for the device to begin with the step and not to finish it. `seconds` and `ask` are the
    leader's.
    """

    def __init__(
        self, counts_P: Tensor, batch: StepBatch, seconds: float, ask: bool, group: Group
    ) -> None:
        leader = (seconds, float(ask)) if group.leads else (0.0, 0.0)
        # A hash in two halves: their sums over any number of workers are exact in float64.
        halves = (batch.data_hash % _HALF, batch.data_hash // _HALF)
        known = torch.tensor([*leader, batch.tokens, *halves], dtype=torch.float64)
        sums = group.sum(torch.cat((known.to(group.device, non_blocking=True), counts_P.double())))
        self.counts = sums[len(known) :].to(counts_P.dtype)
        self._copied: torch.cuda.Event | None = None
        self._host = sums
        if sums.is_cuda:
            self._host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
            self._host.copy_(sums, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
            self._copied = copied

    def read(self) -> tuple[float, bool, int, int]:
        """Seconds, whether to ask for notices, tokens, and the hash of the step's rows."""
        if self._copied is not None:
            self._copied.synchronize()
        seconds, ask, tokens, low, high = self._host[:5].tolist()
        return seconds, ask > 0, int(tokens), (int(low) + int(high) * _HALF) % _HALF**2


class StepMetrics:
    """Enters steps into a progress, with the rows that are still on the devices."""

    def __init__(
        self,
        progress: Progress,
        parts: tuple[str, ...],
        group: Group,
        spike_factor: float,
        max_skipped_steps: int,
    ) -> None:
        self._progress = progress
        self._parts = parts
        self._group = group
        self._spike_factor = spike_factor
        self._max_skipped_steps = max_skipped_steps
        self._rows: list[Tensor] = []  # (3 P + 2,) each: sums, norm, whether it was skipped

    def enter(
        self, totals: StepTotals, sums_3P: Tensor, norm: Tensor, flops_per_token: float | None
    ) -> bool:
        """Count the step; True if it is time to ask for notices."""
        progress = self._progress
        skipped = ~norm.isfinite()
        kept = torch.where(skipped, torch.zeros_like(sums_3P), sums_3P).flatten()
        # These two are the same on all workers, and the rows will be added up.
        told = torch.stack((norm.double(), skipped.double())) * self._group.leads
        self._rows.append(torch.cat((kept, told.nan_to_num())))
        progress.seconds, ask, tokens, data_hash = totals.read()
        progress.step += 1
        progress.tokens += tokens
        progress.flops += tokens * (flops_per_token or 0.0)
        before = progress.data_hash.encode()
        rolled = hashlib.sha256(before + data_hash.to_bytes(8, "little"))
        progress.data_hash = rolled.hexdigest()[:32]
        return ask

    def gather(self, report: Reporter) -> None:
        """Bring the rows of all workers to all; name what is wrong with them.

        Raises UserError if too many steps were skipped.
        """
        if not self._rows:
            return
        progress = self._progress
        rows = self._group.sum(torch.stack(self._rows)).tolist()
        first = progress.step - len(rows) + 1
        self._rows.clear()
        named = []
        for step, row in enumerate(rows, first):
            progress.pending.append(row)
            if row[-1]:
                progress.skipped.append(step)
                named.append(f"step {step} is skipped, its gradient is not finite")
                continue
            loss = self.metrics(self._sums(row), self._parts)["loss"]
            if is_spike(loss, progress.recent, self._spike_factor):
                progress.spikes.append(step)
                named.append(f"the loss of step {step} stands out: {loss:.3f}")
            remember(loss, progress.recent)
        for message in named if self._group.leads else []:
            report.note(message)
        check_skipped(progress.skipped, self._max_skipped_steps)

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
            "gradient_norm": good[-1][-2],
            **self.metrics(self._sums(total), self._parts),
            "skipped_steps": float(len(progress.skipped)),
            "spikes": float(len(progress.spikes)),
        }

    @staticmethod
    def metrics(sums_3P: Tensor, parts: tuple[str, ...]) -> dict[str, float]:
        """Losses and accuracies of such sums."""
        return LossSum.unpacked(sums_3P, parts).metrics()

    def _sums(self, row: list[float]) -> Tensor:
        return torch.tensor(row[:-2], dtype=torch.float64).view(3, -1)


def log_step(
    progress: Progress,
    values: dict[str, float],
    rate: float,
    clock: Clock,
    total_steps: int,
    report: Reporter,
) -> None:
    row = {"step": progress.step, "tokens": progress.tokens, "learning_rate": rate, **values}
    timing = clock.timing(progress)
    progress.history.append(row)
    progress.timings.append(timing)
    _report_row(report, "train", row)
    _report_row(report, "throughput", timing)
    report.progress(
        progress.step,
        total_steps,
        loss=values["loss"],
        **{"tokens/s": timing["tokens_per_second"]},
        **({"mfu": timing["mfu"]} if "mfu" in timing else {}),
    )


def report_saves(
    checkpoints: Checkpoints, progress: Progress, report: Reporter, group: Group
) -> None:
    for saved in checkpoints.settled:
        progress.saves.append(
            {
                "step": saved.step,
                "valid": float(not saved.error),
                "save_seconds": saved.save_seconds,
                "stall_seconds": saved.stall_seconds,
                "megabytes": saved.megabytes,
            }
        )
        if not group.leads:
            continue
        _report_row(report, "checkpoint", progress.saves[-1])
        if saved.error:
            report.note(
                f"the checkpoint of step {saved.step} is not written, the one before it stays: "
                f"{saved.error}"
            )
    checkpoints.settled.clear()


def record_validation(
    progress: Progress, values: dict[str, float], report: Reporter, group: Group
) -> None:
    if not math.isfinite(values["loss"]):
        raise UserError(
            f"the validation loss is not finite at step {progress.step}; lower "
            "pretrain.optimizer.learning_rate or raise its schedule.warmup_fraction"
        )
    row = {"step": progress.step, "tokens": progress.tokens, **values}
    progress.validation.append(row)
    if group.leads:
        _report_row(report, "validation", row)


def _report_row(report: Reporter, prefix: str, row: dict[str, float]) -> None:
    values = {f"{prefix}/{name}": value for name, value in row.items() if name != "step"}
    report.metrics(values, int(row["step"]))


def report_again(progress: Progress, report: Reporter) -> None:
    """Tell all that a checkpoint remembers: workers outlive a killed driver by some steps, and what
    they reported then reached nobody. Points that arrived before are dropped (tracking.py)."""
    for prefix, rows in (
        ("train", progress.history),
        ("throughput", progress.timings),
        ("validation", progress.validation),
        ("checkpoint", progress.saves),
    ):
        for row in rows:
            _report_row(report, prefix, row)


def check_start(
    values: dict[str, float],
    objective: Objective,
    vocab_size: int,
    report: Reporter,
    group: Group,
) -> None:
    if not group.leads:
        return
    for part in (objective.tokens, objective.pair):
        if part is None:
            continue
        loss, expected = values[part.loss_key], part.expected_start(vocab_size)
        if abs(loss - expected) > part.start_tolerance:
            report.note(
                f"{part.key} loss before the first step is {loss:.3f}, expected about "
                f"{expected:.3f} (ln {part.num_classes or 'V'}): look at "
                "model.initializer_range, the labels, and the vocabulary size"
            )
