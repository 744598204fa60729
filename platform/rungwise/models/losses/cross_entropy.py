"""Cross entropy over a large vocabulary at every position, without holding all logits.

A micro-batch of 65,536 tokens and 50,304 classes has 3.3e9 logits, 13 GB in float32, and backward
needs as much again. Above `most_logits`, tokens are therefore processed in chunks, and gradients
are computed in the forward pass (fused_loss.py). On a CPU without the compiler all logits are, in
chunks that fit the cache.

Shapes: X tokens, D hidden, V vocabulary, P rows of the output matrix.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rungwise.models.device import is_gpu
from rungwise.models.losses.fused_loss import FusedLoss, InCache, SummedLoss, Traced

_PRODUCT_MULTIPLE = 64
MOST_LOGITS = 1 << 30  # 4 GiB in float32
_CACHED_LOGITS = 1 << 23  # 32 MiB; with fewer the output matrix is read too often


class TokenSums(NamedTuple):
    """Sums over the tokens of a batch; `total` carries the graph."""

    total: Tensor  # () nats
    correct: Tensor  # ()


def padded_size(vocab_size: int, multiple: int) -> int:
    """Round the vocabulary up: matrix products are faster at multiples of 64."""
    return -(-vocab_size // multiple) * multiple


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
    weight_PD: Tensor,
    bias_V: Tensor | None,
    targets_X: Tensor,
    weights_X: Tensor,
    vocab_size: int,
    most_logits: int,
) -> TokenSums:
    """Compute `weighted_sums` of `output_logits`, holding at most `most_logits` at a time."""
    X = len(hidden_XD)
    sums_of = Traced
    rows = -(-X // max(1, min(-(-X * vocab_size // most_logits), X)))
    if _is_plain_cpu(hidden_XD):
        # A chunk passes over its logits and the gradient of the whole output matrix; with fewer
        # rows than D the second would cost more.
        sums_of = InCache
        rows = max(_CACHED_LOGITS // vocab_size, hidden_XD.shape[1])
        rows = max(1, min(X, rows, most_logits // vocab_size))
    elif rows == X:
        return sum_weighted_losses(
            output_logits(hidden_XD, weight_PD, bias_V, vocab_size), targets_X, weights_X
        )
    weight_PD = _pad(hidden_XD, weight_PD)
    if not torch.is_grad_enabled():  # parameters still say that they want gradients
        hidden_XD, weight_PD = hidden_XD.detach(), weight_PD.detach()
        bias_V = None if bias_V is None else bias_V.detach()
    kind = hidden_XD.device.type
    # Autocast does not apply inside custom autograd functions.
    narrow = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if narrow else hidden_XD.dtype
    with torch.autocast(kind, enabled=False):
        outputs = FusedLoss.apply(
            hidden_XD, weight_PD, bias_V, targets_X, weights_X, vocab_size, rows, dtype, sums_of
        )
    assert isinstance(outputs, tuple)
    return TokenSums(*outputs)


def output_logits(
    hidden: Tensor, weight_PD: Tensor, bias_V: Tensor | None, vocab_size: int
) -> Tensor:
    """Return the logits (..., V). On a GPU the matrix is padded to a multiple of 64 rows for a
    faster product, and the extra logits are cut off. No weight, gradient, optimizer state or file
    has these rows."""
    weight_PD = _pad(hidden, weight_PD)
    if bias_V is not None:
        bias_V = functional.pad(bias_V, (0, len(weight_PD) - vocab_size))
    return functional.linear(hidden, weight_PD, bias_V)[..., :vocab_size]


def _pad(hidden: Tensor, weight_PD: Tensor) -> Tensor:
    if not is_gpu(hidden):
        return weight_PD
    rows = padded_size(len(weight_PD), _PRODUCT_MULTIPLE)
    return functional.pad(weight_PD, (0, 0, 0, rows - len(weight_PD)))


def at_least_float32(logits: Tensor) -> Tensor:
    """Convert 16-bit numbers to float32, for sums; wider types stay."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _is_plain_cpu(tensor: Tensor) -> bool:
    return tensor.is_cpu and not torch.compiler.is_compiling()
