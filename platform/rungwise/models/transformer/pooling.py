"""One vector of the states of a row.

Shapes: N rows, L tokens, D width of a state.
"""

from typing import Literal

import torch
from torch import Tensor

# root: the sum over the square root of the length (Cer et al. 2018, arXiv:1803.11175)
Pooling = Literal["last", "mean", "max", "sum", "root"]


def real_places(length: int, lengths_N: Tensor) -> Tensor:
    """Mark the places (N, length) before each row's padding."""
    return torch.arange(length, device=lengths_N.device) < lengths_N[:, None]


def pool(states_NLD: Tensor, lengths_N: Tensor, pooling: Pooling) -> Tensor:
    """Return the vectors (N, D), whatever stands at padding; those of empty rows are zeros, except
    of `last`, where they mean nothing."""
    if pooling == "last":
        rows_N = torch.arange(len(states_NLD), device=states_NLD.device)
        return states_NLD[rows_N, (lengths_N - 1).clamp(min=0)]
    real_NL1 = real_places(states_NLD.shape[1], lengths_N)[:, :, None]
    length_N1 = lengths_N.clamp(min=1)[:, None]
    if pooling == "max":
        lowest = torch.finfo(states_NLD.dtype).min
        highest_ND = states_NLD.masked_fill(~real_NL1, lowest).amax(1)
        return highest_ND * (lengths_N > 0)[:, None]
    sum_ND = (states_NLD * real_NL1).sum(1)
    divisors = {"mean": length_N1, "sum": 1, "root": length_N1.sqrt()}
    return sum_ND / divisors[pooling]
