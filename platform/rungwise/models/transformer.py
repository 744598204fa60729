"""The Transformer block that BERT and the later Transformer rungs share (Vaswani et al. 2017,
"Attention Is All You Need", arXiv:1706.03762).

    post-norm (the paper):   x = LN(x + attention(x));   x = LN(x + mlp(x))
    pre-norm  (the choice):  x = x + attention(LN(x));   x = x + mlp(LN(x));   one LN at the end

Pre-norm keeps an identity path from the output to the input, so that deep stacks train with less
warm-up (Xiong et al. 2020, arXiv:2002.04745). `causal` chooses who sees whom: False lets every
position see all (BERT), True only itself and what came before (GPT). The non-linearity is GELU in
its exact form, with erf (Hendrycks & Gimpel 2016, arXiv:1606.08415).

Padding is always at the end of a row. `lengths_B=None` says that nothing is padded: no mask is
built, and scaled_dot_product_attention may take its flash kernel, which a dense mask would forbid.
A causal stack never needs the mask, since what is padded comes after everything real.

Shapes: B batch, T sequence, D hidden, N heads, H head size.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Norm = Literal["post", "pre"]


def sinusoid_positions(
    num_positions: int,
    hidden_size: int,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)) and PE(pos, 2i+1) = cos(the same), as (T, D).

    A function and not a stored table, so that it extends to any length. Angles are taken in
    float64: in bfloat16 position 511 is already off by a radian.
    """
    position_T1 = torch.arange(num_positions, device=device, dtype=torch.float64)[:, None]
    even_I = torch.arange(0, hidden_size, 2, device=device, dtype=torch.float64)
    angle_TI = position_T1 * torch.exp(even_I * (-math.log(10_000.0) / hidden_size))
    pair_TI2 = torch.stack((angle_TI.sin(), angle_TI.cos()), dim=-1)
    return pair_TI2.flatten(1).to(dtype)  # (T, D/2, 2) -> (T, D): sine and cosine alternate


def initialise(
    module: nn.Module, initializer_range: float, generator: torch.Generator | None = None
) -> None:
    """Weights from a normal cut at two standard deviations, biases 0, LayerNorm 1 and 0.

    This is `create_initializer` of google-research/bert (modeling.py); like TensorFlow's, the cut
    is not compensated, so that the true deviation is 0.88 of `initializer_range`.
    """
    bound = 2 * initializer_range
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(
                layer.weight, std=initializer_range, a=-bound, b=bound, generator=generator
            )
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
        if isinstance(layer, nn.LayerNorm):
            layer.reset_parameters()


def parameter_count(module: nn.Module) -> int:
    """The number of parameters; a tensor used twice (tied weights) counts once."""
    return sum(parameter.numel() for parameter in module.parameters())


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

    def forward(self, x_BTD: Tensor, visible_B11T: Tensor | None) -> Tensor:
        B, T, D = x_BTD.shape
        N, H = self.num_heads, D // self.num_heads
        qkv_BT3NH = self.query_key_value(x_BTD).view(B, T, 3, N, H)  # (B, T, 3D) -> (B, T, 3, N, H)
        q_BNTH, k_BNTH, v_BNTH = qkv_BT3NH.permute(2, 0, 3, 1, 4).unbind(0)  # three (B, N, T, H)
        mixed_BNTH = functional.scaled_dot_product_attention(
            q_BNTH,
            k_BNTH,
            v_BNTH,
            attn_mask=visible_B11T,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        return self.output(mixed_BNTH.transpose(1, 2).reshape(B, T, D))  # (B, T, N, H) -> (B, T, D)


class Mlp(nn.Module):
    """Two layers applied to each position alone."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.expand = nn.Linear(hidden_size, intermediate_size)
        self.contract = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.contract(functional.gelu(self.expand(x_BTD)))


class Block(nn.Module):
    """Attention, then the Mlp; each with a residual connection, a LayerNorm and dropout."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int,
        *,
        causal: bool,
        norm: Norm,
        dropout: float,
        layer_norm_epsilon: float,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.attention = Attention(hidden_size, num_heads, causal, dropout)
        self.attention_norm = nn.LayerNorm(hidden_size, eps=layer_norm_epsilon)
        self.mlp = Mlp(hidden_size, intermediate_size)
        self.mlp_norm = nn.LayerNorm(hidden_size, eps=layer_norm_epsilon)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor, visible_B11T: Tensor | None) -> Tensor:
        if self.norm == "pre":
            attended_BTD = self.attention(self.attention_norm(x_BTD), visible_B11T)
            x_BTD = x_BTD + self.dropout(attended_BTD)
            return x_BTD + self.dropout(self.mlp(self.mlp_norm(x_BTD)))
        attended_BTD = self.attention(x_BTD, visible_B11T)
        x_BTD = self.attention_norm(x_BTD + self.dropout(attended_BTD))
        return self.mlp_norm(x_BTD + self.dropout(self.mlp(x_BTD)))


class Transformer(nn.Module):
    """A stack of blocks over vectors that are embedded already."""

    def __init__(
        self,
        num_layers: int,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int,
        *,
        causal: bool,
        norm: Norm,
        dropout: float,
        layer_norm_epsilon: float,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.blocks = nn.ModuleList(
            Block(
                hidden_size,
                num_heads,
                intermediate_size,
                causal=causal,
                norm=norm,
                dropout=dropout,
                layer_norm_epsilon=layer_norm_epsilon,
            )
            for _ in range(num_layers)
        )
        self.final_norm = (
            nn.LayerNorm(hidden_size, eps=layer_norm_epsilon) if norm == "pre" else nn.Identity()
        )

    def forward(self, x_BTD: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        """The last layer. `lengths_B` counts the real positions; None: nothing is padded."""
        visible_B11T = self._visible(x_BTD, lengths_B)
        for block in self.blocks:
            x_BTD = block(x_BTD, visible_B11T)
        return self.final_norm(x_BTD)

    def layers(self, x_BTD: Tensor, lengths_B: Tensor | None = None) -> list[Tensor]:
        """The input and the output of each block, num_layers + 1 in all; the last as `forward`."""
        visible_B11T = self._visible(x_BTD, lengths_B)
        outputs = [x_BTD]
        for block in self.blocks:
            outputs.append(block(outputs[-1], visible_B11T))
        outputs[-1] = self.final_norm(outputs[-1])
        return outputs

    def _visible(self, x_BTD: Tensor, lengths_B: Tensor | None) -> Tensor | None:
        if lengths_B is None or self.causal:
            return None
        position_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
        return (position_T < lengths_B[:, None])[:, None, None, :]  # (B, T) -> (B, 1, 1, T)
