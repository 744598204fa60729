"""The body of a family's model, and what stands on it in pretraining: the parts families share.

    ids ──> body: table of tokens, layers ──> states (B, T, E) ──> heads of the objective
                                                └──> TokenOutput: an output matrix, by default
                                                     the table of tokens again

A body stands in the state dict under its name, in pretraining and in fine-tuning (encoders.py), so
that weights go from one to the other as they are.

Shapes: B batch, T sequence, D hidden, E width of a state, V vocabulary, P rows of the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rungwise.models.attention import keys_to_write
from rungwise.models.cross_entropy import (
    MOST_LOGITS,
    TokenSums,
    output_logits,
    padded_size,
    token_sums,
)
from rungwise.models.transformer import Transformer


class Body(nn.Module, ABC):
    """A table of tokens and the layers above it.

    `width` is E; `causal` says that a state knows only its token and those before it.

    `vocab_multiple` rounds the rows of the table up, because a matrix product likes multiples of
    64: 30,522 becomes 30,528. The added rows are zeros, never looked up and never predicted. With
    1, the default, parameter counts are those of the papers.

    `token_embedding` takes the place of the table in a body that makes vectors in another way.
    """

    name: ClassVar[str]
    causal: bool = True

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        dropout: float,
        vocab_multiple: int = 1,
        token_embedding: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.width = hidden_size
        self.token_embedding: Any = token_embedding or nn.Embedding(
            padded_size(vocab_size, vocab_multiple), hidden_size
        )
        self.dropout = nn.Dropout(dropout)

    @torch.no_grad()
    def clear_padding(self) -> None:
        """Set the added rows to zero, once the weights are drawn."""
        self.token_embedding.weight[self.vocab_size :].zero_()

    def own_output(self, width: int, bound: float) -> nn.Linear:
        """An output matrix (P, `width`) beside the table of tokens, with as many rows; drawn evenly
        from -`bound` to `bound`."""
        output = nn.Linear(width, self.token_embedding.num_embeddings, bias=False)
        nn.init.uniform_(output.weight, -bound, bound)
        nn.init.zeros_(output.weight[self.vocab_size :])
        return output

    def word_table(self) -> Tensor:
        """The tensor with a row for each token: the parameter that pretraining learns, or what is
        given to a body that `spell`s."""
        return self.token_embedding.weight

    def spell(self, tokens: Sequence[bytes], end: int) -> None:
        """Take how each token is written, before training; `end` is the one between documents.

        Asked of families that say `reads_spelling`.
        """
        raise TypeError(f"{type(self).__name__} does not read how tokens are written")

    @abstractmethod
    def encode_layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        """The embeddings and the states of each layer, every one (B, T, E); see `Encoder`."""

    @abstractmethod
    def levels(self) -> list[list[nn.Module]]:
        """The parts with parameters, lowest first: the embeddings, then each layer."""


class TransformerBody(Body):
    """One stack of blocks over a row of embedded tokens."""

    graphs: ClassVar = ("embed",)  # see parallel.py
    transformer: Transformer
    writes = False  # may be set: no token of the second text sees those after it (`keys_to_write`)

    @abstractmethod
    def embed(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """The input of the stack (B, T, D). No segments means that all are the first, no
        positions that they are 0, 1, 2 and so on; a family may look at neither."""

    @abstractmethod
    def embeddings(self) -> list[nn.Module]:
        """The parts with parameters below the stack."""

    def encode(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
        starts_S: Tensor | None = None,
        chosen_BM: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of the last layer: (B, T, D), or (B, M, D) of the chosen positions alone.

        `lengths_B` are the numbers of real tokens in the rows; None says that no row is padded,
        which is faster and must be known on the host. What comes out at padding means nothing.
        In packed rows `document_BT` says which tokens belong together, and padding is a document of
        its own (then `lengths_B` is None); `positions_BT` count within the document, and `starts_S`
        are those of `Documents` (attention.py). What is causal needs no word of padding.
        """
        embedded_BTD = self.embed(ids_BT, segments_BT, positions_BT)
        return self.transformer(embedded_BTD, lengths_B, document_BT, starts_S, chosen_BM)

    def encode_layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        embedded_BTD = self.embed(ids_BT, segments_BT)
        if self.writes:
            assert segments_BT is not None, "they say where the second text begins"
            visible = keys_to_write(segments_BT, lengths_B)
            return self.transformer.layers(embedded_BTD, visible=visible)
        return self.transformer.layers(embedded_BTD, None if self.causal else lengths_B)

    def levels(self) -> list[list[nn.Module]]:
        return [self.embeddings(), *blocks_by_layer([self.transformer])]


class OnBody(nn.Module):
    """A module that stands on a body."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self._body = body.name
        self.add_module(body.name, body)

    @property
    def body(self) -> Body:
        return getattr(self, self._body)


class TokenOutput(OnBody):
    """Predicts a token at every place of a row.

    `most_logits` may be set: how many logits are held at a time, see cross_entropy.py.
    """

    graphs: ClassVar[tuple[str, ...]] = ("sums",)  # see parallel.py
    most_logits = MOST_LOGITS

    def output_table(self) -> Tensor:
        """The output matrix (P, D), a row for each token: the table of tokens, P >= V, unless the
        family has one of its own."""
        return self.body.token_embedding.weight

    def output_bias(self) -> Tensor | None:
        """The bias (V,) of the output; None where it has none."""
        return None

    def sums(self, states_BTD: Tensor, targets_BT: Tensor, weights_BT: Tensor) -> TokenSums:
        """Cross entropy of the targets, summed; the output matrix multiplies the states."""
        return token_sums(
            states_BTD.flatten(0, 1),  # (B, T, D) -> (B·T, D)
            self.output_table(),
            self.output_bias(),
            targets_BT.flatten(),
            weights_BT.flatten(),
            self.body.vocab_size,
            self.most_logits,
        )

    def logits_of(self, states_BTD: Tensor) -> Tensor:
        """Logits (B, T, V), likewise."""
        table_PD, bias_V = self.output_table(), self.output_bias()
        return output_logits(states_BTD, table_PD, bias_V, self.body.vocab_size)


class NextTokenModel(TokenOutput):
    """Predicts what follows each token of packed blocks.

    `document_BT` says which tokens of a row belong together, `positions_BT` count within a
    document; both are None where no row holds a boundary. `starts_S` says the first once more, see
    `Documents` of attention.py.
    """

    def states(
        self,
        ids_BT: Tensor,
        document_BT: Tensor | None,
        positions_BT: Tensor | None,
        starts_S: Tensor | None = None,
    ) -> Tensor:
        """The vectors (B, T, D) that the output matrix multiplies: by default the last states."""
        body: Any = self.body
        return body.encode(ids_BT, None, None, document_BT, positions_BT, starts_S)

    def forward(
        self,
        ids_BT: Tensor,
        targets_BT: Tensor,
        weights_BT: Tensor,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
        starts_S: Tensor | None = None,
    ) -> TokenSums:
        """Cross entropy of the next tokens, summed."""
        states_BTD = self.states(ids_BT, document_BT, positions_BT, starts_S)
        return self.sums(states_BTD, targets_BT, weights_BT)

    def logits(
        self,
        ids_BT: Tensor,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of the token that follows each position."""
        return self.logits_of(self.states(ids_BT, document_BT, positions_BT))


def blocks_by_layer(stacks: Sequence[Transformer]) -> list[list[nn.Module]]:
    """The blocks of each layer of stacks side by side; the norm at the end of a pre-norm stack
    belongs to the highest."""
    layers = [list(blocks) for blocks in zip(*(stack.blocks for stack in stacks), strict=True)]
    layers[-1] += [stack.final_norm for stack in stacks]
    return layers
