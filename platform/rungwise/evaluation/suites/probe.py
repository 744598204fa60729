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

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.core.storage import outside
from rungwise.core.storage.outside import Paths
from rungwise.core.storage.source_files import place_by_name
from rungwise.evaluation.suites import classifiers
from rungwise.evaluation.suites.base import Rung, SuiteResult
from rungwise.evaluation.suites.classifiers import Classes
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.states import (
    FREQUENT,
    MIX,
    Sentence,
    WordReader,
    WordStates,
    WordStatesSuite,
    word_reader,
)
from rungwise.instances.order import evenly
from rungwise.tasks.formats.tagged import ConllFormat, ConlluFormat
from rungwise.tasks.kinds.tagging import marks_spans

Places = NDArray[np.int64]


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

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        reader = word_reader(rung)
        train, test = (
            _read_split(self.format, getattr(self, split), f"measure.{name}.{split}", most, reader)
            for split, most in (("train", self.train_words), ("test", self.test_words))
        )
        order = classifiers.by_frequency(train.tags)
        classes, truth = (classifiers.number_classes(order, each.tags) for each in (train, test))
        ambiguous = find_ambiguous(train.words, classes, test.words)
        layers = classifiers.standardise(train.states.layers, test.states.layers)
        mix = classifiers.by_mix(layers[0], classes, layers[1])
        frequent = most_frequent(train.words, classes, test.words)
        predictions = {FREQUENT: frequent, "linear mix": mix.classes}
        same_word = {f"same word {FREQUENT}": frequent}
        for layer, (train_NE, test_ME) in enumerate(
            zip(train.states.layers, test.states.layers, strict=True)
        ):
            predictions[f"linear layer {layer}"] = classifiers.by_line(train_NE, classes, test_ME)
            nearest = by_same_word(ambiguous, train_NE, classes, test_ME)
            same_word[f"same word layer {layer}"] = nearest
        # The tag of each word, or its span type for span tags.
        groups = [t.partition("-")[2] or t for t in test.tags] if marks_spans(order) else test.tags
        places = sorted(place for _, places in ambiguous for place in places.tolist())
        items = [
            Items.of_credit(name, part, test.names, groups, tags == truth)
            for part, tags in predictions.items()
        ]
        if places:
            items += [
                Items.of_credit(name, part, test.names, groups, tags == truth).select(places)
                for part, tags in same_word.items()
            ]
        report = mix.as_data() | {
            "words": {"train": len(train.words), "test": len(test.words)},
            "without_piece": train.states.without_piece + test.states.without_piece,
            "in_windows": train.states.in_windows + test.states.in_windows,
        }
        return SuiteResult(items, {MIX: report})


class _Split(NamedTuple):
    names: list[str]  # file, line of the sentence and position in it
    words: list[str]
    tags: list[str]
    states: WordStates


def most_frequent(
    train_words: Sequence[str], classes: Classes, test_words: Sequence[str]
) -> Classes:
    """The most frequent class of each test word; the overall one (0) for unseen words."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for word, number in zip(train_words, classes.tolist(), strict=True):
        counts[word][number] += 1
    best = {word: min(each, key=lambda n: (-each[n], n)) for word, each in counts.items()}
    return np.array([best.get(word, 0) for word in test_words], np.int64)


def find_ambiguous(
    train_words: Sequence[str], classes: Classes, test_words: Sequence[str]
) -> list[tuple[Places, Places]]:
    """Positions, in train and in test, of each test word that has several classes."""
    train, test = _places(train_words), _places(test_words)
    return [
        (train[word], places)
        for word, places in test.items()
        if word in train and len(np.unique(classes[train[word]])) > 1
    ]


def by_same_word(
    ambiguous: Sequence[tuple[Places, Places]],
    train_NE: NDArray[np.float32],
    classes_N: Classes,
    test_ME: NDArray[np.float32],
) -> Classes:
    """The class (M,) of the word's nearest occurrence in train; -1 for unambiguous words."""
    nearest = np.full(len(test_ME), -1)
    for train, test in ambiguous:
        nearest[test] = classifiers.by_neighbours(
            train_NE[train], classes_N[train], test_ME[test], neighbours=1
        )
    return nearest


def _read_split(
    data: ConllFormat | ConlluFormat, paths: Paths, key: str, most: int, reader: WordReader
) -> _Split:
    counts: Counter[str] = Counter()
    files = outside.list_matching_files(paths, key)
    sentences = [each for file in files for each in data.read(file, "test", counts)]
    words = sum(len(each.words) for each in sentences)
    if not words:
        raise DataError(f"{key}: expected tagged words, found none in {files[0].uri}; change {key}")
    number = max(1, round(len(sentences) * most / words))
    sentences = [sentences[index] for index in evenly(len(sentences), number)]
    names = {file.uri: file.name for file in files}
    return _Split(
        [
            f"{place_by_name(each.where, names)} {place}"
            for each in sentences
            for place in range(len(each.words))
        ],
        [word.lower() for each in sentences for word in each.words],
        [tag for each in sentences for tag in each.tags or ()],
        reader.layers([Sentence.of_words(each.words) for each in sentences]),
    )


def _places(words: Sequence[str]) -> dict[str, Places]:
    places: dict[str, list[int]] = defaultdict(list)
    for place, word in enumerate(words):
        places[word].append(place)
    return {word: np.array(each) for word, each in places.items()}
