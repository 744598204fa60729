"""Cross entropy whose gradients are computed in the forward pass, a few rows of logits at a time.

The logits of a step do not fit into memory, and computing them again in backward would be a fourth
product with the output matrix W, a tenth of a GPT-2 124M step. But the loss is a scalar: backward
only multiplies by its gradient, so each chunk of logits can be turned into its part of the
gradients at once and be dropped. The idea is that of fused linear cross entropy (Hsu et al. 2024,
"Liger Kernel", arXiv:2410.10989). With e = exp(logits - max), s its row sums and w the weights,

    d total / d hidden = (w / s) · (e - s · [target]) · W
    d total / d W      = (e - s · [target])ᵀ · (w / s) · hidden

    FusedLoss    for a CPU without the compiler, where memory bandwidth is the limit: one buffer
                 stays in the cache, is changed in place, and rows of length D are divided, not V
    ChunkedLoss  for the compiler, which fuses the passes itself, and for GPUs
    SummedLoss   of logits that exist, for a CPU without the compiler

Shapes: X tokens, R rows of a chunk, D hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


class FusedLoss(torch.autograd.Function):
    """Returns (total, correct) like `weighted_sums`, holding the logits of `rows` tokens at a time.
    `weight_PD` may have padding rows, P >= V; `bias_V` may be None. Matrix products use `dtype`,
    everything else float32 or wider."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_XD: Tensor,
        weight_PD: Tensor,
        bias_V: Tensor | None,
        targets_X: Tensor,
        weights_X: Tensor,
        vocab_size: int,
        rows: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        sums = _Sums(weight_PD, bias_V, vocab_size, rows, dtype, any(ctx.needs_input_grad[:3]))
        total = hidden_XD.new_zeros((), dtype=sums.wide)
        correct = weights_X.new_zeros((), dtype=sums.wide)
        hidden_gradients = []
        for start in range(0, len(hidden_XD), rows):
            part = slice(start, start + rows)
            chunk = sums.add(hidden_XD[part].to(dtype), targets_X[part], weights_X[part])
            total += chunk[0]
            correct += chunk[1]
            hidden_gradients.append(chunk[2])
        if sums.wants_gradients:
            ctx.has_bias = bias_V is not None
            hidden_gradient_XD = torch.cat(hidden_gradients).to(hidden_XD.dtype)
            ctx.save_for_backward(hidden_gradient_XD, sums.weight_gradient, sums.bias_gradient)
        ctx.mark_non_differentiable(correct)
        return total, correct

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, factor: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_XD, weight_PD, bias_V = ctx.saved_tensors
        return (
            hidden_XD * factor,
            weight_PD * factor,
            bias_V * factor if ctx.has_bias else None,
            *[None] * 5,
        )


class ChunkedLoss(FusedLoss):
    """`FusedLoss` in operations that torch.compile traces. Chunks depend on shapes only."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_XD: Tensor,
        weight_PD: Tensor,
        bias_V: Tensor | None,
        targets_X: Tensor,
        weights_X: Tensor,
        vocab_size: int,
        rows: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        wants_gradients = any(ctx.needs_input_grad[:3])
        wide = torch.promote_types(dtype, torch.float32)
        narrow_PD = weight_PD.to(dtype)
        beyond = (0, len(weight_PD) - vocab_size)  # the classes that are padding get no gradient
        class_V = torch.arange(vocab_size, device=hidden_XD.device)
        total = hidden_XD.new_zeros((), dtype=wide)
        correct = weights_X.new_zeros((), dtype=wide)
        weight_gradient_PD = torch.zeros_like(weight_PD)
        bias_gradient_V = None if bias_V is None else torch.zeros_like(bias_V)
        hidden_gradients = []
        for hidden_RD, targets_R, weights_R in zip(
            hidden_XD.split(rows), targets_X.split(rows), weights_X.split(rows), strict=True
        ):
            hidden_RD = hidden_RD.to(dtype)
            logits_RV = (hidden_RD @ narrow_PD.t())[:, :vocab_size].to(wide)
            if bias_V is not None:
                logits_RV = logits_RV + bias_V
            normaliser_R1 = logits_RV.logsumexp(dim=1, keepdim=True)
            target_R1 = logits_RV.gather(1, targets_R[:, None])
            total = total + ((normaliser_R1 - target_R1)[:, 0] * weights_R).sum()
            correct = correct + ((logits_RV.argmax(dim=1) == targets_R) * weights_R).sum()
            if not wants_gradients:
                continue
            is_target_RV = class_V == targets_R[:, None]
            gradient_RV = (logits_RV - normaliser_R1).exp() - is_target_RV.to(wide)
            gradient_RV = gradient_RV * weights_R[:, None]
            if bias_gradient_V is not None:
                bias_gradient_V = bias_gradient_V + gradient_RV.sum(dim=0)
            gradient_RP = functional.pad(gradient_RV.to(dtype), beyond)
            weight_gradient_PD = weight_gradient_PD + gradient_RP.t() @ hidden_RD
            hidden_gradients.append(gradient_RP @ narrow_PD)
        if wants_gradients:
            ctx.has_bias = bias_V is not None
            hidden_gradient_XD = torch.cat(hidden_gradients).to(hidden_XD.dtype)
            ctx.save_for_backward(hidden_gradient_XD, weight_gradient_PD, bias_gradient_V)
        ctx.mark_non_differentiable(correct)
        return total, correct


class SummedLoss(torch.autograd.Function):
    """Returns (total, correct) of existing logits, `rows` rows at a time. For few predicted
    positions, as in MLM, the logits fit into memory and only the passes over them cost. Forward
    saves one number per row; backward writes the gradient once."""

    @staticmethod
    def forward(
        ctx: Any, logits_XV: Tensor, targets_X: Tensor, weights_X: Tensor, rows: int
    ) -> tuple[Tensor, Tensor]:
        normaliser_X1 = logits_XV.new_empty(len(logits_XV), 1)
        right_X = torch.empty_like(targets_X, dtype=torch.bool)
        target_X1 = logits_XV.gather(1, targets_X[:, None])
        buffer_RV = logits_XV.new_empty(min(rows, len(logits_XV)), logits_XV.shape[1])
        for start in range(0, len(logits_XV), rows):
            part = slice(start, start + rows)
            logits_RV = logits_XV[part]
            shifted_RV = buffer_RV[: len(logits_RV)]
            most_R1 = logits_RV.amax(dim=1, keepdim=True)
            right_X[part] = _is_first(logits_RV, target_X1[part] >= most_R1, targets_X[part])
            torch.sub(logits_RV, most_R1, out=shifted_RV)
            normaliser_X1[part] = shifted_RV.exp_().sum(dim=1, keepdim=True).log() + most_R1
        ctx.rows = rows
        ctx.save_for_backward(logits_XV, normaliser_X1, targets_X, weights_X)
        correct = (right_X * weights_X).sum()
        ctx.mark_non_differentiable(correct)
        return ((normaliser_X1 - target_X1)[:, 0] * weights_X).sum(), correct

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, factor: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        logits_XV, normaliser_X1, targets_X, weights_X = ctx.saved_tensors
        gradient_XV = torch.empty_like(logits_XV)
        scale_X1 = (weights_X * factor)[:, None].to(logits_XV.dtype)
        for start in range(0, len(logits_XV), ctx.rows):
            part = slice(start, start + ctx.rows)
            gradient_RV = gradient_XV[part]
            torch.sub(logits_XV[part], normaliser_X1[part], out=gradient_RV)
            gradient_RV.exp_().mul_(scale_X1[part])
        gradient_XV.scatter_add_(1, targets_X[:, None], -scale_X1)
        return gradient_XV, None, None, None


class _Sums:
    """The buffer of one pass over the chunks, and the accumulated gradients."""

    def __init__(
        self,
        weight_PD: Tensor,
        bias_V: Tensor | None,
        vocab_size: int,
        rows: int,
        dtype: torch.dtype,
        wants_gradients: bool,
    ) -> None:
        self.wide = torch.promote_types(dtype, torch.float32)
        self.wants_gradients = wants_gradients
        self._weight_VD = weight_PD[:vocab_size].to(dtype)
        self._bias_V = bias_V
        self._logits_RV = weight_PD.new_empty(rows, vocab_size, dtype=dtype)
        self._wide_RV = (
            self._logits_RV
            if dtype == self.wide
            else self._logits_RV.new_empty(rows, vocab_size, dtype=self.wide)
        )
        self._vocab_size = vocab_size
        self.weight_gradient: Tensor | None = None
        self.bias_gradient: Tensor | None = None
        self._product_VD: Tensor | None = None
        if wants_gradients:
            self.weight_gradient = torch.zeros_like(weight_PD)
            if weight_PD.dtype != dtype:
                self._product_VD = torch.empty_like(self._weight_VD)
            self.bias_gradient = None if bias_V is None else torch.zeros_like(bias_V)

    def add(
        self, hidden_RD: Tensor, targets_R: Tensor, weights_R: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return total, correct, and the gradient of these rows."""
        R = len(hidden_RD)
        narrow_RV, wide_RV = self._logits_RV[:R], self._wide_RV[:R]
        torch.mm(hidden_RD, self._weight_VD.t(), out=narrow_RV)
        if narrow_RV is not wide_RV:
            wide_RV.copy_(narrow_RV)
        if self._bias_V is not None:
            wide_RV += self._bias_V
        target_R1 = wide_RV.gather(1, targets_R[:, None])
        most_R1 = wide_RV.amax(dim=1, keepdim=True)
        correct = (_is_first(wide_RV, target_R1 >= most_R1, targets_R) * weights_R).sum()
        wide_RV.sub_(most_R1).exp_()
        sum_R1 = wide_RV.sum(dim=1, keepdim=True)
        total = ((sum_R1.log() + most_R1 - target_R1)[:, 0] * weights_R).sum()
        if self.weight_gradient is None:
            return total, correct, None
        wide_RV.scatter_add_(1, targets_R[:, None], -sum_R1)
        scale_R1 = weights_R[:, None] / sum_R1
        if narrow_RV is not wide_RV:
            narrow_RV.copy_(wide_RV)
        if self.bias_gradient is not None:
            self.bias_gradient += (scale_R1.t().to(self.wide) @ wide_RV)[0]
        scaled_RD = (hidden_RD * scale_R1).to(hidden_RD.dtype)
        into_VD = self.weight_gradient[: self._vocab_size]
        if into_VD.dtype == narrow_RV.dtype:
            into_VD.addmm_(narrow_RV.t(), scaled_RD)
        else:
            assert self._product_VD is not None
            into_VD += torch.mm(narrow_RV.t(), scaled_RD, out=self._product_VD)
        return total, correct, (narrow_RV @ self._weight_VD) * scale_R1


def _is_first(logits_RV: Tensor, is_most_R1: Tensor, targets_R: Tensor) -> Tensor:
    """Whether the target is the first maximum, as in `argmax`. 16-bit logits often tie; checking
    only rows whose target is a maximum is cheap."""
    is_first_R = is_most_R1[:, 0].clone()
    (candidates,) = is_first_R.nonzero(as_tuple=True)
    is_first_R[candidates] = logits_RV[candidates].argmax(dim=1) == targets_R[candidates]
    return is_first_R
