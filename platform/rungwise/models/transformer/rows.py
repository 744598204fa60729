"""Rows of different lengths: their real places, recurrent cells over them, one vector of each.

Shapes: N rows, L tokens, D width of a state.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

# root: the sum over the square root of the length (Cer et al. 2018, arXiv:1803.11175)
Pooling = Literal["last", "mean", "max", "sum", "root"]


def real_places(length: int, lengths_N: Tensor) -> Tensor:
    """Mark the places (N, length) before each row's padding."""
    return torch.arange(length, device=lengths_N.device) < lengths_N[:, None]


def run_cells(
    cells: nn.Module,
    x_NLD: Tensor,
    lengths_N: Tensor | None,
    state: Any = None,
    weights: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, Any]:
    """Return the outputs of PyTorch's recurrent layers, zeros at padding, and their last state.

    `lengths_N` is None if no row is padded; `weights` stand for those of the same names.
    """
    if lengths_N is None:
        return functional_call(cells, dict(weights or {}), (x_NLD, state))
    # Pack, as a right-to-left direction would otherwise begin with the padding.
    packed = pack_padded_sequence(x_NLD, lengths_N.cpu(), True, enforce_sorted=False)
    output, state = functional_call(cells, dict(weights or {}), (packed, state))
    return pad_packed_sequence(output, True, total_length=x_NLD.shape[1])[0], state


def pool(states_NLD: Tensor, lengths_N: Tensor, pooling: Pooling) -> Tensor:
    """Return the vectors (N, D), whatever stands at padding, NaN included; those of empty rows are
    zeros, except of `last`, where they mean nothing."""
    if pooling == "last":
        rows_N = torch.arange(len(states_NLD), device=states_NLD.device)
        return states_NLD[rows_N, (lengths_N - 1).clamp(min=0)]
    real_NL1 = real_places(states_NLD.shape[1], lengths_N)[:, :, None]
    length_N1 = lengths_N.clamp(min=1)[:, None]
    if pooling == "max":
        lowest = torch.finfo(states_NLD.dtype).min
        highest_ND = states_NLD.masked_fill(~real_NL1, lowest).amax(1)
        return highest_ND * (lengths_N > 0)[:, None]
    sum_ND = torch.where(real_NL1, states_NLD, states_NLD.new_zeros(())).sum(1)
    divisors = {"mean": length_N1, "sum": 1, "root": length_N1.sqrt()}
    return sum_ND / divisors[pooling]
