"""Rotary positions (Su et al. 2021, "RoFormer", arXiv:2104.09864): queries and keys are rotated by
an angle proportional to their position, so their product depends on the distance.

Unit i of the first half of a head and unit i of the second form a pair, as in Hugging Face
transformers. Only differences matter, so positions run through a packed row; documents do not see
each other anyway.

Shapes: B batch, T sequence, N heads, H head size.
"""

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]  # cosines and sines (T, H)


def rotation(T: int, head_size: int, base: float, device: torch.device) -> Rotation:
    """Return the cosines and sines of the angles position · base^(-2i / H), in float32. Angles are
    computed in float64: in float32 one at position 8,192 is off by 0.0005."""
    place_T1 = torch.arange(T, device=device, dtype=torch.float64)[:, None]
    even_I = torch.arange(0, head_size, 2, device=device, dtype=torch.float64)
    angle_TI = place_T1 * base ** (-even_I / head_size)
    angle_TH = torch.cat((angle_TI, angle_TI), dim=-1)  # (T, H/2) -> (T, H)
    return angle_TH.cos().float(), angle_TH.sin().float()


def rotate(x_BNTH: Tensor, by: Rotation) -> Tensor:
    """Rotate each position of `x_BNTH` by its angle; the type stays."""
    cos_TH, sin_TH = by
    first, second = x_BNTH.chunk(2, dim=-1)
    turned_BNTH = torch.cat((-second, first), dim=-1)
    return (x_BNTH * cos_TH + turned_BNTH * sin_TH).to(x_BNTH.dtype)
