"""Metrics of the steps: summed over the workers, kept in the progress, reported by the leader.

Before the forward pass, one all-reduce sums what depends on the batch alone: the counts that divide
the loss, tokens, the hash of the rows. What depends on the forward pass stays on each device, one
row per step, until it is needed (at a logged or saved step); then one all-reduce sums the rows
since the last time. So no step waits for the host, and all workers have the same values.

P parts of the objective
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from rungwise.core.errors import UserError
from rungwise.core.stages.context import Reporter
from rungwise.models.losses.objectives import LossSum, Objective
from rungwise.training.checkpoint import Checkpoints
from rungwise.training.feed import StepBatch
from rungwise.training.outliers import Outliers
from rungwise.training.parallel import Group
from rungwise.training.progress import Progress, check_skipped, is_spike, remember
from rungwise.training.throughput import Clock

_HALF = 1 << 32
_TOLD = 4  # values at the end of a row: loss, norm, outlier, skipped


class StepTotals:
    """Sums of one step over the workers that do not depend on the model.

    `counts` (P,) stays on the device. The rest is copied to the host asynchronously; reading it
    waits until the device begins the step, not until it finishes. `seconds` and `ask` are the
    leader's.
    """

    def __init__(
        self, counts_P: Tensor, batch: StepBatch, seconds: float, ask: bool, group: Group
    ) -> None:
        leader = (seconds, float(ask)) if group.leads else (0.0, 0.0)
        # A hash in two halves, whose sums over any number of workers are exact in float64.
        halves = (batch.data_hash % _HALF, batch.data_hash // _HALF)
        on_gpu = group.device.type == "cuda"
        known = torch.tensor(
            [*leader, batch.tokens, *halves], dtype=torch.float64, pin_memory=on_gpu
        )
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
    """Adds steps to a progress; the rows of the latest are still on the devices."""

    def __init__(
        self,
        progress: Progress,
        parts: tuple[str, ...],
        group: Group,
        spike_factor: float,
        max_skipped_steps: int,
        outliers: Outliers | None = None,
    ) -> None:
        self._progress = progress
        self._parts = parts
        self._group = group
        self._spike_factor = spike_factor
        self._max_skipped_steps = max_skipped_steps
        self._outliers = outliers
        # (3 P + 4,) each: the sums, then the step's loss, norm, and flags for outlier and skipped.
        # The loss is known only if outliers are skipped.
        self._rows: list[Tensor] = []

    def stands_out(self, sums_3P: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of the step over all workers, and whether to skip the step, both ()."""
        assert self._outliers is not None
        total_P, count_P, _ = self._group.sum(sums_3P.clone()).unbind(0)
        loss = (total_P / count_P.clamp(min=1)).sum()
        return loss, self._outliers.stands_out(loss, norm)

    def enter(
        self,
        totals: StepTotals,
        sums_3P: Tensor,
        norm: Tensor,
        stood_out: tuple[Tensor, Tensor],
        flops_per_token: float | None,
    ) -> bool:
        """Count the step; returns True if it is time to ask for notices."""
        progress = self._progress
        loss, outlier = stood_out
        skipped = ~norm.isfinite()
        kept = torch.where(skipped, torch.zeros_like(sums_3P), sums_3P).flatten()
        # These are the same on all workers, and rows will be summed, so only the leader's count.
        told = torch.stack([each.double() for each in (loss, norm, outlier, skipped)])
        told *= self._group.leads
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
        """Sum the rows over all workers; report skipped steps, outliers and spikes. Raises
        UserError if too many steps were skipped."""
        if not self._rows:
            return
        progress = self._progress
        rows = self._group.sum(torch.stack(self._rows)).tolist()
        first = progress.step - len(rows) + 1
        self._rows.clear()
        named = []
        for step, row in enumerate(rows, first):
            progress.pending.append(row)
            told_loss, norm, outlier, skipped = row[-_TOLD:]
            if skipped:
                progress.skipped.append(step)
                named.append(f"step {step} is skipped, its gradient is not finite")
                continue
            if self._outliers is not None:
                remember([told_loss, norm], progress.compared)
            if outlier:
                progress.outliers.append(step)
                named.append(
                    f"step {step} is left out, it stands out: loss {told_loss:.3f}, norm of the "
                    f"gradient {norm:.3g}"
                )
            loss = self.metrics(self._sums(row), self._parts)["loss"]
            if is_spike(loss, progress.recent, self._spike_factor):
                progress.spikes.append(step)
                named.append(f"the loss of step {step} stands out: {loss:.3f}")
            remember(loss, progress.recent)
        for message in named if self._group.leads else []:
            report.note(message)
        check_skipped(progress.skipped, self._max_skipped_steps)

    def newest_loss(self) -> dict[str, float]:
        """The loss of the newest step that was gathered and not taken, as `loss`, if any."""
        good = [row for row in self._progress.pending if not row[-1]]
        return {"loss": self.metrics(self._sums(good[-1]), self._parts)["loss"]} if good else {}

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
            "gradient_norm": good[-1][1 - _TOLD],
            **self.metrics(self._sums(total), self._parts),
            "skipped_steps": float(len(progress.skipped)),
            "spikes": float(len(progress.spikes)),
            "outlier_steps": float(len(progress.outliers)),
        }

    @staticmethod
    def metrics(sums_3P: Tensor, parts: tuple[str, ...]) -> dict[str, float]:
        """Losses and accuracies from sums (3, P)."""
        return LossSum.unpacked(sums_3P, parts).metrics()

    def _sums(self, row: list[float]) -> Tensor:
        return torch.tensor(row[:-_TOLD], dtype=torch.float64).view(3, -1)


def log_step(
    progress: Progress,
    values: dict[str, float],
    rate: float,
    clock: Clock,
    total_steps: int,
    straggler: dict[str, float],
    report: Reporter,
) -> None:
    row = {"step": progress.step, "tokens": progress.tokens, "learning_rate": rate, **values}
    timing = clock.timing(progress) | straggler | {"attempts": len(progress.attempts)}
    progress.history.append(row)
    progress.timings.append(timing)
    _report_row(report, "train/", row)
    _report_row(report, "system/", timing)
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
        _report_row(report, "system/checkpoint_", progress.saves[-1])
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
        _report_row(report, "validation/", row)


def _report_row(report: Reporter, prefix: str, row: dict[str, float]) -> None:
    values = {f"{prefix}{name}": value for name, value in row.items() if name != "step"}
    report.metrics(values, int(row["step"]))


def report_again(progress: Progress, report: Reporter) -> None:
    """Report all that a checkpoint remembers: workers outlive a killed driver by some steps, whose
    reports are lost. Points that arrived before are dropped (sender.py)."""
    for prefix, rows in (
        ("train/", progress.history),
        ("system/", progress.timings),
        ("validation/", progress.validation),
        ("system/checkpoint_", progress.saves),
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
        if part is None or not objective.predicts_text:
            continue
        loss, expected = values[part.loss_key], part.expected_start(vocab_size)
        if abs(loss - expected) > part.start_tolerance:
            report.note(
                f"{part.key} loss before the first step is {loss:.3f}, expected about "
                f"{expected:.3f} (ln {part.num_classes or 'V'}): look at "
                "model.initializer_range, the labels, and the vocabulary size"
            )
