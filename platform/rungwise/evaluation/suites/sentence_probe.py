"""Probes of sentence vectors: how well a classifier on the frozen vectors does a task.

    text    ──> vector u ──────────────────────┐
    a pair  ──> vectors u, v ──> |u - v|, u*v ─┴──> classes by regression, or a score

The protocol is SentEval's (Conneau and Kiela 2018, arXiv:1803.05449): train and test files, or
folds of one set, each tested once by a classifier trained on the others. `logistic` chooses its
penalty on folds within the training part, and reads scores off shares of whole scores (two-hot);
`ridge` is a closed form with a fixed penalty, a hundred times as fast. Beside the model's vectors
stand those of sentences.py, and the most frequent class.

`sentence_properties` needs only the corpus (after Conneau et al. 2018, arXiv:1805.01070). Of
held-out sentences: how long is it, in six classes of equal size; which one of some words of middle
frequency is in it; are two neighbours of its tokens swapped?

Shapes: N examples, E width, F features.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from rungwise.core.errors import ConfigError, DataError
from rungwise.core.storage.outside import Paths
from rungwise.corpus.cleaning.overlap import find_texts
from rungwise.corpus.summary import count_units, read_split
from rungwise.evaluation.suites import classifiers
from rungwise.evaluation.suites.base import Rung, Suite, SuiteResult, read_texts
from rungwise.evaluation.suites.items import Items, contrast
from rungwise.evaluation.suites.section import Column, MeasuredRung, compare_rungs
from rungwise.evaluation.suites.sentences import (
    PPMI,
    RANDOM,
    UNTRAINED,
    VECTORS,
    floor_vectors,
    has_sentence_vectors,
    sentence_vectors,
)
from rungwise.instances.order import evenly
from rungwise.tasks.formats import TaggedFormat
from rungwise.tasks.interface import KINDS
from rungwise.tasks.kinds.examples import Text

MAJORITY = "most frequent"
_LENGTHS = 6
_RUN = 8  # words: training has read a text if it has all its runs of so many
_FEWEST_WORDS = 5  # of a sentence whose words are swapped

Split = tuple[classifiers.Places, classifiers.Places]  # the training and the test places


class _ProbeOfVectors(Suite):
    """The keys that both share."""

    needs: ClassVar[str] = "vectors of words or sentences"

    # ridge: quick, in closed form; logistic: the penalty is chosen on folds
    head: Literal["ridge", "logistic"] = "ridge"
    folds: int = Field(default=10, ge=2)

    def serves(self, rung: Rung) -> bool:
        return has_sentence_vectors(rung)

    def predict(
        self,
        features: Mapping[str, classifiers.Vectors],
        classes_N: NDArray[np.int64],
        split: Split,
    ) -> dict[str, NDArray[np.int64]]:
        """The classes at the test places, by part."""
        train, test = split
        majority = np.full(len(test), np.bincount(classes_N[train]).argmax())
        predicted = {MAJORITY: majority}
        for part, vectors_NF in features.items():
            data = vectors_NF[train], classes_N[train], vectors_NF[test]
            if self.head == "ridge":
                predicted[part] = classifiers.by_ridge(*data)
            else:
                predicted[part] = classifiers.by_best_line(*data, self.folds)
        return predicted

    def classify(
        self,
        name: str,
        features: Mapping[str, classifiers.Vectors],
        names: list[str],
        labels: Sequence[str],
        splits: Sequence[Split] | None,
        kind: str = "",
    ) -> list[Items]:
        """Items of accuracy by part, of all test places of the splits; by default, of folds."""
        classes_N = classifiers.number_classes(classifiers.by_frequency(labels), labels)
        splits = classifiers.folds(classes_N, self.folds) if splits is None else splits
        right: dict[str, list[NDArray[np.bool_]]] = {}
        for split in splits:
            for part, predicted in self.predict(features, classes_N, split).items():
                right.setdefault(part, []).append(predicted == classes_N[split[1]])
        places = np.concatenate([test for _, test in splits]).tolist()
        tested = [names[place] for place in places]
        return [
            Items.of_credit(name, f"{kind} {part}".strip(), tested, [""] * len(tested), credit)
            for part, parts in right.items()
            for credit in [np.concatenate(parts)]
        ]


def _result(rung: Rung, items: list[Items]) -> SuiteResult:
    """Note how far the model's vectors are above those of the same model before training."""
    by_part = {each.part: each for each in items}
    for part, trained in by_part.items():
        kind = part.removesuffix(VECTORS)
        if kind != part and (untrained := by_part.get(kind + UNTRAINED)):
            gain = contrast([(1.0, [trained]), (-1.0, [untrained])])
            rung.report.note(
                f"{trained.suite} {kind}{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}] over "
                "the model before training"
            )
    return SuiteResult(items)


class SentenceProbeSuite(_ProbeOfVectors):
    """Labelled or scored texts or pairs: what a classifier can read off the vectors."""

    reads: ClassVar[tuple[str, ...]] = ("train", "test")

    kind: Literal["sentence_probe"] = "sentence_probe"
    train: Paths  # files of examples
    test: Paths | None = None  # files to test on; null: folds of `train`
    format: TaggedFormat  # format of these files, as in the data of a task
    examples: int | None = Field(default=None, ge=20)  # of each split, evenly spread; null: all

    @field_validator("format")
    @classmethod
    def _has_a_target(cls, value: TaggedFormat) -> TaggedFormat:
        kind = KINDS[value.task_kind]
        if not kind.one_label and not kind.numeric:
            raise ValueError(f"expected texts with a class or a score, found {value.task_kind}")
        return value

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        result = self._measure(rung, name)
        if not getattr(rung.model, "learns_documents", False):
            return result
        tested = self._read("test" if self.test else "train", name)
        texts = [" ".join(text.parts) for _, text in tested]
        documents = (document.sentences for document in read_split(rung.corpus, "train"))
        return replace(result, transductive=int(find_texts(texts, documents, _RUN).sum()))

    def _measure(self, rung: Rung, name: str) -> SuiteResult:
        parts = [self._read(key, name) for key in ("train", "test") if getattr(self, key)]
        names = [name for part in parts for name, _ in part]
        texts = [text for part in parts for _, text in part]
        features = _features(rung, texts, name)
        splits: list[Split] | None = None
        if len(parts) > 1:
            count = len(parts[0])
            splits = [(np.arange(count), np.arange(count, len(names)))]
        if KINDS[self.format.task_kind].one_label:
            labels = [str(text.target) for text in texts]
            return _result(rung, self.classify(name, features, names, labels, splits))
        scores_N = np.array([float(str(text.target)) for text in texts])
        splits = splits or classifiers.folds(np.zeros(len(names), np.int64), self.folds)
        places = np.concatenate([test for _, test in splits])
        tested = [names[place] for place in places.tolist()]
        items = []
        for part, vectors_NF in features.items():
            predicted = [
                classifiers.to_scores(
                    vectors_NF[train], scores_N[train], vectors_NF[test], self.head == "logistic"
                )
                for train, test in splits
            ]
            numbers = np.stack(
                [scores_N[places], np.concatenate(predicted).astype(np.float64)], axis=1
            )
            items.append(Items(name, "pearson", tested, [""] * len(tested), numbers, part))
        return _result(rung, items)

    def columns(self, name: str, rungs: Sequence[MeasuredRung]) -> list[Column]:
        """Accuracy or a correlation, beside the highest value of each floor."""
        columns = []
        for metric in ("accuracy", "pearson"):
            floors = {
                f"{part}, averaged": max(score.value for score in scores)
                for part in (RANDOM, PPMI)
                if (scores := [s for r in rungs if (s := r.measure.value(name, metric, part))])
            }
            columns.append(compare_rungs(rungs, name, metric, VECTORS, floors=floors))
        return columns

    def _read(self, split: str, name: str) -> list[tuple[str, Text]]:
        key = f"measure.{name}.{split}"
        rows = read_texts(getattr(self, split), self.format, split, key, Counter())
        rows = [row for row in rows if row.target is not None]
        if not rows:
            raise DataError(f"{key}: expected texts with a class or a score, found none")
        if self.examples is not None:
            rows = [rows[place] for place in evenly(len(rows), self.examples)]
        return [(f"{split} {row.where}", row) for row in rows]


def _features(rung: Rung, texts: Sequence[Text], name: str) -> Mapping[str, classifiers.Vectors]:
    """Return the features of a classifier (N, F), by part; all texts are pairs or none is."""
    pairs = texts[0].second is not None
    flat = [each for text in texts for each in (text.text, text.second) if each is not None]
    began = time.monotonic()
    vectors = {VECTORS: sentence_vectors(rung, flat)}
    rate = len(flat) / max(1e-9, time.monotonic() - began)
    rung.report.note(f"{name}: {len(flat):,} texts encoded, {rate:,.0f} a second")
    vectors |= floor_vectors(rung, flat)
    if not pairs:
        return vectors
    return {part: pair_features(rows[0::2], rows[1::2]) for part, rows in vectors.items()}


def pair_features(u_NE: classifiers.Vectors, v_NE: classifiers.Vectors) -> classifiers.Vectors:
    """Return |u - v| and u*v, (N, 2E): symmetric, as in SentEval."""
    return np.concatenate([np.abs(u_NE - v_NE), u_NE * v_NE], axis=1)


class SentencePropertiesSuite(_ProbeOfVectors):
    """Held-out sentences: can a classifier read their lengths, words and order off the vectors?"""

    kind: Literal["sentence_properties"] = "sentence_properties"
    sentences: int = Field(default=3000, ge=100)  # of each property, at most
    words: int = Field(default=100, ge=2, le=1000)  # of which one is to be told

    @property
    def on_held_out(self) -> bool:
        return True

    def measure(self, rung: Rung, name: str) -> SuiteResult:
        blank, sentences = _read_sentences(rung)
        items: list[Items] = []
        for kind, make in PROPERTIES.items():
            examples = make(sentences, self.words)
            texts = [blank.join(words) for words, _ in examples]
            labels = [label for _, label in examples]
            if len(set(labels)) < 2 or len(texts) < 2 * self.folds:
                raise ConfigError(
                    f"measure.{name}: expected held-out sentences to tell their {kind}, found "
                    f"{len(texts)}; raise corpus.held_out_fraction, or leave the suite out"
                )
            places = evenly(len(texts), self.sentences).tolist()
            texts, labels = [texts[n] for n in places], [labels[n] for n in places]
            features = {VECTORS: sentence_vectors(rung, texts), **floor_vectors(rung, texts)}
            numbers = [f"{kind} {place}" for place in places]
            items += self.classify(name, features, numbers, labels, None, kind)
        return _result(rung, items)


def _read_sentences(rung: Rung) -> tuple[str, list[list[str]]]:
    """The held-out sentences as words, and what joins them: a blank, or nothing for writing without
    blanks, whose words are its characters."""
    sentences = [sentence for _, document in rung.held_out for sentence in document.sentences]
    words = [each.split() for each in sentences]
    _, unit = count_units(sum(map(len, words)), sum(map(len, sentences)))
    return (" ", words) if unit == "words" else ("", [*map(list, sentences)])


Sentence = Sequence[str]  # its words
Examples = list[tuple[Sentence, str]]  # sentences, each with its class


def lengths(sentences: Sequence[Sentence], words: int) -> Examples:
    """Class sentences by their number of words, in six classes of equal size."""
    sizes = np.array([len(each) for each in sentences])
    bounds = np.unique(np.quantile(sizes, np.arange(1, _LENGTHS) / _LENGTHS))
    classes = np.searchsorted(bounds, sizes).tolist()
    return [(each, str(number)) for each, number in zip(sentences, classes, strict=True)]


def content(sentences: Sequence[Sentence], words: int) -> Examples:
    """Class sentences by which of some words of middle frequency is in them, behind as many that
    stand in more sentences; sentences with none or several are left out."""
    counts = Counter(word for each in sentences for word in {*each} if word.isalpha())
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    targets = {*ranked[words : 2 * words]}
    inside = [(each, targets.intersection(each)) for each in sentences]
    return [(each, min(matches)) for each, matches in inside if len(matches) == 1]


def order(sentences: Sequence[Sentence], words: int) -> Examples:
    """Class every other sentence as swapped: two neighbours in it, drawn at random, change places.
    Sentences of fewer than five words are left out."""
    rng, examples = np.random.default_rng(0), []
    for number, each in enumerate(s for s in sentences if len(s) >= _FEWEST_WORDS):
        row, place = list(each), int(rng.integers(len(each) - 1))
        if number % 2:
            row[place : place + 2] = row[place + 1], row[place]
        examples.append((row, "swapped" if number % 2 else "as written"))
    return examples


PROPERTIES: dict[str, Callable[[Sequence[Sentence], int], Examples]] = {
    "length": lengths,
    "content": content,
    "order": order,
}
