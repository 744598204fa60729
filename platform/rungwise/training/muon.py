"""Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"): the update
of a matrix is its momentum made nearly orthogonal, so that every direction moves by as much.

As `torch.optim.Muon` with `match_rms_adamw`, but for three things. Matrices that share a product
(`StackedLinear`: queries, keys and values; the halves of a gated MLP) are taken apart: together,
the one with the largest gradient takes the step of all. On a CPU the iteration is in float32, which
is faster there than bfloat16 and rounds less. And whether a step counts is read on the device.

The iteration is steep where singular values are small, so the last bits of a sum over workers come
out of it enlarged. docs/how-to/pretraining.md says how far runs on other numbers of workers come
apart; on the same number they are equal bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rungwise.training.sharded import is_sharded, local_rows

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's: steepest at 0, singular values in 0.7 .. 1.2
_ITERATIONS = 5
_EPSILON = 1e-7


def orthogonalised(matrix: Tensor) -> Tensor:
    """About UVᵀ of `matrix` = USVᵀ, by Newton-Schulz iterations."""
    x = matrix.to(torch.bfloat16 if matrix.is_cuda else torch.float32)
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / x.norm().clamp(min=_EPSILON)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; a root mean square of about 0.2 · lr, as AdamW's updates
    have (Liu et al. 2025, arXiv:2502.16982).

    `sizes` are the rows of the matrices that a parameter holds, for those that hold several.
    `found_inf` may be set before a step: 1 leaves everything as it is, 0 does not.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        sizes: Mapping[Tensor, tuple[int, ...]],
        lr: float,
        weight_decay: float,
        momentum: float,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(parameters, defaults)
        self._sizes = sizes
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)

    def _step(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum, start = local_rows(state["momentum_buffer"])
        weight, _ = local_rows(parameter)
        mine, _ = local_rows(gradient)
        rate: Any = group["lr"]
        if self.found_inf is not None:
            # The momentum in place of a gradient that is not finite: it stays what it is.
            mine = torch.where(self.found_inf > 0, momentum, mine)
            rate = rate * (1 - self.found_inf)
        momentum.lerp_(mine, 1 - group["momentum"])
        update = _gathered(mine.lerp(momentum, group["momentum"]), parameter)
        parts = update.split(self._sizes.get(parameter, (len(update),)))
        steps = [orthogonalised(part) * (0.2 * math.sqrt(max(part.shape))) for part in parts]
        step = torch.cat(steps)[start : start + len(weight)].to(weight.dtype)
        weight.mul_(1 - rate * group["weight_decay"]).sub_(step * rate)


def _gathered(rows: Tensor, parameter: Tensor) -> Tensor:
    """The whole of what is cut as `parameter` is; `rows` itself where that is not cut."""
    if not is_sharded(parameter):
        return rows
    from torch.distributed.tensor import DTensor  # a second to import, and most runs need it not

    mesh, shape = parameter.device_mesh, parameter.shape
    cut = DTensor.from_local(
        rows, mesh, parameter.placements, shape=shape, stride=parameter.stride()
    )
    return cut.full_tensor()
