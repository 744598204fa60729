"""Cross entropy over a large vocabulary at every position, without holding all logits.

Above `MOST_LOGITS`, tokens are processed in chunks, and each chunk is turned into its part of the
gradients in the forward pass (fused linear cross entropy: Hsu et al. 2024, "Liger Kernel",
arXiv:2410.10989), which saves computing its logits again. With e = exp(logits - max), s its row
sums and w the weights,

    d total / d hidden = (w / s) · (e - s · [target]) · W
    d total / d W      = (e - s · [target])ᵀ · (w / s) · hidden

Shapes: X tokens, R rows of a chunk, D hidden, V vocabulary, P rows of the padded output matrix.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rungwise.models.device import is_gpu

_PRODUCT_MULTIPLE = 64
MOST_LOGITS = 1 << 30  # held at a time: 4 GiB in float32
_CACHED_LOGITS = 1 << 23  # 32 MiB; with fewer the output matrix is read too often


class FusedLoss(torch.autograd.Function):
    """Returns (total, correct) like `sum_weighted_losses`, holding the logits of `rows` tokens at
    a time. `weight_PD` may have padding rows, P >= V; `bias_V` may be None. Matrix products use
    `dtype`, everything else float32 or wider. `sums_of` makes the sums: `InCache` or `Traced`."""

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
        sums_of: "type[Sums]",
    ) -> tuple[Tensor, Tensor]:
        sums = sums_of(weight_PD, bias_V, vocab_size, dtype, any(ctx.needs_input_grad[:3]))
        total = hidden_XD.new_zeros((), dtype=sums.wide)
        correct = weights_X.new_zeros((), dtype=sums.wide)
        hidden_gradients = []
        for start in range(0, len(hidden_XD), rows):
            part = slice(start, start + rows)
            chunk = sums.add(hidden_XD[part].to(dtype), targets_X[part], weights_X[part])
            total = total + chunk[0]
            correct = correct + chunk[1]
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
            *[None] * 6,
        )


class SummedLoss(torch.autograd.Function):
    """Returns (total, correct) of existing logits, such as those of MLM, `rows` rows at a time."""

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


class Sums(ABC):
    """One pass over the chunks, and the accumulated gradients."""

    def __init__(
        self,
        weight_PD: Tensor,
        bias_V: Tensor | None,
        vocab_size: int,
        dtype: torch.dtype,
        wants_gradients: bool,
    ) -> None:
        self.wide = torch.promote_types(dtype, torch.float32)
        self.wants_gradients = wants_gradients
        self._weight_PD = weight_PD.to(dtype)
        self._bias_V = bias_V
        self._vocab_size = vocab_size
        self.weight_gradient: Tensor | None = None
        self.bias_gradient: Tensor | None = None
        if wants_gradients:
            self.weight_gradient = torch.zeros_like(weight_PD)
            self.bias_gradient = None if bias_V is None else torch.zeros_like(bias_V)

    @abstractmethod
    def add(
        self, hidden_RD: Tensor, targets_R: Tensor, weights_R: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return total, correct, and the gradient of these rows."""


class Traced(Sums):
    """Sums in operations that torch.compile traces; their number depends on shapes only."""

    def add(
        self, hidden_RD: Tensor, targets_R: Tensor, weights_R: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        V, P = self._vocab_size, len(self._weight_PD)
        logits_RV = (hidden_RD @ self._weight_PD.t())[:, :V].to(self.wide)
        if self._bias_V is not None:
            logits_RV = logits_RV + self._bias_V
        normaliser_R1 = logits_RV.logsumexp(dim=1, keepdim=True)
        target_R1 = logits_RV.gather(1, targets_R[:, None])
        total = ((normaliser_R1 - target_R1)[:, 0] * weights_R).sum()
        correct = ((logits_RV.argmax(dim=1) == targets_R) * weights_R).sum()
        if self.weight_gradient is None:
            return total, correct, None
        is_target_RV = torch.arange(V, device=hidden_RD.device) == targets_R[:, None]
        gradient_RV = (logits_RV - normaliser_R1).exp() - is_target_RV.to(self.wide)
        gradient_RV = gradient_RV * weights_R[:, None]
        if self.bias_gradient is not None:
            self.bias_gradient = self.bias_gradient + gradient_RV.sum(dim=0)
        # Classes that are padding get no gradient.
        gradient_RP = functional.pad(gradient_RV.to(hidden_RD.dtype), (0, P - V))
        self.weight_gradient = self.weight_gradient + gradient_RP.t() @ hidden_RD
        return total, correct, gradient_RP @ self._weight_PD


class InCache(Sums):
    """Sums in one buffer, which stays in the cache of a CPU and is changed in place."""

    _logits: Tensor | None = None
    _product: Tensor | None = None

    def add(
        self, hidden_RD: Tensor, targets_R: Tensor, weights_R: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        R, V, dtype = len(hidden_RD), self._vocab_size, hidden_RD.dtype
        weight_VD = self._weight_PD[:V]
        if self._logits is None:  # the first chunk is the longest
            self._logits = hidden_RD.new_empty(R, V)
            self._wide_logits = self._logits.to(self.wide)
        narrow_RV, wide_RV = self._logits[:R], self._wide_logits[:R]
        torch.mm(hidden_RD, weight_VD.t(), out=narrow_RV)
        if dtype != self.wide:
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
        if dtype != self.wide:
            narrow_RV.copy_(wide_RV)
        if self.bias_gradient is not None:
            self.bias_gradient += (scale_R1.t().to(self.wide) @ wide_RV)[0]
        scaled_RD = (hidden_RD * scale_R1).to(dtype)
        into_VD = self.weight_gradient[:V]
        if into_VD.dtype == dtype:
            into_VD.addmm_(narrow_RV.t(), scaled_RD)
        else:
            if self._product is None:
                self._product = torch.empty_like(weight_VD)
            into_VD += torch.mm(narrow_RV.t(), scaled_RD, out=self._product)
        return total, correct, (narrow_RV @ weight_VD) * scale_R1


def _is_first(logits_RV: Tensor, is_most_R1: Tensor, targets_R: Tensor) -> Tensor:
    """Whether the target is the first maximum, as in `argmax`. 16-bit logits often tie; checking
    only rows whose target is a maximum is cheap."""
    is_first_R = is_most_R1[:, 0].clone()
    (candidates,) = is_first_R.nonzero(as_tuple=True)
    is_first_R[candidates] = logits_RV[candidates].argmax(dim=1) == targets_R[candidates]
    return is_first_R


class TokenSums(NamedTuple):
    """Sums over the tokens of a batch; `total` carries the graph."""

    total: Tensor  # () nats
    correct: Tensor  # ()


def sum_weighted_losses(logits_XV: Tensor, targets_X: Tensor, weights_X: Tensor) -> TokenSums:
    """Sum weighted cross entropies and correct predictions, in float32 or wider."""
    logits_XV = at_least_float32(logits_XV)
    if _is_plain_cpu(logits_XV):
        rows = max(1, _CACHED_LOGITS // logits_XV.shape[1])
        outputs = SummedLoss.apply(logits_XV, targets_X, weights_X, rows)
        assert isinstance(outputs, tuple)
        return TokenSums(*outputs)
    losses_X = functional.cross_entropy(logits_XV, targets_X, reduction="none")
    right_X = logits_XV.detach().argmax(dim=-1) == targets_X
    return TokenSums((losses_X * weights_X).sum(), (right_X * weights_X).sum())


def token_sums(
    hidden_XD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_X: Tensor,
    weights_X: Tensor,
) -> TokenSums:
    """Compute `sum_weighted_losses` of `output_logits`, holding at most `MOST_LOGITS` at a time."""
    X, V = len(hidden_XD), len(weight_VD)
    sums_of = Traced
    rows = -(-X // max(1, min(-(-X * V // MOST_LOGITS), X)))
    if _is_plain_cpu(hidden_XD):
        # A chunk passes over its logits and the gradient of the whole output matrix; with fewer
        # rows than D the second would cost more.
        sums_of = InCache
        rows = max(_CACHED_LOGITS // V, hidden_XD.shape[1])
        rows = max(1, min(X, rows, MOST_LOGITS // V))
    elif rows == X:
        logits_XV = output_logits(hidden_XD, weight_VD, bias_V)
        return sum_weighted_losses(logits_XV, targets_X, weights_X)
    weight_PD = _pad(hidden_XD, weight_VD)
    if not torch.is_grad_enabled():  # parameters still say that they want gradients
        hidden_XD, weight_PD = hidden_XD.detach(), weight_PD.detach()
        bias_V = None if bias_V is None else bias_V.detach()
    kind = hidden_XD.device.type
    # Autocast does not apply inside custom autograd functions.
    narrow = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if narrow else hidden_XD.dtype
    with torch.autocast(kind, enabled=False):
        outputs = FusedLoss.apply(
            hidden_XD, weight_PD, bias_V, targets_X, weights_X, V, rows, dtype, sums_of
        )
    assert isinstance(outputs, tuple)
    return TokenSums(*outputs)


def output_logits(hidden: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
    """Return the logits (..., V). On a GPU the matrix is padded to a multiple of 64 rows for a
    faster product, and the extra logits are cut off."""
    V, weight_PD = len(weight_VD), _pad(hidden, weight_VD)
    if bias_V is not None:
        bias_V = functional.pad(bias_V, (0, len(weight_PD) - V))
    return functional.linear(hidden, weight_PD, bias_V)[..., :V]


def _pad(hidden: Tensor, weight_VD: Tensor) -> Tensor:
    if not is_gpu(hidden):
        return weight_VD
    return functional.pad(weight_VD, (0, 0, 0, -len(weight_VD) % _PRODUCT_MULTIPLE))


def at_least_float32(logits: Tensor) -> Tensor:
    """Convert 16-bit numbers to float32, for sums; wider types stay."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _is_plain_cpu(tensor: Tensor) -> bool:
    return tensor.is_cpu and not torch.compiler.is_compiling()
