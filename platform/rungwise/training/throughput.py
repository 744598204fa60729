"""Speed: tokens per second without padding, and the share of the processor's measured rate.

MFU (model FLOPs utilisation, Chowdhery et al. 2022, arXiv:2204.02311, appendix B) is the operations
that a step needs, divided by those that the processor could do in that time. The rule of
`flops_per_token` counts the operations: 6 for each weight of a matrix a token meets, and attention;
recomputation does not count. The processor's rate is that of a large matrix product in the same
precision, measured on every worker at once when the run starts, because no processor reaches the
peak of its data sheet.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rungwise.core.errors import UserError
from rungwise.training.parallel import Group
from rungwise.training.progress import Progress

COUNTING_RULE = (
    "6 FLOPs per token for each matrix weight that it is multiplied with, 12·L·D·T for attention "
    "(half if causal), none for recomputation; without padding; relative to the rate of a matrix "
    "product measured at the start"
)

_ROUNDS = 5
_SIDE_OF_CPU = 768
_SIDE_OF_GPU = 8192


def matmul_rate(
    device: torch.device, dtype: torch.dtype, clock: Callable[[], float] = time.perf_counter
) -> float:
    """FLOPs per second of a square matrix product on `device`: the median of five runs, after one
    to warm up, timed by `clock`."""
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
            row["cost_per_million_tokens"] = (
                costs.price_per_hour / 3600 / row["tokens_per_second"] * 1e6
            )
        return row


def totals(progress: Progress, costs: Costs) -> dict[str, float]:
    """Throughput, cost and saves over all attempts of a run.

    Raises UserError if no step was timed because each was skipped.
    """
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
    good = [row for row in progress.saves if row["valid"]]
    if good:
        total["checkpoint_save_seconds"] = statistics.fmean(r["save_seconds"] for r in good)
        total["checkpoint_stall_seconds"] = statistics.fmean(r["stall_seconds"] for r in good)
    total["checkpoints_failed"] = len(progress.saves) - len(good)
    return total


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
