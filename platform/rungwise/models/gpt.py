"""GPT: a Transformer that reads from left to right and predicts the next token.

    ids ──> token + position ──> causal Transformer ──> hidden (B, T, D) ──> logits (B, T, V), tied

GPT-1 (Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training") has the
post-norm block of Vaswani et al.; GPT-2 (Radford et al. 2019, "Language Models are Unsupervised
Multitask Learners") moves LayerNorm to the input of each part, adds one at the end, and scales what
blocks add by 1/sqrt(2 · num_layers) at the start. Both: learned positions, GELU with tanh, the
token embedding as the output matrix without a bias, weights from a normal of 0.02.

A packed block holds parts of several documents. `document` (B, T) says which token is of which, and
no attention crosses; `positions` (B, T) count within the document. Where no row holds a boundary
both are None, and attention takes the flash kernel with its own causal rule.

Shapes: B batch, T sequence, D hidden, V vocabulary, X tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from rungwise.models.cross_entropy import MOST_LOGITS, TokenSums, output_logits, token_sums
from rungwise.models.encoders import LayeredEncoder, blocks_by_layer
from rungwise.models.family import Family
from rungwise.models.language_models import CausalModel
from rungwise.models.objectives import CAUSAL, Objective
from rungwise.models.transformer import (
    Norm,
    Transformer,
    check_heads,
    initialise,
    learned_positions,
    padded_size,
)

if TYPE_CHECKING:  # a bare machine with PyTorch has no tokenizers
    from rungwise.tokenizer.special import SpecialIds

LAYER_NORM_EPSILON = 1e-5


class GptConfig(Family):
    """The shape of a GPT; the defaults are the smallest GPT-2.

    `dropout` is 0 unless asked for, where both papers have 0.1: see BertConfig.
    """

    objectives: ClassVar = (CAUSAL,)

    kind: Literal["gpt"] = "gpt"
    num_layers: int = Field(default=12, ge=1)
    num_heads: int = Field(default=12, ge=1)
    hidden_size: int = Field(default=768, ge=1)
    intermediate_size: int = Field(default=3072, ge=1)
    max_position_embeddings: int = Field(default=1024, ge=1)
    norm: Norm = "pre"
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    initializer_range: float = Field(default=0.02, gt=0.0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_heads(self.hidden_size, self.num_heads)
        return self

    @classmethod
    def gpt1(cls) -> Self:
        """GPT-1, 117 M parameters with its vocabulary of 40,478."""
        return cls(norm="post", max_position_embeddings=512)

    @classmethod
    def gpt2(cls) -> Self:
        """The smallest GPT-2, 124 M parameters (the paper's table 2 says 117 M): the defaults."""
        return cls()

    @classmethod
    def gpt2_medium(cls) -> Self:
        """GPT-2 of 24 layers, 355 M parameters (345 M in the paper)."""
        return cls(num_layers=24, num_heads=16, hidden_size=1024, intermediate_size=4096)

    @classmethod
    def gpt2_large(cls) -> Self:
        """GPT-2 of 36 layers, 774 M parameters (762 M in the paper)."""
        return cls(num_layers=36, num_heads=20, hidden_size=1280, intermediate_size=5120)

    @classmethod
    def gpt2_xl(cls) -> Self:
        """GPT-2 of 48 layers, 1.5 billion parameters."""
        return cls(num_layers=48, num_heads=25, hidden_size=1600, intermediate_size=6400)

    @property
    def max_length(self) -> int:
        return self.max_position_embeddings

    @property
    def depth(self) -> int:
        return self.num_layers

    @property
    def width(self) -> int:
        return self.hidden_size

    def describe(self) -> str:
        return f"{self.num_layers} layers, hidden size {self.hidden_size}"

    def page_name(self, objective: Objective) -> str:
        return "GPT"

    def build(
        self, vocab_size: int, objective: Objective, pad_vocab_to_multiple_of: int = 1
    ) -> GptForPretraining:
        return GptForPretraining(
            self, vocab_size, pad_vocab_to_multiple_of=pad_vocab_to_multiple_of
        )

    def encoder(
        self, objective: Objective, vocab_size: int, dropout: float, new_tokens: int = 0
    ) -> GptEncoder:
        config = self.model_copy(update={"dropout": dropout})
        return GptEncoder(config, vocab_size, new_tokens)

    def trained(self, model: nn.Module, objective: Objective, special: SpecialIds) -> CausalModel:
        assert isinstance(model, GptForPretraining)
        (end,) = special.require("end")
        table, vocab_size = model.gpt.token_embedding.weight, model.gpt.vocab_size
        return CausalModel(model, table, vocab_size, self.max_length, end)

    def flops_per_token(
        self,
        vocab_size: int,
        sequence_length: int,
        objective: Objective,
        masked_per_sequence: float = 0.0,
    ) -> float:
        """The causal rule: 6 for each weight of a matrix that multiplies the token, and 6·L·D·T for
        attention, half of every position with every one, because a kernel that knows the rule skips
        the future. Per token, with I the intermediate size,

            6·L·(4·D² + 2·D·I) + 6·L·D·T + 6·D·V

        Not counted: what `BertConfig.flops_per_token` leaves out. Boundaries inside a block are not
        taken off. GPT-2 124M at T = 1,024: 797.8 MFLOP with V = 50,257, and 798.0 with the 50,304
        of a padded vocabulary.
        """
        L, D, T = self.num_layers, self.hidden_size, sequence_length
        blocks = 6 * L * (4 * D * D + 2 * D * self.intermediate_size)
        return float(blocks + 6 * L * D * T + 6 * D * vocab_size)


class Gpt(nn.Module):
    """The decoder without its output. `pad_vocab_to_multiple_of`: see `Bert`."""

    def __init__(
        self, config: GptConfig, vocab_size: int, *, pad_vocab_to_multiple_of: int = 1
    ) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        D = config.hidden_size
        self.token_embedding = nn.Embedding(padded_size(vocab_size, pad_vocab_to_multiple_of), D)
        self.position_embedding = nn.Embedding(config.max_position_embeddings, D)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = Transformer(
            config.num_layers,
            D,
            config.num_heads,
            config.intermediate_size,
            causal=True,
            norm=config.norm,
            dropout=config.dropout,
            layer_norm_epsilon=LAYER_NORM_EPSILON,
            gelu="tanh",
        )
        self.initialise()

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew, from `generator` or else from PyTorch's own."""
        initialise(self, self.config.initializer_range, generator, truncated=False)
        if self.config.norm == "pre":
            self.transformer.scale_residuals()
        self.token_embedding.weight[self.vocab_size :].zero_()

    def encode(
        self,
        ids_BT: Tensor,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (B, T, D); at t of ids[: t + 1] of the same document.

        None for `document_BT` says that no row holds a boundary, None for `positions_BT` that they
        are 0, 1, 2 and so on. Padding at the end of a row needs no word: nothing before sees it.
        """
        return self.transformer(self._embed(ids_BT, positions_BT), None, document_BT)

    def encode_layers(self, ids_BT: Tensor) -> list[Tensor]:
        """The embeddings and each layer, num_layers + 1 tensors (B, T, D), of rows that each hold
        one document; the last is that of `encode`."""
        return self.transformer.layers(self._embed(ids_BT, None))

    def _embed(self, ids_BT: Tensor, positions_BT: Tensor | None) -> Tensor:
        position_BTD = learned_positions(self.position_embedding, ids_BT.shape[1], positions_BT)
        return self.dropout(self.token_embedding(ids_BT) + position_BTD)


class GptForPretraining(nn.Module):
    """GPT with its output, the token embedding.

    `most_logits` may be set: how many logits are held at a time, see cross_entropy.py.
    """

    def __init__(
        self, config: GptConfig, vocab_size: int, *, pad_vocab_to_multiple_of: int = 1
    ) -> None:
        super().__init__()
        self.most_logits = MOST_LOGITS
        self.gpt = Gpt(config, vocab_size, pad_vocab_to_multiple_of=pad_vocab_to_multiple_of)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew, from `generator` or else from PyTorch's own."""
        self.gpt.initialise(generator)

    def forward(
        self,
        ids_BT: Tensor,
        targets_BT: Tensor,
        weights_BT: Tensor,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> TokenSums:
        """Cross entropy of the next tokens, summed. See `Gpt.encode` for the last two."""
        hidden_BTD = self.gpt.encode(ids_BT, document_BT, positions_BT)
        return token_sums(
            hidden_BTD.flatten(0, 1),  # (B, T, D) -> (B·T, D)
            self.gpt.token_embedding.weight,
            None,
            targets_BT.flatten(),
            weights_BT.flatten(),
            self.gpt.vocab_size,
            self.most_logits,
        )

    def logits(
        self,
        ids_BT: Tensor,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of the token that follows each position."""
        hidden_BTD = self.gpt.encode(ids_BT, document_BT, positions_BT)
        return output_logits(hidden_BTD, self.gpt.token_embedding.weight, None, self.gpt.vocab_size)


class GptEncoder(LayeredEncoder):
    """GPT without its output. Segments are not for it: the delimiter says where a text ends."""

    def __init__(self, config: GptConfig, vocab_size: int, new_tokens: int = 0) -> None:
        super().__init__()
        self.gpt = Gpt(config, vocab_size + new_tokens)
        self.width = config.hidden_size
        self.causal = True
        self.max_length = config.max_length
        self.new_tokens = new_tokens

    def layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        return self.gpt.encode_layers(ids_BT)

    def levels(self) -> list[list[nn.Module]]:
        embeddings: list[nn.Module] = [self.gpt.token_embedding, self.gpt.position_embedding]
        return [embeddings, *blocks_by_layer([self.gpt.transformer])]

    def word_table(self) -> Tensor:
        return self.gpt.token_embedding.weight
