"""Cross entropy over a large vocabulary at every position, without holding every logit.

A micro-batch of 65,536 tokens and 50,304 classes has 3.3e9 logits, 13 GB in float32, and backward
wants as much again. Above `most_logits` the tokens are therefore taken in chunks, and the logits of
a chunk are thrown away and computed again in backward: one more of the three products of the output
matrix, about a tenth of a GPT-2 124M step. Below it nothing is computed twice. Chunks are cut by
shape alone, so that torch.compile sees a fixed number of them in one graph.

On a CPU that is not compiling, gradients are made on the way forward instead, in chunks that fit
into a cache, and nothing is computed twice (fused_loss.py). The compiler needs no such help: it
fuses the passes over the logits by itself.

Shapes: X tokens, D hidden, V vocabulary, P rows of the output matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from rungwise.models.device import is_gpu
from rungwise.models.fused_loss import FusedLoss, SummedLoss

_PRODUCT_MULTIPLE = 64
MOST_LOGITS = 1 << 30  # 4 GiB in float32
_CACHED_LOGITS = 1 << 23  # 32 MiB; fewer, and the output matrix is read too often


class TokenSums(NamedTuple):
    """Sums over the tokens of a batch; `total` carries the graph."""

    total: Tensor  # () nats
    correct: Tensor  # ()


def padded_size(vocab_size: int, multiple: int) -> int:
    """The vocabulary rounded up: matrix products like multiples of 64."""
    return -(-vocab_size // multiple) * multiple


def weighted_sums(logits_XV: Tensor, targets_X: Tensor, weights_X: Tensor) -> TokenSums:
    """The weighted sum of cross entropies, and of right guesses, in float32 or wider."""
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
    """`weighted_sums` of `output_logits`, with at most `most_logits` of them at a time."""
    X = len(hidden_XD)
    if _is_plain_cpu(hidden_XD):
        # Each chunk walks over its logits and over the gradient of the whole output matrix; with
        # fewer rows than D the second would cost more.
        rows = max(_CACHED_LOGITS // vocab_size, hidden_XD.shape[1])
        rows = max(1, min(X, rows, most_logits // vocab_size))
        dtype = _product_dtype(hidden_XD)
        with torch.autocast("cpu", enabled=False):
            outputs = FusedLoss.apply(
                hidden_XD,
                weight_PD,
                bias_V,
                targets_X,
                weights_X,
                vocab_size,
                rows,
                dtype,
            )
        assert isinstance(outputs, tuple)
        return TokenSums(*outputs)

    def sums_of(hidden_XD: Tensor, targets_X: Tensor, weights_X: Tensor) -> TokenSums:
        logits_XV = output_logits(hidden_XD, weight_PD, bias_V, vocab_size)
        return weighted_sums(logits_XV, targets_X, weights_X)

    num_chunks = min(-(-X * vocab_size // most_logits), X)
    if num_chunks <= 1:
        return sums_of(hidden_XD, targets_X, weights_X)
    size = -(-X // num_chunks)
    chunks = zip(hidden_XD.split(size), targets_X.split(size), weights_X.split(size), strict=True)
    sums = [_recomputed(sums_of, *chunk) for chunk in chunks]
    return TokenSums(
        torch.stack([part.total for part in sums]).sum(),
        torch.stack([part.correct for part in sums]).sum(),
    )


def output_logits(
    hidden: Tensor, weight_PD: Tensor, bias_V: Tensor | None, vocab_size: int
) -> Tensor:
    """Logits (..., V).

    A GPU's product likes multiples of 64, so rows of zeros are added to the matrix on the way into
    it and their logits cut off behind it. The copy is the one that makes the matrix half as wide,
    and no weight, gradient, moment or file ever has these rows.
    """
    rows = len(weight_PD)
    if is_gpu(hidden):
        rows = padded_size(rows, _PRODUCT_MULTIPLE)
        weight_PD = functional.pad(weight_PD, (0, 0, 0, rows - len(weight_PD)))
    if bias_V is not None:
        bias_V = functional.pad(bias_V, (0, rows - vocab_size))
    return functional.linear(hidden, weight_PD, bias_V)[..., :vocab_size]


def at_least_float32(logits: Tensor) -> Tensor:
    """Sums of half-width numbers are taken in float32; wider ones stay as they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _recomputed(function: Callable[..., TokenSums], *chunk: Tensor) -> TokenSums:
    if not torch.is_grad_enabled():
        return function(*chunk)
    output = checkpoint(function, *chunk, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(output, tuple)
    return TokenSums(*output)


def _is_plain_cpu(tensor: Tensor) -> bool:
    return tensor.is_cpu and not torch.compiler.is_compiling()


def _product_dtype(hidden: Tensor) -> torch.dtype:
    """The type that autocast would multiply in; it does not reach into operations of our own."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype
