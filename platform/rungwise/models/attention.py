"""Multi-head self-attention, and who sees whom (Vaswani et al. 2017, arXiv:1706.03762).

    nothing padded, no boundary   no mask: the flash kernel, causal by its own rule
    padded rows, both directions  a mask of the keys (B, 1, 1, T)
    boundaries inside rows        a mask (B, 1, T, T); compiled on a GPU, a FlexAttention block mask

A dense mask forbids the flash kernel, so none is built where none is needed, and whether one is
needed must be known on the host: `None` instead of a tensor says so. Padding is always at the end
of a row, so a causal stack needs no mask for it. FlexAttention (Dong et al. 2024, arXiv:2412.05496)
skips every tile that lies between two documents, but its fused kernel exists only under
torch.compile, is not differentiable on a CPU, and has no dropout. Elsewhere the dense mask, shared
by all layers, gives the same numbers.

Shapes: B batch, T sequence, D hidden, N heads, H head size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

# What attention is told beside `causal`: a mask, True where a key is seen, or None.
Visible = Tensor | BlockMask | None


def visible_keys(
    sequence_length: int,
    lengths_B: Tensor | None,
    document_BT: Tensor | None,
    *,
    causal: bool,
    dropout: float,
) -> Visible:
    """Which keys each query sees, once for all layers; None if the kernel's own rule is enough.

    `lengths_B` counts the real tokens of a row. `document_BT` numbers the documents of a row;
    what lies in different ones does not see each other. Where both directions are seen, padding is
    a document of its own, and `lengths_B` is not given as well. `dropout` is that of the attention
    weights in this pass.
    """
    if document_BT is not None:
        assert causal or lengths_B is None, "padding is a document of its own"
        if _has_fused_block_mask(document_BT, dropout):
            return block_mask(document_BT, causal)
        same_B1TT = document_BT[:, None, :, None] == document_BT[:, None, None, :]
        return same_B1TT.tril() if causal else same_B1TT
    if lengths_B is None or causal:
        return None
    position_T = torch.arange(sequence_length, device=lengths_B.device)
    return (position_T < lengths_B[:, None])[:, None, None, :]  # (B, T) -> (B, 1, 1, T)


def block_mask(document_BT: Tensor, causal: bool) -> BlockMask:
    """The same as a FlexAttention mask: tiles without a visible pair are not computed."""
    B, T = document_BT.shape

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = document_BT[row, query] == document_BT[row, key]
        return same & (query >= key) if causal else same

    return create_block_mask(sees, B, None, T, T, device=document_BT.device)


def _has_fused_block_mask(document_BT: Tensor, dropout: float) -> bool:
    return document_BT.is_cuda and torch.compiler.is_compiling() and dropout == 0


class Attention(nn.Module):
    """Multi-head self-attention with one matrix for queries, keys and values.

    `dropout` is on the attention weights; the block drops what comes out of here.
    """

    def __init__(self, hidden_size: int, num_heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        assert hidden_size % num_heads == 0, "the config of the model checks this"
        self.num_heads = num_heads
        self.causal = causal
        self.dropout = dropout
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)

    def forward(self, x_BTD: Tensor, visible: Visible) -> Tensor:
        B, T, D = x_BTD.shape
        N, H = self.num_heads, D // self.num_heads
        qkv_BT3NH = self.query_key_value(x_BTD).view(B, T, 3, N, H)  # (B, T, 3D) -> (B, T, 3, N, H)
        q_BNTH, k_BNTH, v_BNTH = qkv_BT3NH.permute(2, 0, 3, 1, 4).unbind(0)  # three (B, N, T, H)
        if isinstance(visible, BlockMask):
            mixed_BNTH = flex_attention(q_BNTH, k_BNTH, v_BNTH, block_mask=visible)
            assert isinstance(mixed_BNTH, Tensor)
        else:
            mixed_BNTH = functional.scaled_dot_product_attention(
                q_BNTH,
                k_BNTH,
                v_BNTH,
                attn_mask=visible,
                dropout_p=self.dropout if self.training else 0.0,
                is_causal=self.causal and visible is None,
            )
        return self.output(mixed_BNTH.transpose(1, 2).reshape(B, T, D))  # (B, T, N, H) -> (B, T, D)
