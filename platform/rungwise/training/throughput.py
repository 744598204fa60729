"""Where a run is, as plain data; its metrics, step by step; and its speed.

MFU (Chowdhery et al. 2022, arXiv:2204.02311, appendix B) is relative to the rate of a large matrix
product, measured on every worker at the start: no processor reaches the peak of its data sheet.

P parts of the objective
"""

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rungwise.core.errors import UserError, format_count
from rungwise.core.stages.stage import Reporter
from rungwise.models.losses.objectives import LossSum, Objective
from rungwise.training.parallel import Group, Worker

if TYPE_CHECKING:  # which a bare machine with PyTorch lacks
    from rungwise.training.config import GradientFit
    from rungwise.training.feed import StepBatch

Values = Mapping[str, float]  # by name


@dataclass
class Progress:
    """Where a run is, as plain data."""

    step: int = 0  # updates done; the next one reads positions from step x global batch size
    tokens: int = 0  # without padding
    flops: float = 0.0  # operations for them by the counting rule; 0 if unknown
    skipped: list[int] = field(default_factory=list)  # steps whose gradient was not finite
    data_hash: str = ""  # of the instances of all steps so far (feed.py)
    data: list[list[Any]] = field(default_factory=list)  # [step, data_hash] at logged steps
    history: list[dict[str, float]] = field(default_factory=list)  # one row per logged step
    validation: list[dict[str, float]] = field(default_factory=list)
    pending: list[list[float]] = field(default_factory=list)  # a row per step since the last logged
    # Times and workers are excluded from comparison: two runs in the same state may differ in them.
    seconds: float = field(default=0.0, compare=False)  # in the loop, over all attempts
    timings: list[dict[str, float]] = field(default_factory=list, compare=False)
    saves: list[dict[str, float]] = field(default_factory=list, compare=False)
    attempts: list[dict[str, int]] = field(default_factory=list, compare=False)
    prolonged: list[dict[str, Any]] = field(default_factory=list, compare=False)  # earlier runs


@dataclass(frozen=True)
class Saved:
    """The outcome of one save. `error` is empty if the checkpoint is valid."""

    step: int
    save_seconds: float  # of the writing thread
    stall_seconds: float  # of training
    megabytes: float  # of this worker's part
    error: str = ""


def report_again(progress: Progress, report: Reporter) -> None:
    """Report all that a checkpoint remembers: workers outlive a killed driver by some steps, whose
    reports are lost. Points that arrived before are dropped (tracking)."""
    for earlier in progress.prolonged[-1:]:
        if earlier["step"] == progress.step:
            name = f"{earlier['label']}-{earlier['fingerprint']}"
            report.note(f"goes on from step {progress.step} of {name}")
    for prefix, rows in (
        ("train/", progress.history),
        ("system/", progress.timings),
        ("validation/", progress.validation),
        ("system/checkpoint_", progress.saves),
    ):
        for row in rows:
            _report_row(report, prefix, row)


def log_step(progress: Progress, values: Values, timing: Values, report: Reporter) -> None:
    """Log the metrics of the steps since the last logged one, and their times."""
    row = {"step": progress.step, "tokens": progress.tokens, **values}
    timing = {**timing, "attempts": len(progress.attempts)}
    progress.history.append(row)
    progress.timings.append(timing)
    _report_row(report, "train/", row)
    _report_row(report, "system/", timing)


def log_validation(progress: Progress, row: dict[str, float], report: Reporter) -> None:
    """Log a validation. Raises UserError if its loss is not finite."""
    if not math.isfinite(row["loss"]):
        raise UserError(
            f"the validation loss is not finite at step {row['step']}; lower "
            "pretrain.optimizer.learning_rate or raise its schedule.warmup_fraction"
        )
    progress.validation.append(row)
    _report_row(report, "validation/", row)


def log_saves(progress: Progress, saves: list[Saved], report: Reporter) -> None:
    """Log the outcomes of saves and empty their list."""
    for saved in saves:
        row = {
            "step": saved.step,
            "valid": float(not saved.error),
            "save_seconds": saved.save_seconds,
            "stall_seconds": saved.stall_seconds,
            "megabytes": saved.megabytes,
        }
        progress.saves.append(row)
        _report_row(report, "system/checkpoint_", row)
        if saved.error:
            report.note(
                f"the checkpoint of step {saved.step} is not written, the one before it stays: "
                f"{saved.error}"
            )
    saves.clear()


def check_start(values: Values, objective: Objective, words: float, report: Reporter) -> None:
    """Compare first losses with what random weights should have; `words` is that of words."""
    for part in (objective.tokens, objective.pair):
        if part is None or not objective.predicts_text:
            continue
        loss, expected = values[part.loss_key], part.expected_start(words)
        if abs(loss - expected) > part.start_tolerance:
            report.note(
                f"{part.key} loss before the first step is {loss:.3f}, expected about "
                f"{expected:.3f}: look at model.initializer_range, the labels, and the vocabulary "
                "size"
            )


def _report_row(report: Reporter, prefix: str, row: Values) -> None:
    values = {f"{prefix}{name}": value for name, value in row.items() if name != "step"}
    report.metrics(values, int(row["step"]))


COUNTING_RULE = (
    "6 FLOPs per token for each matrix weight that it is multiplied with, 12·L·D·T for attention "
    "(half if causal), none for recomputation; without padding; relative to the rate of a matrix "
    "product measured at the start"
)

_ROUNDS = 5
_SIDE_OF_CPU = 384  # one of 768 takes eight times as long and is no faster a FLOP
_SIDE_OF_GPU = 8192


def matmul_rate(
    device: torch.device, dtype: torch.dtype, clock: Callable[[], float] = time.perf_counter
) -> float:
    """FLOPs per second of a square matrix product: the median of five runs, timed by `clock`."""
    side = _SIDE_OF_GPU if device.type == "cuda" else _SIDE_OF_CPU
    # Random values: constants are multiplied faster than real data, because fewer bits change.
    generator = torch.Generator(device).manual_seed(0)
    one = torch.randn(side, side, generator=generator, device=device, dtype=dtype)
    rates = []
    for _ in range(_ROUNDS + 1):
        _synchronize(device)
        began = clock()
        torch.mm(one, one)
        _synchronize(device)
        rates.append(2 * side**3 / (clock() - began))
    return statistics.median(rates[1:])


def device_name(device: torch.device) -> str:
    """A readable name: that of the GPU, or CPU with its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} thread{'' if torch.get_num_threads() == 1 else 's'}"


def group_matmul_rate(group: Group, dtype: torch.dtype) -> float:
    """The summed rates of all workers, measured at the same time."""
    group.count(0)
    # A CPU may be shared with others, so its rate is measured in the thread's own CPU time.
    clock = time.thread_time if group.device.type == "cpu" else time.perf_counter
    rate = torch.tensor([matmul_rate(group.device, dtype, clock)], dtype=torch.float64)
    return float(group.sum(rate.to(group.device)))


@dataclass(frozen=True)
class Costs:
    """The references that throughput is measured against; None if unknown, and not reported."""

    matmul_flops_per_second: float | None = None  # of all workers together
    price_per_hour: float | None = None  # of all machines together


class Clock:
    """Wall time since the last logged step, and how much of it was not training."""

    def __init__(self, progress: Progress, costs: Costs) -> None:
        self._costs = costs
        self.restart(progress)

    def restart(self, progress: Progress) -> None:
        self._began = time.perf_counter()
        self._tokens = progress.tokens
        self._flops = progress.flops
        self._step = progress.step
        self.waited = 0.0  # for data
        self.stalled = 0.0  # by checkpoints
        self.validated = 0.0
        self.computed = 0.0  # by this worker alone, before it waits for the others

    def straggler(self, group: Group) -> dict[str, float]:
        """How far the slowest worker lags behind the median, as a share of the time, and its rank.
        All workers call it. On GPUs, where work is only queued, it sees only waits for data."""
        own = torch.zeros(group.world_size, dtype=torch.float64, device=group.device)
        own[group.rank] = self.waited + self.computed
        own = group.sum(own).cpu()
        seconds = time.perf_counter() - self._began - self.validated
        return {
            "straggler_share": float(own.max() - own.median()) / seconds,
            "slowest_rank": float(own.argmax()),
            "workers": float(group.world_size),
        }

    def timing(self, progress: Progress) -> dict[str, float]:
        """Rates since the last logged step; validation is left out."""
        seconds = time.perf_counter() - self._began - self.validated
        tokens = progress.tokens - self._tokens
        row = {
            "step": progress.step,
            "seconds": seconds,
            "step_seconds": seconds / max(1, progress.step - self._step),
            "tokens_per_second": tokens / seconds,
            "data_wait_share": self.waited / seconds,
            "checkpoint_stall_share": self.stalled / seconds,
        }
        costs = self._costs
        flops = progress.flops - self._flops
        if flops and costs.matmul_flops_per_second:
            row["matmul_flops_per_second"] = costs.matmul_flops_per_second
            row["mfu"] = flops / seconds / costs.matmul_flops_per_second
        if costs.price_per_hour is not None:
            row["cost"] = progress.seconds / 3600 * costs.price_per_hour
        return row


def totals(progress: Progress, costs: Costs) -> dict[str, float]:
    """Throughput, cost and saves over all attempts. Raises UserError if all steps were skipped."""
    rows = progress.timings
    if not rows:
        raise UserError(
            f"all {progress.step} steps were skipped, because their loss or gradient was not "
            "finite; lower pretrain.optimizer.learning_rate"
        )
    seconds = sum(row["seconds"] for row in rows)
    # Only timed steps count: a kill takes the times since the last logged step, not the tokens.
    total = {
        "step_seconds": seconds / sum(row["seconds"] / row["step_seconds"] for row in rows),
        "seconds": progress.seconds,
    }
    for name in ("tokens_per_second", "data_wait_share", "checkpoint_stall_share"):
        total[name] = sum(row[name] * row["seconds"] for row in rows) / seconds
    if progress.flops and costs.matmul_flops_per_second:
        # Attempts on other workers had other rates.
        could = [row["matmul_flops_per_second"] * row["seconds"] for row in rows]
        total["matmul_flops_per_second"] = sum(could) / seconds
        did = [row["mfu"] * most for row, most in zip(rows, could, strict=True)]
        total["mfu"] = sum(did) / sum(could)
    if costs.price_per_hour is not None:
        total["price_per_hour"] = costs.price_per_hour
        total["cost"] = progress.seconds / 3600 * costs.price_per_hour
    total["checkpoints_failed"] = sum(not row["valid"] for row in progress.saves)
    return total


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_HALF = 1 << 32


class StepTotals:
    """Sums of one step over the workers that do not depend on the model. `counts` (P,) stays on the
    device. The rest is copied to the host asynchronously; reading it waits until the device begins
    the step, not until it finishes. Only the leader's `seconds` and `ask` count."""

    def __init__(
        self, counts_P: Tensor, batch: "StepBatch", seconds: float, ask: bool, group: Group
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
    """Adds steps to a progress. The sums of a step stay on each device, a row a step, until a
    logged or saved step; then one all-reduce sums the rows, so no step waits for the host. A step
    whose gradient is not finite changes nothing and is counted."""

    def __init__(self, progress: Progress, config: "GradientFit", worker: Worker) -> None:
        self._progress = progress
        self._parts = config.objective.parts
        self._settings = config.pretrain
        self._worker = worker
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

    def gather(self) -> None:
        """Sum rows over workers. Raises UserError for too many skipped steps."""
        if not self._rows:
            return
        progress, note = self._progress, self._worker.report.note
        rows = self._worker.group.sum(torch.stack(self._rows)).tolist()
        first = progress.step - len(rows) + 1
        self._rows.clear()
        for step, row in enumerate(rows, first):
            progress.pending.append(row)
            if row[-1]:
                progress.skipped.append(step)
                note(f"step {step} is skipped, its gradient is not finite")
        skipped, most = progress.skipped, self._settings.max_skipped_steps
        if len(skipped) > most:
            last = ", ".join(str(step) for step in skipped[-5:])
            raise UserError(
                f"the loss is not finite at step {skipped[-1]}; lower "
                "pretrain.optimizer.learning_rate or raise its schedule.warmup_fraction "
                f"(skipped {format_count(len(skipped), 'step')}, the last {last}; "
                f"pretrain.max_skipped_steps is {most})"
            )

    def take(self) -> dict[str, float]:
        """Metrics of the steps since the last logged one; empty if all of them were skipped."""
        progress = self._progress
        rows, progress.pending = progress.pending, []
        progress.data.append([progress.step, progress.data_hash])
        good = [row for row in rows if not row[-1]]
        if not good:
            return {}
        *sums, _, _ = [math.fsum(column) for column in zip(*good, strict=True)]
        sums_3P = torch.tensor(sums, dtype=torch.float64).view(3, -1)
        return {
            "gradient_norm": good[-1][-2],
            **LossSum.unpacked(sums_3P, self._parts).metrics(),
            "skipped_steps": float(len(progress.skipped)),
        }
