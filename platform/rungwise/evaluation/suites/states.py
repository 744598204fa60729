"""Vectors of words in sentences, layer by layer, and linear probes of them. A vector is the mean of
the states of a word's pieces; a rung with only a word table has that as layer 0.

Shapes: K layers, N words, E width.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.core.storage.outside import Paths
from rungwise.evaluation.suites import classifiers
from rungwise.evaluation.suites.base import Rung, Suite, read_examples
from rungwise.evaluation.suites.classifiers import Classes
from rungwise.evaluation.suites.items import Items
from rungwise.instances.order import evenly
from rungwise.models.trained.capabilities import ContextWordVectors, WordVectors
from rungwise.models.trained.encoders import EncodedWords, StaticWords
from rungwise.tasks.formats.tagged import ConllFormat, ConlluFormat
from rungwise.tasks.kinds.labels import marks_spans
from rungwise.tokenizer.mask_units import find_blanks

FREQUENT = "most frequent"  # the part that predicts without any state
MIXED = "linear mix"  # that of all layers, which needs no choice of one


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
class WordReader:
    """Reads word vectors of one rung."""

    splitter: Any  # a tokenizer of the `tokenizers` library
    source: ContextWordVectors

    def layers(self, sentences: Sequence[Sentence]) -> NDArray[np.float32]:
        """The vectors (K, N, E) of the words of all sentences; zeros for words without a piece."""
        texts = [sentence.text for sentence in sentences]
        encodings = self.splitter.encode_batch(texts, add_special_tokens=False)
        words = [
            find_pieces(encoding.offsets, sentence.words)
            for sentence, encoding in zip(sentences, encodings, strict=True)
        ]
        return self.source.word_layers([encoding.ids for encoding in encodings], words)


def reads_words(rung: Rung) -> bool:
    return isinstance(rung.model, WordVectors | ContextWordVectors) or rung.encoder is not None


class WordStatesSuite(Suite):
    needs: ClassVar[str] = "word vectors"
    section: ClassVar[str] = "Layers"

    def serves(self, rung: Rung) -> bool:
        return reads_words(rung)


def word_reader(rung: Rung) -> WordReader:
    """The reader of a rung for which `reads_words` is true."""
    encoder, source = rung.encoder, rung.model
    table = rung.model if isinstance(rung.model, WordVectors) else None
    if isinstance(source, ContextWordVectors):
        return WordReader(rung.splitter, source)
    if encoder is None or (encoder.num_layers == 0 and table is not None):
        assert table is not None, "a rung without layers and without a table"
        return WordReader(rung.splitter, StaticWords(table))
    masks = rung.summary.model.objective(rung.summary.objective).masks
    ends = rung.special.require("cls", "sep") if masks else (*rung.special.require("end"), None)
    return WordReader(rung.splitter, EncodedWords(encoder, *ends))


def find_pieces(
    offsets: Sequence[tuple[int, int]], words: Sequence[tuple[int, int]]
) -> list[range]:
    """The pieces that share a character with each word; both are character spans [first, end)."""
    starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
    return [
        range(bisect_right(ends, first), bisect_left(starts, end)) if first < end else range(0)
        for first, end in words
    ]


class ProbeSuite(WordStatesSuite):
    """Linear probes: which tags can be read off each layer?"""

    reads: ClassVar[tuple[str, ...]] = ("train", "test")

    kind: Literal["probe"] = "probe"
    train: Paths  # files of tagged sentences to train the probe on
    test: Paths  # files of tagged sentences to test it on
    # format of these files, as in the data of a task
    format: Annotated[ConllFormat | ConlluFormat, Field(discriminator="kind")]
    # about how many words to train on, in whole sentences, evenly spread
    train_words: int = Field(default=8000, ge=1)
    test_words: int = Field(default=5000, ge=1)  # about how many words to test on, likewise

    def measure(self, rung: Rung, name: str) -> list[Items]:
        reader = word_reader(rung)
        train, test = (
            _read_split(self.format, getattr(self, split), f"measure.{name}.{split}", most, reader)
            for split, most in (("train", self.train_words), ("test", self.test_words))
        )
        order = classifiers.by_frequency(train.tags)
        classes, truth = (classifiers.number_classes(order, each.tags) for each in (train, test))
        data = train.layers, classes, test.layers
        predictions = {
            FREQUENT: most_frequent(train.words, classes, test.words),
            MIXED: classifiers.by_mix(*data),
            **classifiers.by_layer(*data, "linear", classifiers.by_line),
        }
        # The tag of each word, or its span type for span tags.
        groups = [t.partition("-")[2] or t for t in test.tags] if marks_spans(order) else test.tags
        return [
            Items.of_credit(name, part, test.names, groups, tags == truth)
            for part, tags in predictions.items()
        ]


class _Split(NamedTuple):
    names: list[str]  # file, line of the sentence and position in it
    words: list[str]
    tags: list[str]
    layers: NDArray[np.float32]  # (K, N, E)


def most_frequent(
    train_words: Sequence[str], classes: Classes, test_words: Sequence[str]
) -> Classes:
    """The most frequent class of each test word; the overall one (0) for unseen words."""
    by_word: dict[str, list[int]] = defaultdict(list)
    for word, number in zip(train_words, classes, strict=True):
        by_word[word].append(number)
    best = {word: int(np.bincount(own).argmax()) for word, own in by_word.items()}
    return np.array([best.get(word, 0) for word in test_words], np.int64)


def _read_split(
    data: ConllFormat | ConlluFormat, paths: Paths, key: str, most: int, reader: WordReader
) -> _Split:
    sentences = read_examples(paths, data, "test", key, Counter())
    words = sum(len(each.words) for each in sentences)
    if not words:
        raise DataError(f"{key}: expected tagged words, found none in {paths[0]}; change {key}")
    number = max(1, round(len(sentences) * most / words))
    sentences = [sentences[index] for index in evenly(len(sentences), number)]
    return _Split(
        [f"{each.where} {place}" for each in sentences for place in range(len(each.words))],
        [word.lower() for each in sentences for word in each.words],
        [tag for each in sentences for tag in each.tags or ()],
        reader.layers([Sentence.of_words(each.words) for each in sentences]),
    )
