"""Word senses: do the states of an ambiguous word in sentences tell its senses apart?

    train   the states of "bank" in sentences, with their senses ──> nearest, neighbours, linear
    test    its state in another sentence ──> a sense: right or not

Reads folders of CoarseWSD-20 (Loureiro et al. 2021, "Analysis and Evaluation of Language Models for
Word Sense Disambiguation", arXiv:2008.11608), one per word: `train.data.txt` and `test.data.txt`
have the word's position, a tab and the sentence on each line, `train.gold.txt` and `test.gold.txt`
the number of the sense, `classes_map.txt` the names of senses.

    part                predicts with
    most frequent       the most frequent sense in train
    nearest layer 1     the nearest mean of a sense's states in layer 1
    neighbours layer 1  the vote of the nearest states
    linear layer 1      logistic regression
    linear mix          logistic regression on a learned mean of layers
    nearest context     the nearest mean for the averaged static vectors of the surrounding words;
                        likewise neighbours and linear

`pseudo_words` needs only the corpus: pairs of words, one of which stands for both in held-out
sentences (Gale, Church and Yarowsky 1992, "Work on Statistical Methods for Word Sense
Disambiguation"; Schuetze 1992, "Context Space"). The senses are the two words, equally frequent.

A static vector is the same in every sentence and scores as the most frequent sense does; `context`
shows what the surrounding words add.
"""

import json
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.core.storage import outside
from rungwise.core.storage.source_files import SourceFile
from rungwise.evaluation.suites import classifiers
from rungwise.evaluation.suites.base import FileSuite, Rung, SuiteResult
from rungwise.evaluation.suites.classifiers import Classes
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.minimal_pairs import held_out_sentences
from rungwise.evaluation.suites.section import Column, MeasuredRung, compare_rungs
from rungwise.evaluation.suites.states import (
    FREQUENT,
    MIX,
    Sentence,
    WordReader,
    WordStatesSuite,
    word_reader,
)
from rungwise.instances.order import evenly
from rungwise.tasks.data.made import PLAIN_WORD
from rungwise.tasks.formats.base import quote, read_text, split_lines

_NAMES = "classes_map.txt"
_MIXED = "linear mix"  # needs no choice of layer
_FEWEST = 20  # sentences of a word of a pair


@dataclass(frozen=True)
class SenseSplit:
    """Sentences with the ambiguous word, and the sense number and line of each."""

    sentences: list[Sentence]
    senses: list[str]
    lines: list[int]


@dataclass(frozen=True)
class AmbiguousWord:
    """A word with its sentences and the names of its senses by number."""

    word: str
    names: dict[str, str]
    train: SenseSplit
    test: SenseSplit


class _Senses(WordStatesSuite):
    """The keys and the measure of words with several senses."""

    # most training and most test sentences per word; null: all
    sentences_per_word: int | None = Field(default=200, ge=1)
    neighbours: int = Field(default=5, ge=1)  # nearest training sentences that vote on the sense

    @abstractmethod
    def words(self, rung: Rung, name: str) -> list[AmbiguousWord]:
        """The words; raises DataError if there are none."""

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        reader = word_reader(rung)
        words = [_encode(reader, each) for each in self.words(rung, name)]
        predictions: dict[str, list[Classes]] = defaultdict(list)
        for word in words:
            for part, classes in word.predict(self.neighbours).items():
                predictions[part].append(classes)
        mix, predictions[_MIXED] = _predict_by_mix(words)
        names = [f"{each.word.word} {line}" for each in words for line in each.word.test.lines]
        groups = [each.word.word for each in words for _ in each.word.test.lines]
        truth = np.concatenate([each.test_senses for each in words])
        items = [
            Items.of_credit(name, part, names, groups, np.concatenate(classes) == truth)
            for part, classes in predictions.items()
        ]
        counts = {
            "without_piece": sum(each.without_piece for each in words),
            "in_windows": sum(each.in_windows for each in words),
        }
        return SuiteResult(items, {MIX: mix.as_data() | counts})

    def columns(self, name: str, rungs: Sequence[MeasuredRung]) -> list[Column]:
        return [compare_rungs(rungs, name, "accuracy", _MIXED)]


class SensesSuite(_Senses, FileSuite):
    """Folders of CoarseWSD-20: do a word's vectors tell its senses apart?"""

    kind: Literal["senses"] = "senses"

    def words(self, rung: Rung, name: str) -> list[AmbiguousWord]:
        files = outside.list_matching_files(self.path, f"measure.{name}.path")
        return read_words(files, self.sentences_per_word)


class PseudoWordsSuite(_Senses):
    """Pairs of words, the first of which stands for both: do its vectors tell which was there?"""

    kind: Literal["pseudo_words"] = "pseudo_words"
    pairs: int = Field(default=20, ge=1)  # of words, evenly spread over their frequencies

    @property
    def on_held_out(self) -> bool:
        return True

    def words(self, rung: Rung, name: str) -> list[AmbiguousWord]:
        sentences = [text for _, text in held_out_sentences(each for _, each in rung.held_out)]
        if words := make_pseudo_words(sentences, self.pairs, self.sentences_per_word):
            return words
        raise DataError(
            f"measure.{name}: expected two words that stand in {_FEWEST} held-out sentences each, "
            f"found none in {len(sentences)}; add text, or raise corpus.held_out_fraction"
        )


@dataclass(frozen=True)
class _EncodedWord:
    """A word with its vectors; senses are numbered by frequency in train. Shapes: K layers, N and M
    sentences of train and test, E width, D size of a static vector."""

    word: AmbiguousWord
    order: list[str]
    train: NDArray[np.float32]  # (K, N, E)
    test: NDArray[np.float32]  # (K, M, E)
    contexts: tuple[NDArray[np.float32], NDArray[np.float32]] | None  # (N, D) and (M, D)
    without_piece: int
    in_windows: int

    @property
    def train_senses(self) -> Classes:
        return classifiers.number_classes(self.order, self.word.train.senses)

    @property
    def test_senses(self) -> Classes:
        """The senses (M,); -1 if not in train."""
        return classifiers.number_classes(self.order, self.word.test.senses)

    def predict(self, neighbours: int) -> dict[str, Classes]:
        """The senses (M,) by every part that treats each word separately."""
        senses = self.train_senses
        spaces = {
            f"layer {layer}": (train, test)
            for layer, (train, test) in enumerate(zip(self.train, self.test, strict=True))
        }
        if self.contexts is not None:
            spaces["context"] = self.contexts
        predictions = {FREQUENT: np.zeros(self.test.shape[1], np.int64)}
        for space, (train, test) in spaces.items():
            predictions |= {
                f"nearest {space}": classifiers.by_centroid(train, senses, test),
                f"neighbours {space}": classifiers.by_neighbours(train, senses, test, neighbours),
                f"linear {space}": classifiers.by_line(train, senses, test),
            }
        return predictions


def read_words(files: list[SourceFile], most: int | None) -> list[AmbiguousWord]:
    """Read the words of all folders, sorted, with up to `most` sentences per split, evenly spread.

    Raises DataError for a missing file or a malformed line.
    """
    folders: dict[str, dict[str, SourceFile]] = {}
    for file in files:
        folder, _, name = file.uri.rpartition("/")
        folders.setdefault(folder, {})[name.removesuffix(".gz")] = file
    words = []
    for folder, by_name in sorted(folders.items()):
        needed = [_NAMES, *(f"{s}.{k}.txt" for s in ("train", "test") for k in ("data", "gold"))]
        if missing := [name for name in needed if name not in by_name]:
            raise DataError(
                f"{folder}: expected the files of a word of CoarseWSD-20, {', '.join(needed)}, "
                f"found no {missing[0]}; add it, or change the suite's path"
            )
        names = {str(k): str(v) for k, v in json.loads(read_text(by_name[_NAMES])).items()}
        train, test = (
            _read_split(by_name[f"{split}.data.txt"], by_name[f"{split}.gold.txt"], names, most)
            for split in ("train", "test")
        )
        words.append(AmbiguousWord(folder.rpartition("/")[2], names, train, test))
    return words


def make_pseudo_words(
    sentences: Sequence[str], pairs: int, most: int | None
) -> list[AmbiguousWord]:
    """Pairs of words of like frequency in small letters; the first stands for both. Each has as
    many sentences as the other, with neither word elsewhere in them, in turns to train and test."""
    places: dict[str, list[int]] = defaultdict(list)
    matches = [list(PLAIN_WORD.finditer(sentence)) for sentence in sentences]
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
                whole, start = str(sentences[number]), match.start()
                text = whole[:start] + first + whole[match.end() :]
                split.sentences.append(Sentence(text, ((start, start + len(first)),)))
                split.senses.append(str(sense))
                split.lines.append(number + 1)
        words.append(AmbiguousWord(f"{first}-{second}", {"0": first, "1": second}, *splits))
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


def _encode(reader: WordReader, word: AmbiguousWord) -> _EncodedWord:
    train, test = reader.layers(word.train.sentences), reader.layers(word.test.sentences)
    first, second = (reader.contexts(split.sentences) for split in (word.train, word.test))
    return _EncodedWord(
        word,
        classifiers.by_frequency(word.train.senses),
        train.layers,
        test.layers,
        None if first is None or second is None else (first, second),
        train.without_piece + test.without_piece,
        train.in_windows + test.in_windows,
    )


def _predict_by_mix(words: Sequence[_EncodedWord]) -> tuple[classifiers.Mix, list[Classes]]:
    """Learn one mix of layers for all words, each with its own senses; the senses by word."""
    begins = np.cumsum([0, *(len(each.order) for each in words)])
    both = [classifiers.standardise(each.train, each.test) for each in words]
    train, test = (np.concatenate(parts, axis=1) for parts in zip(*both, strict=True))
    sense_C = np.arange(begins[-1])
    allowed = [
        np.concatenate(
            [
                np.tile((begin <= sense_C) & (sense_C < end), (split.shape[1], 1))
                for split, begin, end in zip(splits, begins[:-1], begins[1:], strict=True)
            ]
        )
        for splits in ([each.train for each in words], [each.test for each in words])
    ]
    senses = [each.train_senses + begin for each, begin in zip(words, begins, strict=False)]
    mix = classifiers.by_mix(train, np.concatenate(senses), test, *allowed)
    ends = np.cumsum([each.test.shape[1] for each in words])[:-1]
    by_word = np.split(mix.classes, ends)
    return mix, [classes - begin for classes, begin in zip(by_word, begins, strict=False)]
