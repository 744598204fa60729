"""Vectors of words in their contexts, and of whole texts, for families without ways of their own.

    EncodedWords    ContextWordVectors    the mean of the states of a word's tokens, in each layer
    StaticWords     ContextWordVectors    the mean of their vectors in a table, in any context
    MeanOfStates    SentenceVectors       the mean of the last states of a text

Rows are framed as in pretraining, with no untrained special tokens. A word is the mean of its
tokens, even in left-to-right models, where only the last token has seen the whole word: the mean
includes it, and one rule for all rungs keeps their layers 0 comparable. Layers narrower than the
widest have zeros behind their units.

Shapes: K layers, N words, E width, B batch, T sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rungwise.models.trained.capabilities import Encoder, WordVectors
from rungwise.models.trained.language_models import windows
from rungwise.models.transformer.body import Body

_MOST_TOKENS = 1 << 13  # per batch, padding included


@dataclass(frozen=True)
class EncodedWords:
    """Reads words with an encoder. `opens` and `closes` frame a row; without `closes`, a window
    begins with the token before it, and without either with its first token."""

    encoder: Encoder
    opens: int | None
    closes: int | None

    @property
    def longest_text(self) -> int | None:
        frame = (self.opens is not None) + (self.closes is not None)
        return None if self.encoder.max_length is None else self.encoder.max_length - frame

    @torch.no_grad()
    def word_layers(
        self, texts: Sequence[Sequence[int]], words: Sequence[Sequence[range]]
    ) -> NDArray[np.float32]:
        """Return the vectors (K, N, E); see `ContextWordVectors`."""
        tokens = _tokens_of_words(words)
        rows: list[tuple[list[int], list[tuple[int, int]]]] = []  # ids; (position, word number)
        for window in windows([len(text) for text in texts], self.longest_text):
            places = [
                (place - window.start + (self.opens is not None), number)
                for number, place in tokens[window.text]
                if window.first <= place < window.stop
            ]
            if places:
                rows.append((self._row(texts[window.text], window.start, window.stop), places))
        rows.sort(key=lambda row: len(row[0]))
        states, numbers = [], []
        while rows:
            size = max(1, _MOST_TOKENS // len(rows[-1][0]))
            batch, rows = rows[-size:], rows[:-size]
            layers = self._forward([ids for ids, _ in batch])
            at = [row for row, (_, places) in enumerate(batch) for _ in places]
            columns = [place for _, places in batch for place, _ in places]
            states.append(torch.stack([layer_BTE[at, columns] for layer_BTE in layers]))
            numbers += [number for _, places in batch for _, number in places]
        count = sum(map(len, words))
        if not states:
            widest = max(self.encoder.widths)
            return np.zeros((self.encoder.num_layers + 1, count, widest), np.float32)
        return _means(torch.cat(states, dim=1), numbers, count)

    def _row(self, ids: Sequence[int], start: int, stop: int) -> list[int]:
        if self.opens is None:
            return [*ids[start:stop]]
        if self.closes is not None:
            return [self.opens, *ids[start:stop], self.closes]
        return [ids[start - 1] if start else self.opens, *ids[start:stop]]

    def _forward(self, rows: Sequence[list[int]]) -> list[Tensor]:
        longest = max(map(len, rows))
        ids_BT = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        lengths_B = torch.tensor([len(row) for row in rows])
        padded = bool((lengths_B < longest).any())
        layers = self.encoder.layers(ids_BT, None, lengths_B if padded else None)
        widest = max(layer_BTE.shape[2] for layer_BTE in layers)
        return [
            functional.pad(layer_BTE.float(), (0, widest - layer_BTE.shape[2]))
            for layer_BTE in layers
        ]


@dataclass(frozen=True)
class StaticWords:
    """Gives a word its one vector, in any context; its only layer is the table."""

    table: WordVectors
    longest_text: int | None = None

    def word_layers(
        self, texts: Sequence[Sequence[int]], words: Sequence[Sequence[range]]
    ) -> NDArray[np.float32]:
        """Return the vectors (1, N, D); see `ContextWordVectors`."""
        tokens = [
            text[place]
            for text, ranges in zip(texts, words, strict=True)
            for each in ranges
            for place in each
        ]
        return word_means(self.table.vectors(tokens)[None], words)


@dataclass(frozen=True)
class MeanOfStates:
    """Gives a text the mean of its last states, the two marks included; a longer one is cut."""

    body: Body
    max_length: int | None
    opens: int
    closes: int

    @torch.no_grad()
    def sentence_vectors(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Return the vectors (N, E). Each text is read alone, so that results do not depend on the
        batch, not even in the last bit."""
        room = None if self.max_length is None else self.max_length - 2
        rows = (torch.tensor([[self.opens, *text[:room], self.closes]]) for text in texts)
        states = [self.body.encode_layers(ids_1T)[-1][0].float() for ids_1T in rows]
        return np.array([states_TE.mean(dim=0).numpy() for states_TE in states])


def word_means(
    vectors: NDArray[np.float32], words: Sequence[Sequence[range]]
) -> NDArray[np.float32]:
    """Return the mean (K, N, E) of each word's vectors, given those (K, tokens, E) of the tokens of
    all words in order; zeros for a word without tokens."""
    sizes = [len(each) for ranges in words for each in ranges]
    numbers = np.repeat(np.arange(len(sizes)), sizes).tolist()
    return _means(torch.from_numpy(vectors), numbers, len(sizes))


def _tokens_of_words(words: Sequence[Sequence[range]]) -> list[list[tuple[int, int]]]:
    """Return, for each text, the number of a word and the place of a token, for all its tokens."""
    tokens, number = [], 0
    for ranges in words:
        tokens.append([(number + n, place) for n, each in enumerate(ranges) for place in each])
        number += len(ranges)
    return tokens


def _means(vectors: Tensor, numbers: list[int], count: int) -> NDArray[np.float32]:
    """Return the mean (K, N, E) of each word's vectors (K, tokens, E); zeros if it has none."""
    index = torch.tensor(numbers, dtype=torch.int64)
    sums = torch.zeros(vectors.shape[0], count, vectors.shape[2]).index_add_(1, index, vectors)
    sizes = torch.bincount(index, minlength=count).clamp(min=1)
    return (sums / sizes[:, None]).numpy()
