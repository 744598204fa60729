"""Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"): the update
of a matrix is its momentum made nearly orthogonal, so that every direction moves equally far.

As `torch.optim.Muon` with `match_rms_adamw`, with three differences. Matrices that share a product
(`StackedLinear`: queries, keys and values; the halves of a gated MLP) are orthogonalised apart:
together, the one with the largest gradient would dominate the step. Matrices of one shape are
iterated as one batch, in bfloat16 if the run's products are, else in float32. And whether a step
counts is read on the device.

The iteration amplifies small singular values, and with them the last bits of a sum over workers.
docs/how-to/pretraining.md says how far runs with different numbers of workers diverge; with the
same number they are equal bit for bit.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rungwise.training.state import is_sharded, local_rows

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's: steepest at 0, singular values in 0.7 .. 1.2
_ITERATIONS = 5
_EPSILON = 1e-7
_AT_ONCE = 1 << 25  # numbers: a sharded worker gathers whole matrices, which takes memory


def orthogonalise(matrices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Approximate UVᵀ of each matrix USVᵀ in (N, rows, columns), by Newton-Schulz iterations."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = (x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_EPSILON)).to(dtype)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised and scaled to a root mean square of about 0.2 · lr, that of
    AdamW's updates (Liu et al. 2025, arXiv:2502.16982).

    `sizes` maps parameters that stack several matrices to the rows of each; `dtype` is that of the
    iteration. `found_inf` may be set before a step: 1 leaves everything unchanged, 0 does not.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        sizes: Mapping[Tensor, tuple[int, ...]],
        lr: float,
        weight_decay: float,
        momentum: float,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(parameters, defaults)
        self._sizes = sizes
        self._dtype = dtype
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            waiting: dict[nn.Parameter, Tensor] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    waiting[parameter] = self._direction(parameter, parameter.grad, group)
                if sum(each.numel() for each in waiting.values()) >= _AT_ONCE:
                    self._move(waiting, group)
                    waiting = {}
            self._move(waiting, group)

    def _direction(
        self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]
    ) -> Tensor:
        """The Nesterov direction after this gradient, with the rows of all workers."""
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum, _ = local_rows(state["momentum_buffer"])
        own, _ = local_rows(gradient)
        if self.found_inf is not None:
            # The momentum replaces a non-finite gradient, and so stays unchanged.
            own = torch.where(self.found_inf > 0, momentum, own)
        momentum.lerp_(own, 1 - group["momentum"])
        return _gather(own.lerp(momentum, group["momentum"]), parameter)

    def _move(self, directions: Mapping[nn.Parameter, Tensor], group: dict[str, Any]) -> None:
        parts = [
            part
            for parameter, direction in directions.items()
            for part in direction.split(self._sizes.get(parameter, (len(direction),)))
        ]
        alike: dict[torch.Size, list[int]] = {}
        for number, part in enumerate(parts):
            alike.setdefault(part.shape, []).append(number)
        for shape, numbers in alike.items():
            whole = torch.stack([parts[number] for number in numbers])
            steps = orthogonalise(whole, self._dtype) * (0.2 * math.sqrt(max(shape)))
            for number, step in zip(numbers, steps, strict=True):
                parts[number] = step
        rate: Any = group["lr"]
        if self.found_inf is not None:
            rate = rate * (1 - self.found_inf)
        rest = iter(parts)
        for parameter in directions:
            weight, start = local_rows(parameter)
            count = len(self._sizes.get(parameter, (0,)))
            step = torch.cat([next(rest) for _ in range(count)])[start : start + len(weight)]
            weight.mul_(1 - rate * group["weight_decay"]).sub_(step.to(weight.dtype) * rate)


def _gather(rows: Tensor, parameter: Tensor) -> Tensor:
    """The whole tensor of which `rows` is a shard, cut as `parameter` is; `rows` if it is not."""
    if not is_sharded(parameter):
        return rows
    from torch.distributed.tensor import DTensor  # a second to import, and most runs do not need it

    mesh, shape = parameter.device_mesh, parameter.shape
    sharded = DTensor.from_local(
        rows, mesh, parameter.placements, shape=shape, stride=parameter.stride()
    )
    return sharded.full_tensor()
