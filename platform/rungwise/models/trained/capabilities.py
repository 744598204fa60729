"""Capabilities: the protocols of a trained model, independent of its family.

Shapes: B batch, T sequence, D hidden, E width of a state, V vocabulary, N tokens.
"""
# A docstring is all that a method of a protocol has.
# pyright: reportReturnType=false

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from rungwise.core.arrays import Floats, Singles

Texts = Sequence[Sequence[int]]  # the ids of each
Words = Sequence[Sequence[range]]  # of each text, the places of each word's tokens


@runtime_checkable
class LanguageModel(Protocol):
    """Gives the probability of each token of a text. With `is_exact`, each token is predicted only
    from those before it, so the probabilities multiply to that of the text. Otherwise it is a
    pseudo-likelihood (Salazar et al. 2020, arXiv:1910.14659), which compares only with others."""

    @property
    def is_exact(self) -> bool: ...

    @property
    def vocab_size(self) -> int: ...

    def log_probabilities(self, texts: Texts) -> list[Floats]:
        """Return the natural log-probability of each token, one array per text. A text is the ids
        of one document without special tokens, or with the end symbol to have it predicted too.
        Long texts are read in windows (`windows` in language_models.py)."""


@runtime_checkable
class HidesWords(Protocol):
    """Can mask the rest of a word while it predicts one of the word's tokens."""

    def log_probabilities_in_words(
        self, texts: Texts, word_starts: Sequence[Sequence[bool]]
    ) -> list[Floats]:
        """Like `LanguageModel.log_probabilities`, but hide the later tokens of a word: PLL-word-l2r
        (Kauf & Ivanova 2023, arXiv:2305.10588). `word_starts` marks the first tokens of words."""


@runtime_checkable
class WordVectors(Protocol):
    """Has one context-independent vector per token of the vocabulary."""

    @property
    def vocab_size(self) -> int: ...

    def vectors(self, ids: Sequence[int]) -> Singles:
        """Return the vectors (N, D) of these tokens."""


@runtime_checkable
class RanksWords(Protocol):
    """Scores every word of the vocabulary in the place of a word, without probabilities."""

    def ranks(self, texts: Texts, places: Sequence[Sequence[int]]) -> Iterator[Floats]:
        """Yield, for each text, the ranks among all words of those at these places: 1 for the
        highest score; words of equal score share their mean rank."""


@runtime_checkable
class ContextWordVectors(Protocol):
    """Gives a word a vector in its context."""

    def word_layers(self, texts: Texts, words: Words) -> Singles:
        """Return the vectors (K, N, E) of the words of all texts, in each of K layers. A word is
        the range of its tokens in its text; one without tokens has zeros."""


@runtime_checkable
class SentenceVectors(Protocol):
    """Has one vector per text, by the family's own pooling or inference."""

    def sentence_vectors(self, texts: Texts) -> Singles:
        """Return the vectors (N, E) of texts, given as ids without special tokens."""


@runtime_checkable
class Encoder(Protocol):
    """Gives each token a state in each layer; layer 0 is the embeddings. With `causal`, a state
    depends only on its token and those before it. `max_length` is the longest row, if any."""

    width: int
    widths: list[int]  # of each layer; the last is `width`
    causal: bool
    max_length: int | None

    @property
    def num_layers(self) -> int: ...

    def layers(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, lengths_B: Tensor | None = None
    ) -> list[Tensor]:
        """Return the embeddings and each layer's states, (B, T, width) each. `lengths_B` counts the
        real tokens of each row; None means no padding. States at padding are meaningless."""


@runtime_checkable
class ReadsSpelling(Protocol):
    """A body that reads how tokens are written."""

    def spell(self, tokens: Sequence[bytes], end: int) -> None:
        """Store how tokens are written, before training; `end` is the one between documents."""


@runtime_checkable
class NextTokenLogits(Protocol):
    """Predicts the next token from a token and those before it."""

    def next_logits(self, ids_BT: Tensor) -> Tensor:
        """Return the logits (B, T, V) of each next token; a row holds one document."""


@runtime_checkable
class BlankLogits(Protocol):
    """Predicts a hidden token from all others of its row."""

    def blank_logits(
        self, ids_BT: Tensor, segments_BT: Tensor, lengths_B: Tensor, position_B: Tensor
    ) -> Tensor:
        """Return the logits (B, V) at one position of each row, framed as in pretraining."""
