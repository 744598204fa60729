"""One layer of a Transformer as numbers and choices: what tells the families' blocks apart.

                  norm            MLP                   positions   attention
    bert          LayerNorm       GELU                  added       all heads alike
    gpt           LayerNorm       GELU with tanh        added       causal
    modern_bert   no biases       GeGLU                 rotary      two layers of three near tokens
    llama         RMSNorm         SwiGLU                rotary      causal, keys shared by heads

A gated MLP has a second matrix whose product multiplies the activation (Shazeer 2020, "GLU Variants
Improve Transformer", arXiv:2002.05202). RMSNorm: Zhang & Sennrich 2019, arXiv:1910.07467. Grouped
queries: Ainslie et al. 2023, arXiv:2305.13245. Normalised queries and keys: Henry et al. 2020,
arXiv:2010.04245. Rotary positions are in rotary.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

Norm = Literal["post", "pre"]
Activation = Literal["gelu", "gelu_tanh", "silu"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


@dataclass(frozen=True)
class Layer:
    """How one block is made; the defaults are those of BERT and GPT.

    `num_key_value_heads` share their keys and values among as many query heads each. `window` is
    how many places away on either side a key may be, None for any. `first_norm` False leaves out
    the norm of a pre-norm block in front of attention, for a layer whose input is normalised.
    """

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
        """A norm over `size` units, by default those of a state."""
        size = size or self.hidden_size
        if self.rms:
            return nn.RMSNorm(size, eps=self.epsilon)
        return nn.LayerNorm(size, eps=self.epsilon, bias=self.biases)

    @property
    def attention_sizes(self) -> tuple[int, int, int]:
        """Units of the queries, keys and values of a token."""
        shared = self.num_key_value_heads * self.head_size
        return self.num_heads * self.head_size, shared, shared

    def flops(self, T: int, causal: bool) -> int:
        """Its share of `flops_per_token` (family.py): 6 for each weight of a matrix, and the two
        products of attention with the keys that a query may see, at most T."""
        D, queries = self.hidden_size, self.attention_sizes[0]
        matrices = D * (sum(self.attention_sizes) + queries)
        matrices += (3 if self.gated else 2) * D * self.intermediate_size
        keys = T if self.window is None else min(T, 2 * self.window + 1)
        return 6 * matrices + (6 if causal else 12) * queries * keys


class StackedLinear(nn.Linear):
    """Several matrices with one input as one product: their outputs, of these sizes, side by side.

    Muon takes each for itself (training/muon.py).
    """

    def __init__(self, in_features: int, sizes: tuple[int, ...], bias: bool) -> None:
        super().__init__(in_features, sum(sizes), bias=bias)
        self.sizes = sizes
