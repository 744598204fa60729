"""Vectors of words in sentences, layer by layer.

    sentence      the bank of the river
    words             ----                      as character spans
    pieces        the | ban | ##k | of | ...    that share a character with the word
    row           [CLS] the ban ##k of the river [SEP]      for masked models
                  [END] the ban ##k of the river            for all others
    vector        mean of the states of ban and ##k, in each layer

Rows are framed as in pretraining, with no untrained special tokens. A word is the mean of its
pieces, even in left-to-right models, where only the last piece has seen the whole word: the mean
includes that piece, and one rule for all rungs keeps their layers 0 comparable. A rung with only a
word table has that as layer 0.

A sentence longer than the model's limit is read in windows (`windows` of language_models.py), so no
word is lost. A word without a piece, such as one of control characters, has a zero vector.

Shapes: K layers, N words, E width, B batch, T sequence.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rungwise.evaluation.suites.base import Rung
from rungwise.models.trained.capabilities import Encoder, WordVectors
from rungwise.models.trained.language_models import windows
from rungwise.tokens.segmenters import blanks_before

_MOST_TOKENS = 1 << 13  # per batch, padding included


@dataclass(frozen=True)
class Sentence:
    """A text, and words of it as character spans [first, end)."""

    text: str
    words: tuple[tuple[int, int], ...]

    @classmethod
    def of_words(cls, words: Sequence[str], places: Iterable[int] | None = None) -> Sentence:
        """Write the words as a sentence with those at `places`, or all."""
        text, spans = "", []
        for blank, word in zip(blanks_before(words), words, strict=True):
            text += blank
            spans.append((len(text), len(text) + len(word)))
            text += word
        return cls(text, tuple(spans if places is None else (spans[place] for place in places)))


@dataclass(frozen=True)
class WordStates:
    """Vectors of the words of all sentences, in order. `without_piece` counts words with zero
    vectors, `in_windows` words of sentences too long to be read at once."""

    layers: NDArray[np.float32]  # (K, N, E)
    without_piece: int
    in_windows: int


class _Pieces(NamedTuple):
    """The ids of a sentence, and (number, pieces) of each of its words."""

    ids: list[int]
    words: list[tuple[int, range]]


@dataclass(frozen=True)
class WordReader:
    """Reads word vectors of one rung.

    `encoder` is None if there is only a table, `table` if there is none. `opens` and `closes` frame
    a row; without `closes`, a window begins with the token before it.
    """

    splitter: Any  # a tokenizer of the `tokenizers` library
    encoder: Encoder | None
    table: WordVectors | None
    opens: int
    closes: int | None

    def layers(self, sentences: Sequence[Sentence]) -> WordStates:
        """The vectors of the words of all sentences, in every layer."""
        split = self._split(sentences)
        count = sum(len(each.words) for each in split)
        without = sum(not pieces for each in split for _, pieces in each.words)
        if self.encoder is None:
            return WordStates(self._table_means(split, count), without, 0)
        layers, in_windows = self._layer_means(self.encoder, split, count)
        return WordStates(layers, without, in_windows)

    def contexts(self, sentences: Sequence[Sentence]) -> NDArray[np.float32] | None:
        """For each word, the mean (N, E) of the table's vectors of the sentence's other
        pieces: what a static rung knows of its context. None without a table."""
        if self.table is None:
            return None
        rows = []
        for each in self._split(sentences):
            vectors = self.table.vectors(each.ids) if each.ids else np.zeros((0, 1), np.float32)
            for _, pieces in each.words:
                others = np.delete(vectors, list(pieces), axis=0)
                rows.append(others.mean(axis=0) if len(others) else np.zeros(vectors.shape[1]))
        return np.array(rows, np.float32)

    def _split(self, sentences: Sequence[Sentence]) -> list[_Pieces]:
        texts = [sentence.text for sentence in sentences]
        split, number = [], 0
        encodings = self.splitter.encode_batch(texts, add_special_tokens=False)
        for sentence, encoding in zip(sentences, encodings, strict=True):
            words = []
            for pieces in find_pieces(encoding.offsets, sentence.words):
                words.append((number, pieces))
                number += 1
            split.append(_Pieces(encoding.ids, words))
        return split

    def _table_means(self, split: Sequence[_Pieces], count: int) -> NDArray[np.float32]:
        assert self.table is not None, "a rung without layers and without a table"
        ids = [each.ids[place] for each in split for _, pieces in each.words for place in pieces]
        numbers = [number for each in split for number, pieces in each.words for _ in pieces]
        return _means(torch.from_numpy(self.table.vectors(ids))[None], numbers, count)

    @torch.no_grad()
    def _layer_means(
        self, encoder: Encoder, split: Sequence[_Pieces], count: int
    ) -> tuple[NDArray[np.float32], int]:
        frame = 1 if self.closes is None else 2
        room = None if encoder.max_length is None else encoder.max_length - frame
        lengths = [len(each.ids) for each in split]
        rows: list[tuple[list[int], list[tuple[int, int]]]] = []  # ids; (position, word number)
        for window in windows(lengths, room):
            each = split[window.text]
            places = [
                (place - window.start + 1, number)
                for number, pieces in each.words
                for place in pieces
                if window.first <= place < window.stop
            ]
            if places:
                rows.append((self._row(each.ids, window.start, window.stop), places))
        rows.sort(key=lambda row_and_places: len(row_and_places[0]))
        states, numbers = [], []
        while rows:
            size = max(1, _MOST_TOKENS // len(rows[-1][0]))
            batch, rows = rows[-size:], rows[:-size]
            layers = self._forward(encoder, [row for row, _ in batch])
            index = [row for row, (_, places) in enumerate(batch) for _ in places]
            columns = [place for _, places in batch for place, _ in places]
            states.append(torch.stack([layer_BTE[index, columns] for layer_BTE in layers]))
            numbers += [number for _, places in batch for _, number in places]
        if not states:
            return np.zeros((encoder.num_layers + 1, count, encoder.width), np.float32), 0
        long = [room is not None and length > room for length in lengths]
        in_windows = sum(
            len(each.words) for each, is_long in zip(split, long, strict=True) if is_long
        )
        return _means(torch.cat(states, dim=1), numbers, count), in_windows

    def _row(self, ids: list[int], start: int, stop: int) -> list[int]:
        if self.closes is not None:
            return [self.opens, *ids[start:stop], self.closes]
        return [ids[start - 1] if start else self.opens, *ids[start:stop]]

    def _forward(self, encoder: Encoder, rows: Sequence[list[int]]) -> list[torch.Tensor]:
        longest = max(map(len, rows))
        ids_BT = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        lengths_B = torch.tensor([len(row) for row in rows])
        padded = bool((lengths_B < longest).any())
        layers = encoder.layers(ids_BT, None, lengths_B if padded else None)
        return [layer_BTE.float() for layer_BTE in layers]


def reads_words(rung: Rung) -> bool:
    return rung.encoder is not None or isinstance(rung.model, WordVectors)


def word_reader(rung: Rung) -> WordReader:
    """The reader of a rung for which `reads_words` is true."""
    encoder = rung.encoder
    table = rung.model if isinstance(rung.model, WordVectors) else None
    if encoder is None or (encoder.num_layers == 0 and table is not None):
        return WordReader(rung.splitter, None, table, 0, None)
    objective = rung.summary.model.objective(rung.summary.objective)
    if objective.masks:
        return WordReader(rung.splitter, encoder, table, *rung.special.require("cls", "sep"))
    (end,) = rung.special.require("end")
    return WordReader(rung.splitter, encoder, table, end, None)


def find_pieces(
    offsets: Sequence[tuple[int, int]], words: Sequence[tuple[int, int]]
) -> list[range]:
    """The pieces that share a character with each word; both are character spans [first, end).

    Pieces may share one character, as its bytes do, and may include the space before a word.
    """
    starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
    return [
        range(bisect_right(ends, first), bisect_left(starts, end)) if first < end else range(0)
        for first, end in words
    ]


def _means(vectors: torch.Tensor, numbers: list[int], count: int) -> NDArray[np.float32]:
    """The mean (K, N, E) of each word's vectors (K, pieces, E); zeros for a word without any."""
    index = torch.tensor(numbers, dtype=torch.int64)
    sums = torch.zeros(vectors.shape[0], count, vectors.shape[2]).index_add_(1, index, vectors)
    sizes = torch.bincount(index, minlength=count).clamp(min=1)
    return (sums / sizes[:, None]).numpy()
