"""Vectors of words in sentences, layer by layer: linear probes of them, and whether they tell the
senses of an ambiguous word apart. A vector is the mean of the states of a word's pieces; a rung
with only a word table has that as layer 0.

Shapes: K layers, N words, E width.
"""

import json
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import Paths, SourceFile, list_matching_files
from rungwise.evaluation.suites import base, classifiers
from rungwise.evaluation.suites.classifiers import Classes
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.language_models import held_out_sentences
from rungwise.instances.order import evenly
from rungwise.models.trained.capabilities import ContextWordVectors, WordVectors
from rungwise.models.trained.encoders import EncodedWords, StaticWords
from rungwise.tasks.data.made import PLAIN_WORD
from rungwise.tasks.formats.base import quote, read_text, split_lines
from rungwise.tasks.formats.tagged import ConllFormat, ConlluFormat
from rungwise.tasks.kinds.labels import marks_spans
from rungwise.tokenizer.mask_units import find_blanks

FREQUENT = "most frequent"  # the part that predicts without any state
MIXED = "linear mix"  # that of all layers, which needs no choice of one
_NAMES = "classes_map.txt"  # of CoarseWSD-20
_FEWEST = 20  # sentences of a word of a pair


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


def reads_words(rung: base.Rung) -> bool:
    return isinstance(rung.model, WordVectors | ContextWordVectors) or rung.encoder is not None


class WordStatesSuite(base.Suite):
    needs: ClassVar[str] = "word vectors"
    section: ClassVar[str] = "Layers"

    def serves(self, rung: base.Rung) -> bool:
        return reads_words(rung)


def word_reader(rung: base.Rung) -> WordReader:
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

    def measure(self, rung: base.Rung, name: str) -> list[Items]:
        reader = word_reader(rung)
        train, test = (
            _read_tagged(self.format, getattr(self, split), f"measure.{name}.{split}", most, reader)
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


def most_frequent(words: Sequence[str], classes: Classes, test_words: Sequence[str]) -> Classes:
    """The most frequent class of each test word; the overall one (0) for unseen words."""
    by_word: dict[str, list[int]] = defaultdict(list)
    for word, number in zip(words, classes, strict=True):
        by_word[word].append(number)
    best = {word: int(np.bincount(own).argmax()) for word, own in by_word.items()}
    return np.array([best.get(word, 0) for word in test_words], np.int64)


def _read_tagged(
    data: ConllFormat | ConlluFormat, paths: Paths, key: str, most: int, reader: WordReader
) -> _Split:
    sentences = base.read_examples(paths, data, "test", key, Counter())
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


@dataclass(frozen=True)
class SenseSplit:
    """Sentences with the ambiguous word, and the sense number and line of each."""

    sentences: list[Sentence]
    senses: list[str]
    lines: list[int]


@dataclass(frozen=True)
class AmbiguousWord:
    word: str
    train: SenseSplit
    test: SenseSplit


class _Senses(WordStatesSuite):
    # most training and most test sentences per word; null: all
    sentences_per_word: int | None = Field(default=200, ge=1)

    @abstractmethod
    def words(self, rung: base.Rung, name: str) -> list[AmbiguousWord]:
        """The words; raises DataError if there are none."""

    def measure(self, rung: base.Rung, name: str) -> list[Items]:
        reader = word_reader(rung)
        names, groups = [], []
        right: dict[str, list[NDArray[np.bool_]]] = defaultdict(list)
        for word in self.words(rung, name):
            order = classifiers.by_frequency(word.train.senses)
            senses, truth = (
                classifiers.number_classes(order, each.senses) for each in (word.train, word.test)
            )
            data = reader.layers(word.train.sentences), senses, reader.layers(word.test.sentences)
            predictions = {
                FREQUENT: np.zeros(len(truth), np.int64),
                MIXED: classifiers.by_mix(*data),
                **classifiers.by_layer(*data, "nearest", classifiers.by_centroid),
                **classifiers.by_layer(*data, "linear", classifiers.by_line),
            }
            for part, classes in predictions.items():
                right[part].append(classes == truth)
            names += [f"{word.word} {line}" for line in word.test.lines]
            groups += [word.word] * len(truth)
        return [
            Items.of_credit(name, part, names, groups, np.concatenate(own))
            for part, own in right.items()
        ]

    def columns(self, name: str, rungs: base.Rungs) -> list[base.Column]:
        return [base.compare_rungs(rungs, name, "accuracy", MIXED)]


class SensesSuite(_Senses, base.FileSuite):
    """Folders of CoarseWSD-20: do a word's vectors tell its senses apart?"""

    kind: Literal["senses"] = "senses"

    def words(self, rung: base.Rung, name: str) -> list[AmbiguousWord]:
        files = list_matching_files(self.path, f"measure.{name}.path")
        return read_words(files, self.sentences_per_word)


class PseudoWordsSuite(_Senses):
    """Pairs of words, the first of which stands for both in held-out sentences: do its vectors tell
    which was there (Schuetze 1992, "Context Space")?"""

    of_held_out: ClassVar[bool] = True

    kind: Literal["pseudo_words"] = "pseudo_words"
    pairs: int = Field(default=20, ge=1)  # of words, evenly spread over their frequencies

    def words(self, rung: base.Rung, name: str) -> list[AmbiguousWord]:
        sentences = [text for _, text in held_out_sentences(each for _, each in rung.held_out)]
        if words := make_pseudo_words(sentences, self.pairs, self.sentences_per_word):
            return words
        raise DataError(
            f"measure.{name}: expected two words that stand in {_FEWEST} held-out sentences each, "
            f"found none in {len(sentences)}; add text, or raise corpus.held_out_fraction"
        )


def read_words(files: list[SourceFile], most: int | None) -> list[AmbiguousWord]:
    """Read the words of all folders of CoarseWSD-20 (Loureiro et al. 2021, arXiv:2008.11608), with
    up to `most` sentences per split. Raises DataError for a missing file or a malformed line."""
    folders: dict[str, dict[str, SourceFile]] = defaultdict(dict)
    for file in files:
        folder, _, name = file.uri.rpartition("/")
        folders[folder][name.removesuffix(".gz")] = file
    words = []
    for folder, by_name in sorted(folders.items()):
        needed = [_NAMES, *(f"{s}.{k}.txt" for s in ("train", "test") for k in ("data", "gold"))]
        if missing := [name for name in needed if name not in by_name]:
            raise DataError(
                f"{folder}: expected the files of a word of CoarseWSD-20, {', '.join(needed)}, "
                f"found no {missing[0]}; add it, or change the suite's path"
            )
        names = _read_names(by_name[_NAMES])
        train, test = (
            _read_split(by_name[f"{split}.data.txt"], by_name[f"{split}.gold.txt"], names, most)
            for split in ("train", "test")
        )
        words.append(AmbiguousWord(folder.rpartition("/")[2], train, test))
    return words


def _read_names(file: SourceFile) -> dict[str, str]:
    try:
        return {str(key): str(value) for key, value in json.loads(read_text(file)).items()}
    except (ValueError, RecursionError, AttributeError) as error:
        raise DataError(f"{file.uri}: expected an object of sense by number ({error})") from error


def make_pseudo_words(texts: Sequence[str], pairs: int, most: int | None) -> list[AmbiguousWord]:
    """Pairs of words of like frequency in small letters, with equally many sentences of each alone,
    in turns to train and test; the first stands for both."""
    places: dict[str, list[int]] = defaultdict(list)
    matches = [list(PLAIN_WORD.finditer(text)) for text in texts]
    counts = [Counter(match[0] for match in each) for each in matches]
    for number, each in enumerate(counts):
        for word in each:
            if each[word] == 1 and word == word.lower():
                places[word].append(number)
    ranked = sorted(places, key=lambda word: (-len(places[word]), word))
    ranked = [word for word in ranked if len(places[word]) >= _FEWEST]
    words = []
    for place in evenly(len(ranked) // 2, pairs).tolist():
        first, second = ranked[2 * place : 2 * place + 2]
        alone = [
            [number for number in places[word] if other not in counts[number]]
            for word, other in ((first, second), (second, first))
        ]
        size = min(map(len, alone))
        if size < _FEWEST // 2:  # they stand together
            continue
        size = size if most is None else min(size, 2 * most)
        splits = SenseSplit([], [], []), SenseSplit([], [], [])
        for sense, (word, numbers) in enumerate(zip((first, second), alone, strict=True)):
            for turn, index in enumerate(evenly(len(numbers), size).tolist()):
                number, split = numbers[index], splits[turn % 2]
                (match,) = (each for each in matches[number] if each[0] == word)
                whole, start = str(texts[number]), match.start()
                text = whole[:start] + first + whole[match.end() :]
                split.sentences.append(Sentence(text, ((start, start + len(first)),)))
                split.senses.append(str(sense))
                split.lines.append(number + 1)
        words.append(AmbiguousWord(f"{first}-{second}", *splits))
    return words


def _read_split(
    data: SourceFile, gold: SourceFile, names: dict[str, str], most: int | None
) -> SenseSplit:
    lines, senses = split_lines(read_text(data)), split_lines(read_text(gold))
    if len(lines) != len(senses):
        raise DataError(
            f"{gold.uri}: expected a sense for each of the {len(lines)} lines of {data.uri}, "
            f"found {len(senses)}; fetch both again"
        )
    numbers = range(len(lines)) if most is None else evenly(len(lines), most).tolist()
    sentences = []
    for number in numbers:
        place, _, text = lines[number].partition("\t")
        words = text.split(" ")
        if not place.isdigit() or int(place) >= len(words):
            raise DataError(
                f"{data.uri}:{number + 1}: expected the place of a word, a tab and the sentence, "
                f"found {quote(lines[number])}; mend the line"
            )
        if senses[number] not in names:
            raise DataError(
                f"{gold.uri}:{number + 1}: expected one of the senses {', '.join(names)}, found "
                f"{quote(senses[number])}; mend the line, or {_NAMES}"
            )
        sentences.append(Sentence.of_words(words, [int(place)]))
    return SenseSplit(sentences, [senses[n] for n in numbers], [n + 1 for n in numbers])


class PolysemySuite(WordStatesSuite):
    """A few ambiguous words: is the nearest occurrence of one in the same sense (Peters et al.
    2018, arXiv:1802.05365, table 4)?"""

    kind: Literal["polysemy"] = "polysemy"

    def measure(self, rung: base.Rung, name: str) -> list[Items]:
        reader = word_reader(rung)
        names, groups, credits = [], [], []  # a credit (K,) for each occurrence
        for word, (sentences, senses) in read_textbook().items():
            cosines = [classifiers.cosines(layer, layer) for layer in reader.layers(sentences)]
            for place, sense in enumerate(senses):
                if senses.count(sense) > 1:
                    names.append(f"{word} {place}")
                    groups.append(word)
                    credits.append([nearest_credit(layer, senses, place) for layer in cosines])
        return [
            Items.of_credit(name, f"layer {layer}", names, groups, credit)
            for layer, credit in enumerate(np.array(credits).T)
        ]


def read_textbook() -> dict[str, tuple[list[Sentence], list[str]]]:
    """The sentences of each word, with its place in them, and the sense in each."""
    file = resources.files("rungwise.evaluation.suites") / "polysemy.yaml"
    texts: dict[str, tuple[list[Sentence], list[str]]] = {}
    for word, rows in yaml.safe_load(file.read_text("utf-8")).items():
        sentences, senses = texts.setdefault(word, ([], []))
        for row in rows:
            before, marked, after = row["text"].split("*")
            span = len(before), len(before) + len(marked)
            sentences.append(Sentence(before + marked + after, (span,)))
            senses.append(row["sense"])
    return texts


def nearest_credit(cosines: NDArray[np.float64], senses: Sequence[str], place: int) -> float:
    """1 if the occurrence nearest to `place` has its sense; for ties, the share that has."""
    others = np.delete(np.arange(len(senses)), place)
    nearest = others[cosines[place][others] == cosines[place][others].max()]
    return float(np.mean([senses[other] == senses[place] for other in nearest]))
