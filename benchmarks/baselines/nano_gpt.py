"""A peer: the plain GPT-2 training step that people write by hand, in the style of nanoGPT.

One matrix for queries, keys and values, PyTorch's attention with `is_causal`, the output tied to
the token embedding, all logits at once and one cross entropy over them. Written anew from the GPT-2
paper (Radford et al. 2019): 124,439,808 parameters at its smallest shape and 50,257 tokens.

Shapes: B batch, T sequence, D hidden, N heads, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class _Block(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1 = nn.LayerNorm(hidden_size)
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.project = nn.Linear(hidden_size, hidden_size)
        self.norm_2 = nn.LayerNorm(hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, 4 * hidden_size),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * hidden_size, hidden_size),
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        parts = self.qkv(self.norm_1(x_BTD)).split(D, dim=-1)
        q, k, v = (part.view(B, T, self.num_heads, -1).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.project(mixed.transpose(1, 2).reshape(B, T, D))
        return x_BTD + self.mlp(self.norm_2(x_BTD))


class NanoGpt(nn.Module):
    """`forward(ids, targets)` is the mean cross entropy."""

    def __init__(
        self, num_layers: int, num_heads: int, hidden_size: int, length: int, vocab_size: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, hidden_size)
        self.positions = nn.Embedding(length, hidden_size)
        self.blocks = nn.ModuleList(_Block(hidden_size, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)
        self.head = nn.Linear(hidden_size, vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        place_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        x_BTD = self.tokens(ids_BT) + self.positions(place_T)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV = self.head(self.norm(x_BTD))
        return functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())
