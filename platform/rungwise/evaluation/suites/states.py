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

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rungwise.evaluation.suites.base import Rung, Suite
from rungwise.evaluation.suites.section import (
    MeasuredRung,
    SuiteBlock,
    make_layer_panels,
    make_share_panel,
    read_files,
)
from rungwise.models.trained.capabilities import ContextWordVectors, WordVectors
from rungwise.models.trained.encoders import EncodedWords, StaticWords
from rungwise.tokenizer.mask_units import find_blanks

MIX = "mix.json"  # the learned share of each layer, of the suites that learn one
FREQUENT = "most frequent"  # the part that predicts without any state
_HINT = (
    "where a line is highest, and how far above the most frequent answer; layer 0 is the token "
    "embeddings, and the weights of the rung are frozen. That a layer contains information does "
    "not mean that the model uses it. In a learned mix the shares of layers add up to 100 %"
)


@dataclass(frozen=True)
class Sentence:
    """A text, and words of it as character spans [first, end)."""

    text: str
    words: tuple[tuple[int, int], ...]

    @classmethod
    def of_words(cls, words: Sequence[str], places: Iterable[int] | None = None) -> "Sentence":
        """Write the words as a sentence with those at `places`, or all."""
        text, spans = "", []
        for blank, word in zip(find_blanks(words), words, strict=True):
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
    """The ids of a sentence, and the pieces of each of its words."""

    ids: list[int]
    words: list[range]


@dataclass(frozen=True)
class WordReader:
    """Reads word vectors of one rung; `table` is None if it has none."""

    splitter: Any  # a tokenizer of the `tokenizers` library
    source: ContextWordVectors
    table: WordVectors | None

    def layers(self, sentences: Sequence[Sentence]) -> WordStates:
        """The vectors of the words of all sentences, in every layer."""
        split = self._split(sentences)
        words = [each.words for each in split]
        longest = self.source.longest_text
        return WordStates(
            self.source.word_layers([each.ids for each in split], words),
            without_piece=sum(not pieces for each in words for pieces in each),
            in_windows=sum(
                len(each.words) for each in split if longest is not None and len(each.ids) > longest
            ),
        )

    def contexts(self, sentences: Sequence[Sentence]) -> NDArray[np.float32] | None:
        """For each word, the mean (N, E) of the table's vectors of the sentence's other
        pieces: what a static rung knows of its context. None without a table."""
        if self.table is None:
            return None
        rows = []
        for each in self._split(sentences):
            vectors = self.table.vectors(each.ids) if each.ids else np.zeros((0, 1), np.float32)
            for pieces in each.words:
                others = np.delete(vectors, list(pieces), axis=0)
                rows.append(others.mean(axis=0) if len(others) else np.zeros(vectors.shape[1]))
        return np.array(rows, np.float32)

    def _split(self, sentences: Sequence[Sentence]) -> list[_Pieces]:
        texts = [sentence.text for sentence in sentences]
        encodings = self.splitter.encode_batch(texts, add_special_tokens=False)
        return [
            _Pieces(encoding.ids, find_pieces(encoding.offsets, sentence.words))
            for sentence, encoding in zip(sentences, encodings, strict=True)
        ]


def reads_words(rung: Rung) -> bool:
    reads = isinstance(rung.model, WordVectors | ContextWordVectors)
    return reads or rung.encoder is not None


class WordStatesSuite(Suite):
    """A suite that reads vectors of words in sentences."""

    needs: ClassVar[str] = "word vectors"
    section: ClassVar[str] = "Layers"

    def serves(self, rung: Rung) -> bool:
        return reads_words(rung)

    def show(self, name: str, rungs: Sequence[MeasuredRung]) -> SuiteBlock:
        panels = make_layer_panels(rungs, name, FREQUENT)
        shares = read_files(rungs, name, MIX, lambda mix: mix["shares"])
        rows = [
            {"rung": rung, "layer": layer, "share": share}
            for rung, layers in shares.items()
            for layer, share in enumerate(layers)
        ]
        return SuiteBlock(
            name,
            panels=[*panels, make_share_panel(shares, name)] if shares else panels,
            hint=_HINT,
            csv={"mix": rows} if rows else {},
        )


def word_reader(rung: Rung) -> WordReader:
    """The reader of a rung for which `reads_words` is true."""
    table = rung.model if isinstance(rung.model, WordVectors) else None
    return WordReader(rung.splitter, _source(rung, table), table)


def _source(rung: Rung, table: WordVectors | None) -> ContextWordVectors:
    encoder = rung.encoder
    if isinstance(rung.model, ContextWordVectors):
        return rung.model
    if encoder is None or (encoder.num_layers == 0 and table is not None):
        assert table is not None, "a rung without layers and without a table"
        return StaticWords(table)
    objective = rung.summary.model.objective(rung.summary.objective)
    if objective.masks:
        return EncodedWords(encoder, *rung.special.require("cls", "sep"))
    (end,) = rung.special.require("end")
    return EncodedWords(encoder, end, None)


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
