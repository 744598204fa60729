"""Word senses: do the states of an ambiguous word in sentences tell its senses apart? `nearest` is
the nearest mean of a sense's states."""

import json
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import ClassVar, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile, list_matching_files
from rungwise.evaluation.suites import classifiers
from rungwise.evaluation.suites.base import Column, FileSuite, MeasuredRung, Rung, compare_rungs
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.minimal_pairs import held_out_sentences
from rungwise.evaluation.suites.states import (
    FREQUENT,
    MIXED,
    Sentence,
    WordStatesSuite,
    word_reader,
)
from rungwise.instances.order import evenly
from rungwise.tasks.data.made import PLAIN_WORD
from rungwise.tasks.formats.base import quote, read_text, split_lines

_NAMES = "classes_map.txt"
_FEWEST = 20  # sentences of a word of a pair


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
    def words(self, rung: Rung, name: str) -> list[AmbiguousWord]:
        """The words; raises DataError if there are none."""

    def measure(self, rung: Rung, name: str) -> list[Items]:
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

    def columns(self, name: str, rungs: Sequence[MeasuredRung]) -> list[Column]:
        return [compare_rungs(rungs, name, "accuracy", MIXED)]


class SensesSuite(_Senses, FileSuite):
    """Folders of CoarseWSD-20: do a word's vectors tell its senses apart?"""

    kind: Literal["senses"] = "senses"

    def words(self, rung: Rung, name: str) -> list[AmbiguousWord]:
        files = list_matching_files(self.path, f"measure.{name}.path")
        return read_words(files, self.sentences_per_word)


class PseudoWordsSuite(_Senses):
    """Pairs of words, the first of which stands for both in held-out sentences: do its vectors tell
    which was there (Schuetze 1992, "Context Space")?"""

    of_held_out: ClassVar[bool] = True

    kind: Literal["pseudo_words"] = "pseudo_words"
    pairs: int = Field(default=20, ge=1)  # of words, evenly spread over their frequencies

    def words(self, rung: Rung, name: str) -> list[AmbiguousWord]:
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


def make_pseudo_words(
    sentences: Sequence[str], pairs: int, most: int | None
) -> list[AmbiguousWord]:
    """Pairs of words of like frequency in small letters, with equally many sentences of each alone,
    in turns to train and test; the first stands for both."""
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

    def measure(self, rung: Rung, name: str) -> list[Items]:
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
