"""Word senses: do the states of an ambiguous word in sentences tell its senses apart? `nearest` is
the nearest mean of a sense's states."""

import json
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, ClassVar, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.core.storage import outside
from rungwise.core.storage.source_files import SourceFile
from rungwise.evaluation.suites import classifiers
from rungwise.evaluation.suites.base import (
    Column,
    FileSuite,
    MeasuredRung,
    Rung,
    ScoreTable,
    SuiteBlock,
    SuiteResult,
    TableEntry,
    TableRow,
    compare_rungs,
)
from rungwise.evaluation.suites.classifiers import Classes
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.minimal_pairs import held_out_sentences
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
    word: str
    train: SenseSplit
    test: SenseSplit


class _Senses(WordStatesSuite):
    # most training and most test sentences per word; null: all
    sentences_per_word: int | None = Field(default=200, ge=1)

    @abstractmethod
    def words(self, rung: Rung, name: str) -> list[AmbiguousWord]:
        """The words; raises DataError if there are none."""

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        reader = word_reader(rung)
        words = [_encode(reader, each) for each in self.words(rung, name)]
        predictions: dict[str, list[Classes]] = defaultdict(list)
        for word in words:
            for part, classes in word.predict().items():
                predictions[part].append(classes)
        mix, predictions[_MIXED] = _predict_by_mix(words)
        names = [f"{each.word.word} {line}" for each in words for line in each.word.test.lines]
        groups = [each.word.word for each in words for _ in each.word.test.lines]
        truth = np.concatenate([each.test_senses for each in words])
        items = [
            Items.of_credit(name, part, names, groups, np.concatenate(classes) == truth)
            for part, classes in predictions.items()
        ]
        return SuiteResult(items, {MIX: {"shares": mix.shares}})

    def columns(self, name: str, rungs: Sequence[MeasuredRung]) -> list[Column]:
        return [compare_rungs(rungs, name, "accuracy", _MIXED)]


class SensesSuite(_Senses, FileSuite):
    """Folders of CoarseWSD-20: do a word's vectors tell its senses apart?"""

    kind: Literal["senses"] = "senses"

    def words(self, rung: Rung, name: str) -> list[AmbiguousWord]:
        files = outside.list_matching_files(self.path, f"measure.{name}.path")
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


@dataclass(frozen=True)
class _EncodedWord:
    """A word with its states in the sentences of train (N) and test (M), and its senses (N,) and
    (M,), numbered by frequency in train; -1 if not in train."""

    word: AmbiguousWord
    train: NDArray[np.float32]  # (K, N, E)
    test: NDArray[np.float32]  # (K, M, E)
    train_senses: Classes
    test_senses: Classes

    def predict(self) -> dict[str, Classes]:
        """The senses (M,) by every part that treats each word separately."""
        predictions = {FREQUENT: np.zeros(len(self.word.test.senses), np.int64)}
        for layer, (train, test) in enumerate(zip(self.train, self.test, strict=True)):
            predictions |= {
                f"nearest layer {layer}": classifiers.by_centroid(train, self.train_senses, test),
                f"linear layer {layer}": classifiers.by_line(train, self.train_senses, test),
            }
        return predictions


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


def _encode(reader: WordReader, word: AmbiguousWord) -> _EncodedWord:
    train, test = (reader.layers(split.sentences) for split in (word.train, word.test))
    order = classifiers.by_frequency(word.train.senses)
    senses = (classifiers.number_classes(order, each.senses) for each in (word.train, word.test))
    return _EncodedWord(word, train, test, *senses)


def _predict_by_mix(words: Sequence[_EncodedWord]) -> tuple[classifiers.Mix, list[Classes]]:
    """Learn one mix of layers for all words, each with its own senses; the senses by word."""
    numbers, senses = np.arange(len(words)), [1 + each.train_senses.max() for each in words]
    begins = np.cumsum([0, *senses])[:-1]
    both = [classifiers.standardise(each.train, each.test) for each in words]
    train, test = (np.concatenate(parts, axis=1) for parts in zip(*both, strict=True))
    train_sizes = [len(each.word.train.senses) for each in words]
    test_sizes = [len(each.word.test.senses) for each in words]
    allowed = [
        np.repeat(numbers, sizes)[:, None] == np.repeat(numbers, senses)
        for sizes in (train_sizes, test_sizes)
    ]
    classes = [each.train_senses + begin for each, begin in zip(words, begins, strict=True)]
    mix = classifiers.by_mix(train, np.concatenate(classes), test, *allowed)
    by_word = np.split(mix.classes, np.cumsum(test_sizes)[:-1])
    return mix, [own - begin for own, begin in zip(by_word, begins, strict=True)]


PAIRS = "pairs.json"
_SAME = 1e-6  # cosines closer than this count as equal, as with identical vectors
_WORDS = (
    "For each sentence of a textbook, the number of the sentence whose marked word is nearest in "
    "the last layer: ✓ same sense, ✗ another sense; “all equal” where a "
    "rung has one vector for all of them. Below it, the cosine."
)


class PolysemySuite(WordStatesSuite):
    """A few ambiguous words: do their vectors differ between senses (Peters et al. 2018,
    arXiv:1802.05365, table 4)?"""

    kind: Literal["polysemy"] = "polysemy"

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        reader, texts = word_reader(rung), read_textbook()
        names, groups, credits, pairs = [], [], [], {}  # a credit (K,) for each occurrence
        for word, occurrences in texts.items():
            senses = [each["sense"] for each in occurrences]
            sentences = [
                Sentence(each["text"], ((each["first"], each["end"]),)) for each in occurrences
            ]
            cosines = [classifiers.cosines(layer, layer) for layer in reader.layers(sentences)]
            rounded = [layer.round(4).tolist() for layer in cosines]
            pairs[word] = {"occurrences": occurrences, "cosines": rounded}
            for place, sense in enumerate(senses):
                if senses.count(sense) > 1:
                    names.append(f"{word} {place}")
                    groups.append(word)
                    credits.append([nearest_credit(layer, senses, place) for layer in cosines])
        items = [
            Items.of_credit(name, f"layer {layer}", names, groups, credit)
            for layer, credit in enumerate(np.array(credits).T)
        ]
        return SuiteResult(items, {PAIRS: pairs})

    def show(self, name: str, rungs: Sequence[MeasuredRung]) -> SuiteBlock:
        files = {rung.name: file for rung in rungs if (file := rung.file(name, PAIRS))}
        words = next(iter(files.values()), {})
        rows = []
        for word, pairs in words.items():
            for place, each in enumerate(pairs["occurrences"]):
                text, first, end = each["text"], each["first"], each["end"]
                marked = f"{text[:first]}*{text[first:end]}*{text[end:]}"
                entries = {rung: _nearest_entry(place, **own[word]) for rung, own in files.items()}
                rows.append(TableRow(marked, entries, f"{word} {place + 1}, {each['sense']}"))
        table = ScoreTable("sentence", rows)
        return replace(super().show(name, rungs), words=_WORDS, tables=[table] if rows else [])


def _nearest_entry(
    place: int, occurrences: Sequence[Mapping[str, Any]], cosines: Sequence[Sequence[Any]]
) -> TableEntry:
    """The occurrence nearest to that at `place` in the last layer, and whether its sense is it."""
    last, senses = cosines[-1][place], [each["sense"] for each in occurrences]
    others = [other for other in range(len(senses)) if other != place]
    most = max(last[other] for other in others)
    nearest = [other for other in others if most - last[other] < _SAME]
    if len(nearest) > 1:
        return TableEntry(text="all equal", under=f"{most:.2f}")
    mark = ""
    if senses.count(senses[place]) > 1:
        mark = "✓ " if senses[nearest[0]] == senses[place] else "✗ "
    return TableEntry(text=f"{mark}{nearest[0] + 1}", under=f"{most:.2f}")


def read_textbook() -> dict[str, list[dict[str, Any]]]:
    """The sentences of each word with its span of characters [first, end) and its sense."""
    file = resources.files("rungwise.evaluation.suites") / "polysemy.yaml"
    texts: dict[str, list[dict[str, Any]]] = {}
    for word, rows in yaml.safe_load(file.read_text("utf-8")).items():
        for row in rows:
            before, marked, after = row["text"].split("*")
            span = {"first": len(before), "end": len(before) + len(marked)}
            occurrence = {"text": before + marked + after, **span, "sense": row["sense"]}
            texts.setdefault(word, []).append(occurrence)
    return texts


def nearest_credit(cosines: NDArray[np.float64], senses: Sequence[str], place: int) -> float:
    """1 if the occurrence nearest to `place` has its sense; for ties, the share that has."""
    others = np.delete(np.arange(len(senses)), place)
    nearest = others[cosines[place][others] == cosines[place][others].max()]
    return float(np.mean([senses[other] == senses[place] for other in nearest]))
