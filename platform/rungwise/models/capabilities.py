"""Capabilities: what can be asked of a trained model, whatever its family.

    capability       asked by                                      offered by
    LanguageModel    perplexity, minimal pairs                     every family that predicts tokens
    HidesWords       minimal pairs                                 what predicts masked tokens
    WordVectors      similarity of words                           families with a table of words
    Encoder          fine-tuning, probes                           families with states of tokens
    TargetLogits     the page: surprise at a passage               what trains on packed blocks
    NextTokenLogits  the page: continuations, the use of context   what reads from left to right
    BlankLogits      the page: words to fill in                    what reads both sides

`rungwise.pretraining.pretrained.load_model` gives a trained model; `isinstance` of these protocols
says what it offers, `language_model` and `word_vectors` beside it refuse with a sentence.

Shapes: B batch, T sequence, D hidden, E width of a state, V vocabulary, N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rungwise.models.objectives import CausalBatch


@runtime_checkable
class LanguageModel(Protocol):
    """Gives the probability of each token of a text.

    `is_exact` says that a token is predicted from those before it alone, so that the probabilities
    of a text multiply to that of the text. Otherwise it is predicted from all others, before and
    behind: a pseudo-likelihood (Salazar et al. 2020, arXiv:1910.14659), which bounds nothing and
    is to be compared with pseudo-likelihoods only.
    """

    @property
    def is_exact(self) -> bool: ...

    def log_probabilities(self, texts: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
        """The natural log of the probability of each token of each text; one array a text.

        A text is the ids of one document without any frame. The model opens the document itself;
        whoever wants its end predicted too appends the end symbol. A text longer than the model
        reads is read in windows (`windows` of language_models.py).
        """
        ...


@runtime_checkable
class HidesWords(Protocol):
    """Can hide more of a text than the one token that it predicts."""

    def log_probabilities_in_words(
        self, texts: Sequence[Sequence[int]], word_starts: Sequence[Sequence[bool]]
    ) -> list[NDArray[np.float64]]:
        """`LanguageModel.log_probabilities`, a token being predicted without those behind it in its
        word: PLL-word-l2r of Kauf & Ivanova 2023 (arXiv:2305.10588).

        `word_starts` says at which tokens of a text a word begins.
        """
        ...


@runtime_checkable
class WordVectors(Protocol):
    """Has one vector for each token of the vocabulary, whatever stands around it."""

    @property
    def vocab_size(self) -> int: ...

    def vectors(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """The vectors (N, D) of these tokens."""
        ...


@runtime_checkable
class Encoder(Protocol):
    """Gives each token of a row a state in each layer, layer 0 being the embeddings.

    `causal` says that a state knows only its token and those before it. `max_length` is the longest
    row, None where there is no bound.
    """

    width: int
    causal: bool
    max_length: int | None

    @property
    def num_layers(self) -> int: ...

    def layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        """The embeddings and the states of each layer, every one (B, T, E).

        `lengths_B` are the numbers of real tokens in the rows, None says that no row is padded.
        States at padding mean nothing.
        """
        ...


@runtime_checkable
class TargetLogits(Protocol):
    """Predicts every target of packed blocks."""

    def target_logits(self, batch: CausalBatch) -> Tensor:
        """Logits (B, T, V) of the targets; padding is at the end of a row."""
        ...


@runtime_checkable
class NextTokenLogits(Protocol):
    """Predicts what follows each token of a row, from that token and those before it."""

    def next_logits(self, ids_BT: Tensor) -> Tensor:
        """Logits (B, T, V) of the token behind each position, in rows of one document."""
        ...


@runtime_checkable
class BlankLogits(Protocol):
    """Predicts a token that it does not see, from all others of its row."""

    def blank_logits(
        self, ids_BT: Tensor, segments_BT: Tensor, lengths_B: Tensor, position_B: Tensor
    ) -> Tensor:
        """Logits (B, V) of the token at one position of each row, framed as in pretraining. The
        token that stands there is not read."""
        ...
