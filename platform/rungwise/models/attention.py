"""Multi-head self-attention, and who sees whom (Vaswani et al. 2017, arXiv:1706.03762).

                                  on a GPU in 16 bits        elsewhere
    nothing padded, no boundary   the flash kernel, causal by its own rule
    padded rows, both directions  variable lengths           a mask of the keys (B, 1, 1, T)
    boundaries inside rows        variable lengths           a mask (B, 1, T, T)
    near keys alone               its window                 a mask, once for layers alike

A dense mask forbids the flash kernel, so none is built where none is needed, and whether one is
needed must be known on the host: `None` instead of a tensor says so. Padding is always at the end
of a row, so a causal stack needs no mask for it. With variable lengths the flash kernel reads a
micro-batch as one line of documents and is told where each begins; no pair of tokens that do not
see each other is computed. The kernel has no dropout and no float32; there the dense mask, shared
by all layers, gives the same numbers. It is built once a micro-batch, outside the blocks, so that
it does not matter to it which of them are compiled.

Shapes: B batch, T sequence, D hidden, N heads, H head size, S documents of a micro-batch.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.models.cross_entropy import at_least_float32
from rungwise.models.device import is_gpu
from rungwise.models.layer import Layer, StackedLinear
from rungwise.models.rotary import Rotation, rotated

_LARGEST_HEAD, _HEAD_MULTIPLE = 256, 8  # that the flash kernel takes


class Documents(NamedTuple):
    """A micro-batch as one line of B·T tokens: where its documents begin, and at its end B·T."""

    starts: Tensor  # (S + 1,) int32
    longest: int  # no document is longer


# What attention is told beside `causal`: a mask, True where a key is seen, documents, or None.
Visible = Tensor | Documents | None


def visible_keys(
    sequence_length: int,
    lengths_B: Tensor | None,
    document_BT: Tensor | None,
    starts_S: Tensor | None,
    *,
    causal: bool,
    varlen: bool,
) -> Visible:
    """Which keys each query sees, once for all layers; None if the kernel's own rule is enough.

    `lengths_B` counts the real tokens of a row. `document_BT` numbers the documents of a row;
    what lies in different ones does not see each other. Where both directions are seen, padding is
    a document of its own, and `lengths_B` is not given as well. `starts_S` says the same as
    `document_BT`, see `Documents`, and is what `varlen` (see `has_varlen`) needs.
    """
    T = sequence_length
    if document_BT is not None:
        assert causal or lengths_B is None, "padding is a document of its own"
        if varlen and starts_S is not None:
            return Documents(starts_S, T)
        same_B1TT = document_BT[:, None, :, None] == document_BT[:, None, None, :]
        return same_B1TT.tril() if causal else same_B1TT
    if lengths_B is None or causal:
        return None
    if varlen:
        # Two of each row, the second its padding, which may have no token.
        begin_B = torch.arange(len(lengths_B), device=lengths_B.device) * T
        both_B2 = torch.stack((begin_B, begin_B + lengths_B), dim=1)
        end_1 = both_B2.new_full((1,), len(lengths_B) * T)
        return Documents(torch.cat((both_B2.flatten(), end_1)).int(), T)
    position_T = torch.arange(T, device=lengths_B.device)
    return (position_T < lengths_B[:, None])[:, None, None, :]  # (B, T) -> (B, 1, 1, T)


def keys_to_write(segments_BT: Tensor, lengths_B: Tensor | None) -> Tensor:
    """A mask (B, 1, T, T) with which the second text is written: the first is seen by all, and of
    the second a query sees itself and what comes before (Dong et al. 2019, arXiv:1905.03197)."""
    place_T = torch.arange(segments_BT.shape[1], device=segments_BT.device)
    first_BT = segments_BT == 0
    if lengths_B is not None:
        first_BT = first_BT & (place_T < lengths_B[:, None])
    return first_BT[:, None, None] | (place_T <= place_T[:, None])


def has_varlen(x: Tensor, head_size: int, dropout: float) -> bool:
    """Whether the kernel for variable lengths takes what a layer makes of `x` in this pass."""
    if dropout > 0 or head_size > _LARGEST_HEAD or head_size % _HEAD_MULTIPLE or not is_gpu(x):
        return False
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    return dtype in (torch.bfloat16, torch.float16)


def attention_within(
    queries: Tensor, keys: Tensor, values: Tensor, documents: Documents, **options: Any
) -> Tensor:
    """PyTorch's kernel for variable lengths, each token of a document seeing that document."""
    # A second to import, as all of the compiler comes with it, and nothing without a GPU needs it.
    from torch.nn.attention import varlen

    starts, longest = documents
    mixed = varlen.varlen_attn(queries, keys, values, starts, starts, longest, longest, **options)
    assert isinstance(mixed, Tensor)
    return mixed


def near_keys(visible: Visible, window: int | None, x_BTD: Tensor, causal: bool) -> Visible:
    """`visible` without the keys more than `window` places away; itself where that is none, or the
    kernel for variable lengths keeps to the window by itself.

    A query always sees itself, also one of padding, whose near keys may all be padding.
    """
    T = x_BTD.shape[1]
    if window is None or isinstance(visible, Documents):
        return visible
    if not torch.compiler.is_exporting() and window + 1 >= T:  # an exported graph is for any T
        return visible
    place_T = torch.arange(T, device=x_BTD.device)
    away_TT = place_T[:, None] - place_T
    near_TT = away_TT.abs() <= window
    if visible is None:
        return near_TT & (away_TT >= 0) if causal else near_TT
    return visible & near_TT | (away_TT == 0)


class Attention(nn.Module):
    """Multi-head self-attention with one product for queries, keys and values.

    The dropout is on the attention weights; the block drops what comes out of here.
    """

    def __init__(self, layer: Layer, causal: bool) -> None:
        super().__init__()
        D, H, sizes = layer.hidden_size, layer.head_size, layer.attention_sizes
        self.head_size = H
        self.causal = causal
        self.dropout = layer.dropout
        self.shares_keys = layer.num_key_value_heads < layer.num_heads
        self.query_key_value = StackedLinear(D, sizes, layer.biases)
        self.query_norm = layer.new_norm(H) if layer.query_key_norm else None
        self.key_norm = layer.new_norm(H) if layer.query_key_norm else None
        self.output = nn.Linear(sizes[0], D, bias=layer.biases)
        far = -1 if layer.window is None else layer.window
        self.window = (far, 0) if causal else (far, far)  # places before and after a query

    def forward(self, x_BTD: Tensor, visible: Visible, turn: Rotation | None = None) -> Tensor:
        B, T, _ = x_BTD.shape
        q_BNTH, k_BNTH, v_BNTH = (
            part.view(B, T, -1, self.head_size).transpose(1, 2)  # (B, T, N·H) -> (B, N, T, H)
            for part in self.query_key_value(x_BTD).split(self.query_key_value.sizes, dim=-1)
        )
        if self.query_norm is not None and self.key_norm is not None:
            q_BNTH = self.query_norm(at_least_float32(q_BNTH)).to(v_BNTH.dtype)
            k_BNTH = self.key_norm(at_least_float32(k_BNTH)).to(v_BNTH.dtype)
        if turn is not None:
            q_BNTH, k_BNTH = rotated(q_BNTH, turn), rotated(k_BNTH, turn)
        if isinstance(visible, Documents):
            q_XNH, k_XNH, v_XNH = (  # (B, N, T, H) -> (B·T, N, H)
                part.transpose(1, 2).flatten(0, 1) for part in (q_BNTH, k_BNTH, v_BNTH)
            )
            mixed_XNH = attention_within(
                q_XNH, k_XNH, v_XNH, visible, window_size=self.window, enable_gqa=self.shares_keys
            )
            return self.output(mixed_XNH.view(B, T, -1))
        kind = x_BTD.device.type
        # Where rows are short, a CPU's kernel is twice as slow in bfloat16 as in float32.
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
                is_causal=self.causal and visible is None,
                enable_gqa=self.shares_keys,
            )
        return self.output(mixed_BNTH.transpose(1, 2).flatten(2))  # (B, N, T, H) -> (B, T, N·H)
