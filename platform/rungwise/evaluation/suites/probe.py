"""Linear probes: how well each layer's states predict the tags of a tagging task.

    train   words of tagged sentences ──> states of layer 0 .. L ──> logistic regression each
    test    their states ──> tags: right or not

The rung is not trained. That a simple classifier finds the tags shows that the layer holds them in
a plain form, not what the layer is used for (Belinkov 2022, "Probing Classifiers", Computational
Linguistics 48). The first part is a baseline that knows only the word.

    part                      predicts with
    most frequent             the word's most frequent tag in train; the overall one if unseen
    linear layer 1            logistic regression on the states of layer 1
    linear mix                logistic regression on a learned mean of layers, whose shares show
                              where the task is held (Tenney et al. 2019, arXiv:1905.05950)
    same word most frequent   as the first, only for words with several tags in train
    same word layer 1         for these, the tag of the word's nearest occurrence in train: do
                              neighbours keep the part of speech (Peters et al. 2018,
                              arXiv:1802.05365, section 5.3)?
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.core.storage import outside
from rungwise.core.storage.outside import Paths
from rungwise.evaluation.suites import classifiers
from rungwise.evaluation.suites.base import Measured, Rung, Suite
from rungwise.evaluation.suites.classifiers import Classes
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.states import (
    Sentence,
    WordReader,
    WordStates,
    reads_words,
    word_reader,
)
from rungwise.instances.order import evenly
from rungwise.tasks.formats.columns import ConllFormat, ConlluFormat
from rungwise.tasks.kinds.tagging import marks_spans

MIX = "mix.json"
Places = NDArray[np.int64]


class ProbeSuite(Suite):
    """Linear probes: which tags can be read off each layer?"""

    needs: ClassVar[str] = "word vectors"
    reads: ClassVar[tuple[str, ...]] = ("train", "test")

    kind: Literal["probe"] = "probe"
    train: Paths  # files of tagged sentences to train the probe on
    test: Paths  # files of tagged sentences to test it on
    # format of these files, as in the data of a task
    format: Annotated[ConllFormat | ConlluFormat, Field(discriminator="kind")]
    # about how many words to train on, in whole sentences, evenly spread
    train_words: int = Field(default=8000, ge=1)
    test_words: int = Field(default=5000, ge=1)  # about how many words to test on, likewise

    def serves(self, rung: Rung) -> bool:
        return reads_words(rung)

    def measure(self, rung: Rung, name: str) -> Measured:
        reader = word_reader(rung)
        train, test = (
            _read(self.format, getattr(self, split), f"measure.{name}.{split}", most, reader)
            for split, most in (("train", self.train_words), ("test", self.test_words))
        )
        order = classifiers.by_frequency(train.tags)
        place = {tag: number for number, tag in enumerate(order)}
        classes = np.array([place[tag] for tag in train.tags])
        right = np.array([place.get(tag, -1) for tag in test.tags])  # -1: not in train
        layers, asked_layers = classifiers.standardised(train.states.layers, test.states.layers)
        mix = classifiers.by_mix(layers, classes, asked_layers)
        predicted = {
            "most frequent": most_frequent(train.words, classes, test.words),
            "linear mix": mix.predicted,
        }
        ambiguous = ambiguous_words(train.words, classes, test.words)
        of_ambiguous = {"same word most frequent": predicted["most frequent"]}
        for layer, states in enumerate(zip(train.states.layers, test.states.layers, strict=True)):
            predicted[f"linear layer {layer}"] = classifiers.by_line(states[0], classes, states[1])
            found = by_same_word(ambiguous, states[0], classes, states[1])
            of_ambiguous[f"same word layer {layer}"] = found
        everywhere, asked = np.arange(len(right)), np.sort(_all(at for _, at in ambiguous))
        groups = _groups(order, test.tags)
        items = []
        for places, parts in ((everywhere, predicted), (asked, of_ambiguous)):
            for part, found in parts.items() if len(places) else ():
                credit = (found == right).astype(np.float64)[places]
                numbers = np.stack([credit, np.ones(len(credit))], axis=1)
                names, of_group = ([each[at] for at in places] for each in (test.names, groups))
                items.append(Items(name, "accuracy", names, of_group, numbers, part))
        report = mix.as_data() | {
            "words": {"train": len(train.words), "test": len(test.words)},
            "without_piece": train.states.without_piece + test.states.without_piece,
            "in_windows": train.states.in_windows + test.states.in_windows,
        }
        return Measured(items, {MIX: json.dumps(report).encode("utf-8")})


class _Split(NamedTuple):
    names: list[str]  # file, line of the sentence and position in it
    words: list[str]
    tags: list[str]
    states: WordStates


def most_frequent(words: Sequence[str], classes: Classes, asked: Sequence[str]) -> Classes:
    """The most frequent class of each word asked; the overall one (0) for unseen words."""
    of_word: dict[str, Counter[int]] = defaultdict(Counter)
    for word, number in zip(words, classes.tolist(), strict=True):
        of_word[word][number] += 1
    best = {
        word: min(counts, key=lambda number: (-counts[number], number))
        for word, counts in of_word.items()
    }
    return np.array([best.get(word, 0) for word in asked], np.int64)


def ambiguous_words(
    words: Sequence[str], classes: Classes, asked: Sequence[str]
) -> list[tuple[Places, Places]]:
    """Positions, in `words` and in `asked`, of each word asked that has several classes."""
    at_train, at_asked = _places(words), _places(asked)
    return [
        (at_train[word], at)
        for word, at in at_asked.items()
        if word in at_train and len(np.unique(classes[at_train[word]])) > 1
    ]


def by_same_word(
    ambiguous: Sequence[tuple[Places, Places]],
    train_NE: NDArray[np.float32],
    classes_N: Classes,
    test_ME: NDArray[np.float32],
) -> Classes:
    """The class (M,) of the word's nearest occurrence in train; -1 for unambiguous words."""
    found = np.full(len(test_ME), -1)
    for known, asked in ambiguous:
        found[asked] = classifiers.by_neighbours(
            train_NE[known], classes_N[known], test_ME[asked], neighbours=1
        )
    return found


def _read(
    data: ConllFormat | ConlluFormat, paths: Paths, key: str, most: int, reader: WordReader
) -> _Split:
    counts: Counter[str] = Counter()
    files = outside.matching(paths, key)
    sentences = [each for file in files for each in data.read(file, "test", counts)]
    words = sum(len(each.words) for each in sentences)
    if not words:
        raise DataError(f"{key}: expected tagged words, found none in {files[0].uri}; change {key}")
    wanted = max(1, round(len(sentences) * most / words))
    chosen = [sentences[index] for index in evenly(len(sentences), wanted)]
    return _Split(
        [f"{each.where} {place}" for each in chosen for place in range(len(each.words))],
        [word.lower() for each in chosen for word in each.words],
        [tag for each in chosen for tag in each.tags or ()],
        reader.layers([Sentence.of_words(each.words) for each in chosen]),
    )


def _places(words: Sequence[str]) -> dict[str, Places]:
    places: dict[str, list[int]] = defaultdict(list)
    for place, word in enumerate(words):
        places[word].append(place)
    return {word: np.array(each) for word, each in places.items()}


def _all(places: Iterable[Places]) -> Places:
    return np.concatenate([np.zeros(0, np.int64), *places])


def _groups(order: Sequence[str], tags: Sequence[str]) -> list[str]:
    """The tag of each word, or its span type for span tags."""
    return [tag.partition("-")[2] or tag for tag in tags] if marks_spans(order) else list(tags)
