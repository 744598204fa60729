"""Two Transformers, one from left to right and one from right to left, their states concatenated
(SPEC L10): the alternative to BERT that nobody ships, ELMo's plan with Transformers (Peters et al.
2018, arXiv:1802.05365).

    stream         x0   x1   x2  ...  xT        ids = x0 .. xT-1, targets = x1 .. xT
    left to right  f_t reads  ids[0 .. t]      = x0 .. xt
    right to left  b_t reads  targets[t .. T)  = xt+1 .. xT, from the end
    predicts       targets[t] from f_t and b_{t+1}: everything but xt+1 itself

So a batch of GPT's serves as it is, and just the same tokens are predicted. As in ELMo the two
share the token embedding, which is also the output, and nothing else; they meet only in the head,
and that is what sets them apart from BERT, where both sides mix in every layer. The last token of a
document has nothing on its right: its b is zero.

Padding is at the end of a row and thus comes first from the right. Each row is therefore turned
around within its real tokens, padding stays at the end, and a causal kernel needs no mask for it.
Both directions number a token by its place from the left.

Shapes: B batch, T sequence, D hidden, V vocabulary, X tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from rungwise.models.bert import MlmHead
from rungwise.models.cross_entropy import MOST_LOGITS, TokenSums, token_sums
from rungwise.models.encoders import LayeredEncoder, blocks_by_layer
from rungwise.models.family import Family
from rungwise.models.gpt import LAYER_NORM_EPSILON
from rungwise.models.language_models import TwoDirectionModel
from rungwise.models.objectives import BIDIRECTIONAL, Objective
from rungwise.models.transformer import (
    Norm,
    Transformer,
    check_heads,
    gather_positions,
    initialise,
    learned_positions,
    padded_size,
)

if TYPE_CHECKING:  # a bare machine with PyTorch has no tokenizers
    from rungwise.tokenizer.special import SpecialIds


class BidirectionalConfig(Family):
    """The shape; `num_layers` is that of one direction. The defaults have BERT base's 12 blocks."""

    objectives: ClassVar = (BIDIRECTIONAL,)
    renamed: ClassVar[Mapping[str, str]] = {"two_way": "bidirectional"}

    kind: Literal["bidirectional"] = "bidirectional"
    num_layers: int = Field(default=6, ge=1)
    num_heads: int = Field(default=12, ge=1)
    hidden_size: int = Field(default=768, ge=1)
    intermediate_size: int = Field(default=3072, ge=1)
    max_position_embeddings: int = Field(default=512, ge=1)
    norm: Norm = "pre"
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    initializer_range: float = Field(default=0.02, gt=0.0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_heads(self.hidden_size, self.num_heads)
        return self

    @classmethod
    def base(cls) -> Self:
        """As many blocks, and as wide, as BERT base: the defaults."""
        return cls()

    @property
    def max_length(self) -> int:
        return self.max_position_embeddings

    @property
    def depth(self) -> int:
        return 2 * self.num_layers

    @property
    def width(self) -> int:
        return self.hidden_size

    def describe(self) -> str:
        return f"{self.num_layers} layers, hidden size {self.hidden_size}"

    def page_name(self, objective: Objective) -> str:
        return "two-direction Transformer"

    def build(
        self, vocab_size: int, objective: Objective, pad_vocab_to_multiple_of: int = 1
    ) -> BidirectionalForPretraining:
        return BidirectionalForPretraining(
            self, vocab_size, pad_vocab_to_multiple_of=pad_vocab_to_multiple_of
        )

    def encoder(
        self, objective: Objective, vocab_size: int, dropout: float, new_tokens: int = 0
    ) -> BidirectionalEncoder:
        config = self.model_copy(update={"dropout": dropout})
        return BidirectionalEncoder(config, vocab_size, new_tokens)

    def trained(
        self, model: nn.Module, objective: Objective, special: SpecialIds
    ) -> TwoDirectionModel:
        assert isinstance(model, BidirectionalForPretraining)
        (end,) = special.require("end")
        body = model.bidirectional
        table, vocab_size = body.token_embedding.weight, body.vocab_size
        return TwoDirectionModel(model, table, vocab_size, self.max_length, end)

    def flops_per_token(
        self,
        vocab_size: int,
        sequence_length: int,
        objective: Objective,
        masked_per_sequence: float = 0.0,
    ) -> float:
        """The causal rule of `GptConfig.flops_per_token`, for both directions, and the head:

        2·(6·L·(4·D² + 2·D·I) + 6·L·D·T) + 6·(2·D² + D·V)
        """
        L, D, T = self.num_layers, self.hidden_size, sequence_length
        blocks = 6 * L * (4 * D * D + 2 * D * self.intermediate_size)
        return float(2 * (blocks + 6 * L * D * T) + 6 * (2 * D * D + D * vocab_size))


class Direction(nn.Module):
    """One of the two: its own positions and its own causal stack over shared token vectors."""

    def __init__(self, config: BidirectionalConfig) -> None:
        super().__init__()
        self.position_embedding = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = Transformer(
            config.num_layers,
            config.hidden_size,
            config.num_heads,
            config.intermediate_size,
            causal=True,
            norm=config.norm,
            dropout=config.dropout,
            layer_norm_epsilon=LAYER_NORM_EPSILON,
            gelu="tanh",
        )

    def forward(
        self, tokens_BTD: Tensor, document_BT: Tensor | None, positions_BT: Tensor | None
    ) -> Tensor:
        return self.transformer(self._embed(tokens_BTD, positions_BT), None, document_BT)

    def layers(self, tokens_BTD: Tensor, positions_BT: Tensor | None) -> list[Tensor]:
        """The embeddings and each layer of rows that each hold one document."""
        return self.transformer.layers(self._embed(tokens_BTD, positions_BT))

    def _embed(self, tokens_BTD: Tensor, positions_BT: Tensor | None) -> Tensor:
        position_BTD = learned_positions(self.position_embedding, tokens_BTD.shape[1], positions_BT)
        return self.dropout(tokens_BTD + position_BTD)


class Bidirectional(nn.Module):
    """The two directions. `pad_vocab_to_multiple_of`: see `Bert`."""

    def __init__(
        self, config: BidirectionalConfig, vocab_size: int, *, pad_vocab_to_multiple_of: int = 1
    ) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.token_embedding = nn.Embedding(
            padded_size(vocab_size, pad_vocab_to_multiple_of), config.hidden_size
        )
        self.left_to_right = Direction(config)
        self.right_to_left = Direction(config)
        self.initialise()

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew, from `generator` or else from PyTorch's own."""
        initialise(self, self.config.initializer_range, generator, truncated=False)
        if self.config.norm == "pre":
            self.left_to_right.transformer.scale_residuals()
            self.right_to_left.transformer.scale_residuals()
        self.token_embedding.weight[self.vocab_size :].zero_()

    def encode(
        self,
        ids_BT: Tensor,
        targets_BT: Tensor,
        lengths_B: Tensor,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """The states (B, T, 2D) that know all of a target but itself: left, then right.

        `lengths_B` counts the real targets of a row; what comes out at padding means nothing.
        `document_BT` and `positions_BT` are those of the ids, and None where no row holds a
        boundary.
        """
        left_BTD = self.left_to_right(self.token_embedding(ids_BT), document_BT, positions_BT)

        T = ids_BT.shape[1]
        place_T = torch.arange(T, device=ids_BT.device)
        turned_BT = _turned(T, lengths_B)
        places_BT = place_T.expand_as(ids_BT) if positions_BT is None else positions_BT
        right_BTD = self.right_to_left(
            self.token_embedding(targets_BT.gather(1, turned_BT)),
            None if document_BT is None else document_BT.gather(1, turned_BT),
            places_BT.gather(1, turned_BT),
        )
        next_BT = (lengths_B[:, None] - 2 - place_T) % T  # where t + 1 went
        has_next_BT = place_T + 1 < lengths_B[:, None]
        if document_BT is not None:
            has_next_BT = has_next_BT & (document_BT == document_BT.roll(-1, dims=1))
        right_BTD = gather_positions(right_BTD, next_BT)
        right_BTD = torch.where(has_next_BT[:, :, None], right_BTD, right_BTD.new_zeros(()))
        return torch.cat((left_BTD, right_BTD), dim=-1)

    def encode_layers(self, ids_BT: Tensor, lengths_B: Tensor | None = None) -> list[Tensor]:
        """The states that know each token too, num_layers + 1 tensors (B, T, 2D), embeddings first:
        at t the left half has read ids[0 .. t], the right half ids[t ..] from the end.

        This is what fine-tuning reads, as in ELMo: nothing is predicted, so no token is left out.
        `lengths_B` are the numbers of real tokens in the rows, None says that no row is padded.
        """
        B, T = ids_BT.shape
        tokens_BTD = self.token_embedding(ids_BT)
        left = self.left_to_right.layers(tokens_BTD, None)

        turned_BT = _turned(T, ids_BT.new_full((B,), T) if lengths_B is None else lengths_B)
        # Pretraining numbers what it reads from the right as targets, so that token j of a document
        # has place j there on the left and j - 1 on the right. The mark at the front of a row takes
        # the place of the one that opens a document, 0 on the left; from the right that one is
        # never read, and shares 0 with the token behind it.
        places_BT = (turned_BT - 1).clamp(min=0)
        right = self.right_to_left.layers(gather_positions(tokens_BTD, turned_BT), places_BT)
        return [
            torch.cat((left_BTD, gather_positions(right_BTD, turned_BT)), dim=-1)
            for left_BTD, right_BTD in zip(left, right, strict=True)
        ]


def _turned(sequence_length: int, lengths_B: Tensor) -> Tensor:
    """Where each token goes when rows are turned around, (B, T).

    Token t of n real ones goes to n - 1 - t, padding to the end; twice is the identity.
    """
    place_T = torch.arange(sequence_length, device=lengths_B.device)
    return (lengths_B[:, None] - 1 - place_T) % sequence_length


class BidirectionalForPretraining(nn.Module):
    """The two directions under one head: dense, GELU, LayerNorm, the token embedding and a bias.

    `most_logits` may be set: how many logits are held at a time, see cross_entropy.py.
    """

    def __init__(
        self, config: BidirectionalConfig, vocab_size: int, *, pad_vocab_to_multiple_of: int = 1
    ) -> None:
        super().__init__()
        self.most_logits = MOST_LOGITS
        self.bidirectional = Bidirectional(
            config, vocab_size, pad_vocab_to_multiple_of=pad_vocab_to_multiple_of
        )
        self.head = MlmHead(config.hidden_size, vocab_size, input_size=2 * config.hidden_size)
        initialise(self.head, config.initializer_range, truncated=False)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew, from `generator` or else from PyTorch's own."""
        self.bidirectional.initialise(generator)
        initialise(
            self.head, self.bidirectional.config.initializer_range, generator, truncated=False
        )
        nn.init.zeros_(self.head.bias)

    def forward(
        self,
        ids_BT: Tensor,
        targets_BT: Tensor,
        weights_BT: Tensor,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> TokenSums:
        """Cross entropy of the targets, summed. A row is real up to its last weight above 0."""
        place_T = torch.arange(1, ids_BT.shape[1] + 1, device=ids_BT.device)
        lengths_B = (place_T * (weights_BT > 0)).amax(dim=1)
        hidden_BTE = self.bidirectional.encode(
            ids_BT, targets_BT, lengths_B, document_BT, positions_BT
        )
        return token_sums(
            self.head.transform(hidden_BTE.flatten(0, 1)),  # (B, T, 2D) -> (B·T, D)
            self.bidirectional.token_embedding.weight,
            self.head.bias,
            targets_BT.flatten(),
            weights_BT.flatten(),
            self.bidirectional.vocab_size,
            self.most_logits,
        )

    def logits(
        self,
        ids_BT: Tensor,
        targets_BT: Tensor,
        lengths_B: Tensor,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of each target, from all of its document but itself."""
        hidden_BTE = self.bidirectional.encode(
            ids_BT, targets_BT, lengths_B, document_BT, positions_BT
        )
        logits_BTV = self.head(hidden_BTE, self.bidirectional.token_embedding.weight)
        return logits_BTV[..., : self.bidirectional.vocab_size]


class BidirectionalEncoder(LayeredEncoder):
    """The two directions, their states side by side; a level has the same part of both."""

    def __init__(self, config: BidirectionalConfig, vocab_size: int, new_tokens: int = 0) -> None:
        super().__init__()
        self.bidirectional = Bidirectional(config, vocab_size + new_tokens)
        self.width = 2 * config.hidden_size
        self.causal = False
        self.max_length = config.max_length
        self.new_tokens = new_tokens

    def layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        return self.bidirectional.encode_layers(ids_BT, lengths_B)

    def levels(self) -> list[list[nn.Module]]:
        both = (self.bidirectional.left_to_right, self.bidirectional.right_to_left)
        embeddings: list[nn.Module] = [way.position_embedding for way in both]
        embeddings.insert(0, self.bidirectional.token_embedding)
        return [embeddings, *blocks_by_layer([way.transformer for way in both])]

    def word_table(self) -> Tensor:
        return self.bidirectional.token_embedding.weight
