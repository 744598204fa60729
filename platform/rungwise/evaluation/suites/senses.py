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

A static vector is the same in every sentence and scores as the most frequent sense does; `context`
shows what the surrounding words add. The map shows test sentences in the layer (above the static
layer 0, if any) whose nearest means score best in cross-validation on train.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.core.storage import outside
from rungwise.core.storage.source_files import SourceFile
from rungwise.evaluation.suites import classifiers
from rungwise.evaluation.suites.base import FileSuite, Measured, Rung
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.states import Sentence, WordReader, reads_words, word_reader
from rungwise.instances.order import evenly
from rungwise.tasks.formats.base import read_text, shown, split_lines

MAP = "map.json"
MIX = "mix.json"
_NAMES = "classes_map.txt"
_FOLDS = 5
_POINTS = 150  # on the map of a word
_SHOWN = 40  # characters on each side of the word


class SensesSuite(FileSuite):
    """Folders of CoarseWSD-20: do a word's vectors tell its senses apart?"""

    needs: ClassVar[str] = "word vectors"

    kind: Literal["senses"] = "senses"
    # most training and most test sentences per word; null: all
    sentences_per_word: int | None = Field(default=200, ge=1)
    neighbours: int = Field(default=5, ge=1)  # nearest training sentences that vote on the sense

    def serves(self, rung: Rung) -> bool:
        return reads_words(rung)

    def measure(self, rung: Rung, name: str) -> Measured:
        words = read(outside.matching(self.path, f"measure.{name}.path"), self.sentences_per_word)
        read_words = [_read(word_reader(rung), word) for word in words]
        predicted: dict[str, list[NDArray[np.int64]]] = {}
        for each in read_words:
            for part, classes in each.predicted(self.neighbours).items():
                predicted.setdefault(part, []).append(classes)
        mix, of_words = _mixed(read_words)
        predicted["linear mix"] = of_words
        names = [f"{word.word} {line}" for word in words for line in word.test.lines]
        groups = [word.word for word in words for _ in word.test.lines]
        right = np.concatenate([each.test_senses for each in read_words])
        items = []
        for part, classes in predicted.items():
            credit = (np.concatenate(classes) == right).astype(np.float64)
            numbers = np.stack([credit, np.ones(len(credit))], axis=1)
            items.append(Items(name, "accuracy", names, groups, numbers, part))
        counts = {
            key: sum(getattr(each, key) for each in read_words)
            for key in ("without_piece", "in_windows")
        }
        maps = {each.word.word: each.map() for each in read_words}
        return Measured(items, {MIX: _json(mix.as_data() | counts), MAP: _json(maps)})


@dataclass(frozen=True)
class Split:
    """Sentences with the word asked, and the sense number and line of each."""

    sentences: list[Sentence]
    senses: list[str]
    lines: list[int]


@dataclass(frozen=True)
class AmbiguousWord:
    """A word with its sentences and the names of its senses by number."""

    word: str
    names: dict[str, str]
    train: Split
    test: Split

    def shown(self, sense: str) -> str:
        """The readable name of a sense: `bank_bank_(geography)` gives `bank (geography)`."""
        return self.names[sense].removeprefix(f"{self.word}_").replace("_", " ")


@dataclass(frozen=True)
class _ReadWord:
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
    def train_senses(self) -> NDArray[np.int64]:
        return np.array([self.order.index(sense) for sense in self.word.train.senses])

    @property
    def test_senses(self) -> NDArray[np.int64]:
        """The senses (M,); -1 if not in train."""
        place = {sense: number for number, sense in enumerate(self.order)}
        return np.array([place.get(sense, -1) for sense in self.word.test.senses])

    def predicted(self, neighbours: int) -> dict[str, NDArray[np.int64]]:
        """The senses (M,) by every part that treats each word separately."""
        senses = self.train_senses
        spaces = {
            f"layer {layer}": (train, test)
            for layer, (train, test) in enumerate(zip(self.train, self.test, strict=True))
        }
        if self.contexts is not None:
            spaces["context"] = self.contexts
        found = {"most frequent": np.zeros(self.test.shape[1], np.int64)}
        for space, (train, test) in spaces.items():
            found |= {
                f"nearest {space}": classifiers.by_centroid(train, senses, test),
                f"neighbours {space}": classifiers.by_neighbours(train, senses, test, neighbours),
                f"linear {space}": classifiers.by_line(train, senses, test),
            }
        return found

    def map(self) -> dict[str, Any]:
        """Test sentences in two dimensions, in the layer described at the head of this module."""
        by_layer = [_folded(train, self.train_senses) for train in self.train]
        lowest = min(1, len(by_layer) - 1)
        layer = lowest + int(np.argmax(by_layer[lowest:]))
        kept = evenly(self.test.shape[1], _POINTS).tolist()
        points = plane(self.test[layer][kept])
        return {
            "layer": layer,
            "accuracy_in_folds_of_train": by_layer,
            "senses": [self.word.shown(sense) for sense in self.order],
            "points": [
                {
                    "x": round(float(x), 4),
                    "y": round(float(y), 4),
                    "sense": int(self.test_senses[index]),
                    "text": _around(self.word.test.sentences[index]),
                }
                for index, (x, y) in zip(kept, points, strict=True)
            ],
        }


def read(files: list[SourceFile], most: int | None) -> list[AmbiguousWord]:
    """Read the words of all folders, sorted, with up to `most` sentences per split, evenly spread.

    Raises DataError for a missing file or a malformed line.
    """
    folders: dict[str, dict[str, SourceFile]] = {}
    for file in files:
        folder, _, name = file.uri.rpartition("/")
        folders.setdefault(folder, {})[name.removesuffix(".gz")] = file
    words = []
    for folder, found in sorted(folders.items()):
        needed = [_NAMES, *(f"{s}.{k}.txt" for s in ("train", "test") for k in ("data", "gold"))]
        if missing := [name for name in needed if name not in found]:
            raise DataError(
                f"{folder}: expected the files of a word of CoarseWSD-20, {', '.join(needed)}, "
                f"found no {missing[0]}; add it, or change the suite's path"
            )
        names = {str(key): str(name) for key, name in json.loads(read_text(found[_NAMES])).items()}
        train, test = (
            _split(found[f"{split}.data.txt"], found[f"{split}.gold.txt"], names, most)
            for split in ("train", "test")
        )
        words.append(AmbiguousWord(folder.rpartition("/")[2], names, train, test))
    return words


def plane(vectors_NE: NDArray[np.floating]) -> NDArray[np.float64]:
    """The first two principal components (N, 2), each with its largest coordinate positive."""
    centred = vectors_NE.astype(np.float64) - vectors_NE.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(vectors_NE), 2))
    points[:, : len(sizes)] = (left * sizes)[:, :2]
    peaks = points[np.abs(points).argmax(axis=0), [0, 1]]
    return points * np.where(peaks < 0, -1.0, 1.0)


def _split(data: SourceFile, gold: SourceFile, names: dict[str, str], most: int | None) -> Split:
    lines, senses = split_lines(read_text(data)), split_lines(read_text(gold))
    if len(lines) != len(senses):
        raise DataError(
            f"{gold.uri}: expected a sense for each of the {len(lines)} lines of {data.uri}, "
            f"found {len(senses)}; fetch both again"
        )
    kept = range(len(lines)) if most is None else evenly(len(lines), most).tolist()
    sentences = []
    for index in kept:
        place, _, text = lines[index].partition("\t")
        words = text.split(" ")
        if not place.isdigit() or int(place) >= len(words):
            raise DataError(
                f"{data.uri}:{index + 1}: expected the place of a word, a tab and the sentence, "
                f"found {shown(lines[index])}; mend the line"
            )
        if senses[index] not in names:
            raise DataError(
                f"{gold.uri}:{index + 1}: expected one of the senses {', '.join(names)}, found "
                f"{shown(senses[index])}; mend the line, or {_NAMES}"
            )
        sentences.append(Sentence.of_words(words, [int(place)]))
    return Split(sentences, [senses[index] for index in kept], [index + 1 for index in kept])


def _read(reader: WordReader, word: AmbiguousWord) -> _ReadWord:
    train, test = reader.layers(word.train.sentences), reader.layers(word.test.sentences)
    around = [reader.contexts(split.sentences) for split in (word.train, word.test)]
    first, second = around
    return _ReadWord(
        word,
        classifiers.by_frequency(word.train.senses),
        train.layers,
        test.layers,
        None if first is None or second is None else (first, second),
        train.without_piece + test.without_piece,
        train.in_windows + test.in_windows,
    )


def _mixed(words: list[_ReadWord]) -> tuple[classifiers.Mix, list[NDArray[np.int64]]]:
    """Learn one mix of layers for all words, each with its own senses; the senses by word."""
    begins = np.cumsum([0, *(len(each.order) for each in words)])
    both = [classifiers.standardised(each.train, each.test) for each in words]
    train, test = (np.concatenate(parts, axis=1) for parts in zip(*both, strict=True))
    allowed = []
    for split in ("train", "test"):
        rows = []
        for number, each in enumerate(words):
            own = np.zeros((getattr(each, split).shape[1], begins[-1]), np.bool_)
            own[:, begins[number] : begins[number + 1]] = True
            rows.append(own)
        allowed.append(np.concatenate(rows))
    senses = [each.train_senses + begin for each, begin in zip(words, begins, strict=False)]
    mix = classifiers.by_mix(train, np.concatenate(senses), test, *allowed)
    ends = np.cumsum([each.test.shape[1] for each in words])[:-1]
    found = np.split(mix.predicted, ends)
    return mix, [classes - begin for classes, begin in zip(found, begins, strict=False)]


def _folded(vectors_NE: NDArray[np.float32], senses_N: NDArray[np.int64]) -> float:
    """The cross-validated accuracy of the nearest mean."""
    fold = np.arange(len(senses_N)) % _FOLDS
    right = 0
    for number in range(_FOLDS):
        inside, held = fold != number, fold == number
        if inside.any() and held.any():
            found = classifiers.by_centroid(vectors_NE[inside], senses_N[inside], vectors_NE[held])
            right += int((found == senses_N[held]).sum())
    return right / len(senses_N)


def _around(sentence: Sentence) -> str:
    ((first, end),) = sentence.words
    return sentence.text[max(0, first - _SHOWN) : end + _SHOWN]


def _json(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode("utf-8")
