"""Multi-head self-attention, its masks (Vaswani et al. 2017, arXiv:1706.03762) and the options of a
block.

                                  on a GPU in 16 bits        elsewhere
    no padding, no boundary       the flash kernel, with its own causal rule
    padded rows, both directions  variable lengths           a mask of the keys (B, 1, 1, T)
    boundaries inside rows        variable lengths           a mask (B, 1, T, T)
    local attention               the kernel's window        a mask, shared by like layers

A dense mask rules out the flash kernel, so it is built only where needed, which the host knows
without reading a tensor: `None` means no mask. Padding is always at the end of a row.

Rotary positions (Su et al. 2021, "RoFormer", arXiv:2104.09864) pair unit i of the first half of a
head with unit i of the second, as in Hugging Face transformers. Gated MLP: Shazeer 2020,
arXiv:2002.05202. RMSNorm: Zhang & Sennrich 2019, arXiv:1910.07467. Grouped queries: Ainslie et al.
2023, arXiv:2305.13245. Query and key norms: Henry et al. 2020, arXiv:2010.04245.

Shapes: B batch, T sequence, D hidden, N heads, H head size, S documents of a micro-batch.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.models.device import is_gpu
from rungwise.models.losses.cross_entropy import at_least_float32

Norm = Literal["post", "pre"]
Activation = Literal["gelu", "gelu_tanh", "silu"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


@dataclass(frozen=True)
class Layer:
    """The options of one block; the defaults are those of BERT and GPT. Each of the
    `num_key_value_heads` serves an equal number of query heads. `window` is the largest distance to
    a key on either side, None for no limit. `first_norm` False drops the attention norm of a
    pre-norm block whose input is already normalised."""

    hidden_size: int
    num_heads: int
    intermediate_size: int
    norm: Norm
    activation: Activation
    epsilon: float
    dropout: float
    num_key_value_heads: int
    head_size: int
    biases: bool = True
    gated: bool = False
    rms: bool = False
    query_key_norm: bool = False
    rotary_base: float | None = None
    window: int | None = None
    first_norm: bool = True

    def new_norm(self, size: int | None = None) -> nn.Module:
        """Create a norm over `size` units, by default the hidden size."""
        size = size or self.hidden_size
        if self.rms:
            return nn.RMSNorm(size, eps=self.epsilon)
        return nn.LayerNorm(size, eps=self.epsilon, bias=self.biases)

    @property
    def attention_sizes(self) -> tuple[int, int, int]:
        """Units of a token's queries, keys and values."""
        shared = self.num_key_value_heads * self.head_size
        return self.num_heads * self.head_size, shared, shared

    def flops(self, T: int, causal: bool) -> int:
        """Return its share of `flops_per_token` (family.py): 6 per weight of a matrix, and the two
        attention products with the keys in the window, at most T."""
        D, queries = self.hidden_size, self.attention_sizes[0]
        matrices = D * (sum(self.attention_sizes) + queries)
        matrices += (3 if self.gated else 2) * D * self.intermediate_size
        keys = T if self.window is None else min(T, 2 * self.window + 1)
        return 6 * matrices + (6 if causal else 12) * queries * keys


class StackedLinear(nn.Linear):
    """Several matrices with one input as one product. Muon treats each separately."""

    def __init__(self, in_features: int, sizes: tuple[int, ...], bias: bool) -> None:
        super().__init__(in_features, sum(sizes), bias=bias)
        self.sizes = sizes


Rotation = tuple[Tensor, Tensor]  # cosines and sines (T, H)

_LARGEST_HEAD, _HEAD_MULTIPLE = 256, 8  # limits of the flash kernel


class Documents(NamedTuple):
    """The documents of a micro-batch read as one sequence of B·T tokens."""

    starts: Tensor  # (S + 1,) int32, start offsets, then B·T
    longest: int  # upper bound on the length of a document


class Boundaries(NamedTuple):
    """Where documents lie in packed rows; None if no row holds a boundary. For a body that reads
    both ways, padding is a document. `causal`: how rows are read; None: as the stack was built."""

    document: Tensor | None = None  # (B, T) tokens of one document share a number in their row
    positions: Tensor | None = None  # (B, T) from the beginning of the document
    starts: Tensor | None = None  # (S + 1,) the `starts` of `Documents`
    causal: bool | None = None


WHOLE = Boundaries()  # a row is one document


def real_places(length: int, lengths_N: Tensor) -> Tensor:
    """Mark the places (N, length) before each row's padding."""
    return torch.arange(length, device=lengths_N.device) < lengths_N[:, None]


# A mask (True: the key is visible), documents, or None if `causal` alone decides.
Visible = Tensor | Documents | None


def visible_keys(
    sequence_length: int, lengths_B: Tensor | None, where: Boundaries, *, causal: bool, varlen: bool
) -> Visible:
    """Return which keys each query sees, for all layers; None if the kernel's own rule is enough.
    `lengths_B` counts the real tokens of each row; with boundaries and without `causal` it must be
    None. Tokens see only their own document. `varlen` (see `has_varlen`) needs `where.starts`."""
    T, document_BT = sequence_length, where.document
    if document_BT is not None:
        assert causal or lengths_B is None, "padding is a document of its own"
        if varlen and where.starts is not None:
            return Documents(where.starts, T)
        same_B1TT = document_BT[:, None, :, None] == document_BT[:, None, None, :]
        return same_B1TT.tril() if causal else same_B1TT
    if lengths_B is None or causal:
        return None
    if varlen:
        # Two documents per row: its tokens, and its padding, which may be empty.
        begin_B = torch.arange(len(lengths_B), device=lengths_B.device) * T
        both_B2 = torch.stack((begin_B, begin_B + lengths_B), dim=1)
        end_1 = both_B2.new_full((1,), len(lengths_B) * T)
        return Documents(torch.cat((both_B2.flatten(), end_1)).int(), T)
    return real_places(T, lengths_B)[:, None, None, :]  # (B, T) -> (B, 1, 1, T)


def keys_to_write(segments_BT: Tensor, lengths_B: Tensor | None) -> Tensor:
    """Return the mask (B, 1, T, T) of a prefix language model (UniLM, Dong et al. 2019,
    arXiv:1905.03197): all see the first segment, and attention in the second is causal."""
    place_T = torch.arange(segments_BT.shape[1], device=segments_BT.device)
    first_BT = segments_BT == 0
    if lengths_B is not None:
        first_BT = first_BT & real_places(segments_BT.shape[1], lengths_B)
    return first_BT[:, None, None] | (place_T <= place_T[:, None])


def has_varlen(x: Tensor, head_size: int, dropout: float) -> bool:
    """Whether the variable-length kernel supports a layer's input `x` in this pass."""
    if dropout > 0 or head_size > _LARGEST_HEAD or head_size % _HEAD_MULTIPLE or not is_gpu(x):
        return False
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    return dtype in (torch.bfloat16, torch.float16)


def near_keys(visible: Visible, window: int | None, x_BTD: Tensor, causal: bool) -> Visible:
    """Hide the keys more than `window` places away in `visible`, but of `Documents`, where the
    kernel does. Every query sees itself, so that no row of the mask is empty at padding."""
    T = x_BTD.shape[1]
    if window is None or isinstance(visible, Documents):
        return visible
    if not torch.compiler.is_exporting() and window + 1 >= T:  # an exported graph serves any T
        return visible
    place_T = torch.arange(T, device=x_BTD.device)
    away_TT = place_T[:, None] - place_T
    near_TT = away_TT.abs() <= window
    if visible is None:
        return near_TT & (away_TT >= 0) if causal else near_TT
    return visible & near_TT | (away_TT == 0)


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


class Attention(nn.Module):
    """Multi-head self-attention with one matrix product for queries, keys and values. Dropout here
    applies to the attention weights; the block applies it to the output."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        D, H, sizes = layer.hidden_size, layer.head_size, layer.attention_sizes
        self.head_size = H
        self.dropout = layer.dropout
        self.shares_keys = layer.num_key_value_heads < layer.num_heads
        self.query_key_value = StackedLinear(D, sizes, layer.biases)
        self.query_norm = layer.new_norm(H) if layer.query_key_norm else None
        self.key_norm = layer.new_norm(H) if layer.query_key_norm else None
        self.output = nn.Linear(sizes[0], D, bias=layer.biases)
        self.far = -1 if layer.window is None else layer.window  # places on either side of a query

    def forward(
        self, x_BTD: Tensor, visible: Visible, turn: Rotation | None = None, causal: bool = False
    ) -> Tensor:
        B, T, _ = x_BTD.shape
        q_BNTH, k_BNTH, v_BNTH = (
            part.view(B, T, -1, self.head_size).transpose(1, 2)  # (B, T, N·H) -> (B, N, T, H)
            for part in self.query_key_value(x_BTD).split(self.query_key_value.sizes, dim=-1)
        )
        if self.query_norm is not None and self.key_norm is not None:
            q_BNTH = self.query_norm(at_least_float32(q_BNTH)).to(v_BNTH.dtype)
            k_BNTH = self.key_norm(at_least_float32(k_BNTH)).to(v_BNTH.dtype)
        if turn is not None:
            q_BNTH, k_BNTH = rotate(q_BNTH, turn), rotate(k_BNTH, turn)
        if isinstance(visible, Documents):
            # Takes a second to import because it pulls in the compiler; only GPUs need it.
            from torch.nn.attention import varlen

            q_XNH, k_XNH, v_XNH = (  # (B, N, T, H) -> (B·T, N, H)
                part.transpose(1, 2).flatten(0, 1) for part in (q_BNTH, k_BNTH, v_BNTH)
            )
            window = (self.far, 0 if causal else self.far)
            starts, longest = visible
            mixed_XNH: Any = varlen.varlen_attn(
                *(q_XNH, k_XNH, v_XNH, starts, starts, longest, longest),
                window_size=window,
                enable_gqa=self.shares_keys,
            )
            return self.output(mixed_XNH.view(B, T, -1))
        kind = x_BTD.device.type
        # On a CPU with short rows the kernel is twice as slow in bfloat16 as in float32.
        in_float32 = kind == "cpu" and v_BNTH.dtype == torch.bfloat16
        if in_float32:
            q_BNTH, k_BNTH, v_BNTH = q_BNTH.float(), k_BNTH.float(), v_BNTH.float()
        with torch.autocast(kind, enabled=False) if in_float32 else nullcontext():
            mixed_BNTH = functional.scaled_dot_product_attention(
                q_BNTH,
                k_BNTH,
                v_BNTH,
                attn_mask=visible,
                dropout_p=self.dropout if self.training else 0.0,
                is_causal=causal and visible is None,
                enable_gqa=self.shares_keys,
            )
        return self.output(mixed_BNTH.transpose(1, 2).flatten(2))  # (B, N, T, H) -> (B, T, N·H)
