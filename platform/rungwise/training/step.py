"""One optimizer step, as the loop runs it and as benchmarks and tests measure it.

    step = Step(model, objective, exchange, optimizers, config, group, bfloat16, compile=True)
    sums, norm, stood_out = step(micro_batches, counts, learning_rate)

Nothing in it waits for the device, unless losses compare vectors (`together`). Whether the step
counts is decided there as well: one whose gradient is not finite, or that stands out, leaves
weights and moments unchanged; the former also leaves the states.

P parts of the objective
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rungwise.instances.batch import Batch
from rungwise.models.losses.objectives import LossSum, Objective
from rungwise.training.optimizer import (
    MuonConfig,
    OptimizerConfig,
    Optimizers,
    clip_gradients,
    set_learning_rate,
    update,
)
from rungwise.training.parallel import Exchange, Group, compiled

if TYPE_CHECKING:  # a bare machine with PyTorch has no safetensors
    from rungwise.training.streams import StreamStates

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
        """With `bfloat16`, matrix products use it. Without `judge`, no step stands out."""
        self.model = model
        self.objective = objective
        self._exchange = exchange
        self._optimizers = optimizers
        self._config = config
        self._group = group
        self._bfloat16 = bfloat16
        # Host time in forward and backward of the last step, before waiting for other workers.
        self.computed_seconds = 0.0
        self._judge = judge or _never
        self._compiled = compiled(objective, model, group) if compile else None

    def losses(self, part: Batch[Tensor]) -> LossSum:
        """The sums over a micro-batch, from one forward pass."""
        with self._autocast():
            if self._compiled is None:
                return self.objective(self.model, part)
            (total, correct, state), counts = self._compiled(part)
            return LossSum(total, counts, correct, self.objective.parts, state)

    def _autocast(self) -> torch.autocast:
        kind = self._group.device.type
        return torch.autocast(kind, dtype=torch.bfloat16, enabled=self._bfloat16)

    def together(
        self, parts: Iterable[Batch[Tensor]], seeds: Sequence[int] = ()
    ) -> Iterable[Batch[Tensor]]:
        """The micro-batches of a global batch, with its vectors if losses compare them. Forward
        passes over them draw the dropout of `seeds` again."""
        if not self.objective.compares:
            return parts
        parts, group = list(parts), self._group
        if group.world_size == len(parts) == 1:
            return parts
        device = group.device
        forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with forked, torch.no_grad(), self._autocast():
            mine = [self.objective.outputs(self.model, part) for part in _drawn(parts, seeds)]
        everyone = group.gathered(mine)
        whole_2ND = torch.cat([each for one in everyone for each in one], dim=1).to(device)
        begin = sum(each.shape[1] for one in everyone[: group.rank] for each in one)
        told: list[Batch[Tensor]] = []
        for part in parts:
            place_B = torch.arange(begin, begin + len(part.ids), device=device)
            whole: Any = {"vectors": whole_2ND, "place": place_B}
            told.append(replace(part, **whole))
            begin += len(part.ids)
        return told

    def __call__(
        self,
        parts: Sequence[Batch[Tensor]],
        counts_P: Tensor,
        learning_rate: float,
        states: StreamStates | None = None,
        seeds: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Take one step over micro-batches that are on the device.

        Losses are divided by `counts_P`, those of the whole global batch. Dropout is drawn by
        `seeds`, each of which serves as many micro-batches. Returns the sums (3, P)
        of `LossSum.packed` on this worker, the gradient norm (), and the judge's result.
        """
        device = self._group.device
        sums_3P = torch.zeros(3, len(self.objective.parts), dtype=torch.float64, device=device)
        told = list(self.together(parts, seeds))
        began = time.perf_counter()
        for number, part in enumerate(_drawn(told, seeds)):
            with self._exchange.backward(last=number == len(parts) - 1):
                losses = self.losses(part)
                losses.loss(counts_P).backward()
            sums_3P += losses.packed()
            if states is not None:
                states.leave(part, losses.state)
        self.computed_seconds = time.perf_counter() - began
        self._exchange.finish()
        norm = clip_gradients(self.model, self._config)
        for optimizer in self._optimizers:
            set_learning_rate(optimizer, learning_rate)
        loss, outlier = self._judge(sums_3P, norm)
        update(self._optimizers, norm.isfinite() & ~outlier)
        if states is not None:
            states.settle(norm.isfinite())
        self._exchange.zero()
        return sums_3P, norm, (loss, outlier)


def _drawn(parts: Sequence[Batch[Tensor]], seeds: Sequence[int]) -> Iterator[Batch[Tensor]]:
    """Yield `parts`, and begin the draw of dropout anew for each logical worker's."""
    each = len(parts) // max(1, len(seeds))
    for number, part in enumerate(parts):
        if seeds and number % each == 0:
            torch.manual_seed(seeds[number // each])
        yield part


def _never(sums_3P: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(norm), torch.zeros_like(norm, dtype=torch.bool)
