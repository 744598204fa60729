"""The options of a Transformer block, in which the families differ.

                  norm            MLP                   positions   attention
    bert          LayerNorm       GELU                  added       all heads alike
    gpt           LayerNorm       GELU with tanh        added       causal
    modern_bert   no biases       GeGLU                 rotary      local in two layers of three
    llama         RMSNorm         SwiGLU                rotary      causal, keys shared by heads

A gated MLP multiplies the activation by a second product (Shazeer 2020, "GLU Variants Improve
Transformer", arXiv:2002.05202). RMSNorm: Zhang & Sennrich 2019, arXiv:1910.07467. Grouped queries:
Ainslie et al. 2023, arXiv:2305.13245. Query and key norms: Henry et al. 2020, arXiv:2010.04245.
"""

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
    """The options of one block; the defaults are those of BERT and GPT.

    Each of the `num_key_value_heads` serves an equal number of query heads. `window` is the largest
    distance to a key on either side, None for no limit. `first_norm` False drops the attention norm
    of a pre-norm block whose input is already normalised.
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
    """Several matrices with one input, computed as one product; outputs are concatenated. Muon
    treats each matrix separately (training/optimizer.py)."""

    def __init__(self, in_features: int, sizes: tuple[int, ...], bias: bool) -> None:
        super().__init__(in_features, sum(sizes), bias=bias)
        self.sizes = sizes
