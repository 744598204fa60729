"""Vectors of sentences: do cosines rank pairs as people do, and what can a classifier read off?
Beside them stand floors that a sentence encoder must beat: the same model before training, and the
mean of a random vector for each token.

Shapes: N texts, E width, F features.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from rungwise.core.errors import DataError
from rungwise.core.storage.outside import Paths, list_matching_files
from rungwise.corpus.summary import count_units
from rungwise.evaluation.suites import classifiers
from rungwise.evaluation.suites.base import (
    Column,
    FileSuite,
    MeasuredRung,
    Rung,
    Suite,
    compare_rungs,
    read_examples,
)
from rungwise.evaluation.suites.items import Items
from rungwise.evaluation.suites.states import Sentence, reads_words, word_reader
from rungwise.evaluation.suites.word_vectors import cosines
from rungwise.instances.order import evenly
from rungwise.models.trained.capabilities import SentenceVectors, WordVectors
from rungwise.models.trained.encoders import StaticWords
from rungwise.tasks.config import TaggedFormat
from rungwise.tasks.formats.texts import TableFormat
from rungwise.tasks.interface import KINDS
from rungwise.tasks.kinds.examples import Text

WORDS, OWN = "words", "own vector"  # the parts of the word table, and of a model's own way
VECTORS, UNTRAINED, RANDOM = "vectors", "untrained", "random words"
_SIZE = 200  # of random vectors

Vectors = NDArray[np.float64]


def vectors_by_part(rung: Rung, texts: Sequence[str]) -> dict[str, Vectors]:
    """The vectors (N, E) of sentences: of each layer, of the word table, the model's own."""
    vectors: dict[str, NDArray[np.float32]] = {}
    if reads_words(rung):
        reader, whole = word_reader(rung), [Sentence(text, ((0, len(text)),)) for text in texts]
        if not isinstance(reader.source, StaticWords):
            layers = reader.layers(whole)
            vectors = {f"layer {number}": layer for number, layer in enumerate(layers)}
        if isinstance(rung.model, WordVectors):
            static = replace(reader, source=StaticWords(rung.model))
            [vectors[WORDS]] = static.layers(whole)
    if isinstance(rung.model, SentenceVectors):
        vectors[OWN] = rung.model.sentence_vectors(rung.encode(texts))
    return {part: rows.astype(np.float64) for part, rows in vectors.items()}


def sentence_vectors(rung: Rung, texts: Sequence[str]) -> Vectors:
    """The vectors (N, E) of sentences that are a model's best: its own, or the last above."""
    if isinstance(rung.model, SentenceVectors):
        return rung.model.sentence_vectors(rung.encode(texts)).astype(np.float64)
    return [*vectors_by_part(rung, texts).values()][-1]


def floor_vectors(rung: Rung, texts: Sequence[str]) -> dict[str, Vectors]:
    """The vectors (N, ...) of sentences by floor; a model without training has no `untrained`."""
    table_VD = draw_vectors(rung.splitter.get_vocab_size())
    special = {*rung.special.ids}  # the unknown token among them
    ids = [[token for token in text if token not in special] for text in rung.encode(texts)]
    means = np.stack([table_VD[own].sum(axis=0) / max(1, len(own)) for own in ids])
    if rung.untrained is None:
        return {RANDOM: means}
    return {UNTRAINED: sentence_vectors(rung.untrained, texts), RANDOM: means}


def draw_vectors(vocab_size: int, seed: int = 0) -> Vectors:
    """A random vector of each token."""
    return np.random.default_rng(seed).standard_normal((vocab_size, _SIZE))


class _SentenceSuite(Suite):
    needs: ClassVar[str] = "vectors of words or sentences"

    def serves(self, rung: Rung) -> bool:
        return reads_words(rung) or isinstance(rung.model, SentenceVectors)


class SentencesSuite(_SentenceSuite, FileSuite):
    """Pairs of sentences with similarity scores."""

    kind: Literal["sentences"] = "sentences"
    # a task format that has scores
    format: TableFormat

    @field_validator("format")
    @classmethod
    def _has_scores(cls, value: TableFormat) -> TableFormat:
        if not KINDS[value.task_kind].numeric:
            raise ValueError("expected pairs with scores, found a format with labels")
        return value

    def measure(self, rung: Rung, name: str) -> list[Items]:
        counts: Counter[str] = Counter()
        key = f"measure.{name}.path"
        pairs = read_examples(self.path, self.format, "test", key, counts)
        if not pairs or any(pair.second is None or pair.target is None for pair in pairs):
            raise DataError(
                f"{key}: expected pairs of sentences with scores, found {len(pairs)} rows, not all "
                f"of them such pairs; change {key}, or which columns the format names"
            )
        for reason, number in counts.items():
            rung.report.note(f"{name}: {reason.replace('_', ' ')}: {number:,}")
        texts = [text for pair in pairs for text in (pair.text, str(pair.second))]
        gold = np.array([float(str(pair.target)) for pair in pairs])
        names = [pair.where for pair in pairs]
        several = len(list_matching_files(self.path, key)) > 1
        sets = [place.rpartition(":")[0] if several else "" for place in names]
        items = []
        for part, vectors in (vectors_by_part(rung, texts) | floor_vectors(rung, texts)).items():
            numbers = np.stack([gold, cosines(vectors[0::2], vectors[1::2])], axis=1)
            items += [
                Items(name, metric, names, sets, numbers, part)
                for metric in ("correlation", "pearson")
            ]
        return items


MAJORITY = "most frequent"
_LENGTHS = 6
_FEWEST_WORDS = 5  # of a sentence whose words are swapped

Split = tuple[classifiers.Places, classifiers.Places]  # the training and the test places


class _ProbeOfVectors(_SentenceSuite):
    """The keys that both probes share, whose protocol is SentEval's (Conneau and Kiela 2018,
    arXiv:1803.05449)."""

    # ridge: quick, in closed form; logistic: the penalty is chosen on folds
    head: Literal["ridge", "logistic"] = "ridge"
    folds: int = Field(default=10, ge=2)

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
        right: dict[str, list[NDArray[np.bool_]]] = defaultdict(list)
        for train, test in splits:
            frequent = np.bincount(classes_N[train]).argmax()
            right[MAJORITY].append(classes_N[test] == frequent)
            for part, vectors_NF in features.items():
                data = vectors_NF[train], classes_N[train], vectors_NF[test]
                if self.head == "ridge":
                    answers = classifiers.by_ridge(*data)
                else:
                    answers = classifiers.by_best_line(*data, self.folds)
                right[part].append(answers == classes_N[test])
        test_names = [names[place] for _, test in splits for place in test.tolist()]
        groups = [""] * len(test_names)
        return [
            Items.of_credit(name, f"{kind} {part}".strip(), test_names, groups, np.concatenate(own))
            for part, own in right.items()
        ]


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

    def measure(self, rung: Rung, name: str) -> list[Items]:
        parts = [self._read(key, name) for key in ("train", "test") if getattr(self, key)]
        names = [name for part in parts for name, _ in part]
        texts = [text for part in parts for _, text in part]
        features = _features(rung, texts)
        count = len(parts[0])
        splits = [(np.arange(count), np.arange(count, len(names)))] if len(parts) > 1 else None
        if KINDS[self.format.task_kind].one_label:
            labels = [str(text.target) for text in texts]
            return self.classify(name, features, names, labels, splits)
        scores_N = np.array([float(str(text.target)) for text in texts])
        splits = splits or classifiers.folds(np.zeros(len(names), np.int64), self.folds)
        places = np.concatenate([test for _, test in splits])
        names = [names[place] for place in places.tolist()]
        items = []
        for part, vectors_NF in features.items():
            predicted = [
                classifiers.to_scores(vectors_NF[train], scores_N[train], vectors_NF[test])
                for train, test in splits
            ]
            flat = np.concatenate(predicted).astype(np.float64)
            numbers = np.stack([scores_N[places], flat], axis=1)
            items.append(Items(name, "pearson", names, [""] * len(names), numbers, part))
        return items

    def columns(self, name: str, rungs: Sequence[MeasuredRung]) -> list[Column]:
        """Accuracy or a correlation, beside the highest value of random vectors."""
        columns = []
        for metric in ("accuracy", "pearson"):
            scores = [s for r in rungs if (s := r.measure.value(name, metric, RANDOM))]
            best = max((score.value for score in scores), default=None)
            floors = {} if best is None else {f"{RANDOM}, averaged": best}
            columns.append(compare_rungs(rungs, name, metric, VECTORS, floors=floors))
        return columns

    def _read(self, split: str, name: str) -> list[tuple[str, Text]]:
        key = f"measure.{name}.{split}"
        rows = read_examples(getattr(self, split), self.format, split, key, Counter())
        rows = [row for row in rows if row.target is not None]
        if not rows:
            raise DataError(f"{key}: expected texts with a class or a score, found none")
        if self.examples is not None:
            rows = [rows[place] for place in evenly(len(rows), self.examples)]
        return [(f"{split} {row.where}", row) for row in rows]


def _features(rung: Rung, texts: Sequence[Text]) -> Mapping[str, classifiers.Vectors]:
    """Return the features of a classifier (N, F), by part; all texts are pairs or none is."""
    pairs = texts[0].second is not None
    flat = [each for text in texts for each in (text.text, text.second) if each is not None]
    vectors = {VECTORS: sentence_vectors(rung, flat), **floor_vectors(rung, flat)}
    if not pairs:
        return vectors
    return {part: pair_features(rows[0::2], rows[1::2]) for part, rows in vectors.items()}


def pair_features(u_NE: classifiers.Vectors, v_NE: classifiers.Vectors) -> classifiers.Vectors:
    """Return |u - v| and u*v, (N, 2E): symmetric, as in SentEval."""
    return np.concatenate([np.abs(u_NE - v_NE), u_NE * v_NE], axis=1)


class SentencePropertiesSuite(_ProbeOfVectors):
    """Held-out sentences: can a classifier read length and order off the vectors (after Conneau et
    al. 2018, arXiv:1805.01070)?"""

    of_held_out: ClassVar[bool] = True

    kind: Literal["sentence_properties"] = "sentence_properties"
    sentences: int = Field(default=3000, ge=100)  # of each property, at most

    def measure(self, rung: Rung, name: str) -> list[Items]:
        blank, sentences = _read_sentences(rung)
        items: list[Items] = []
        for kind, make in PROPERTIES.items():
            examples = make(sentences)
            texts = [blank.join(words) for words, _ in examples]
            labels = [label for _, label in examples]
            if len(set(labels)) < 2 or len(texts) < 2 * self.folds:
                raise DataError(
                    f"measure.{name}: expected held-out sentences to tell their {kind}, found "
                    f"{len(texts)}; raise corpus.held_out_fraction, or leave the suite out"
                )
            places = evenly(len(texts), self.sentences).tolist()
            texts, labels = [texts[n] for n in places], [labels[n] for n in places]
            features = {VECTORS: sentence_vectors(rung, texts), **floor_vectors(rung, texts)}
            numbers = [f"{kind} {place}" for place in places]
            items += self.classify(name, features, numbers, labels, None, kind)
        return items


def _read_sentences(rung: Rung) -> tuple[str, list[list[str]]]:
    """The joiner of words, "" in writing without blanks, and held-out sentences as words."""
    sentences = [sentence for _, document in rung.held_out for sentence in document.sentences]
    words = [each.split() for each in sentences]
    _, unit = count_units(sum(map(len, words)), sum(map(len, sentences)))
    return (" ", words) if unit == "words" else ("", [*map(list, sentences)])


Words = Sequence[str]  # of a sentence
Examples = list[tuple[Words, str]]  # sentences, each with its class


def lengths(sentences: Sequence[Words]) -> Examples:
    """Class sentences by their number of words, in six classes of equal size."""
    sizes = np.array([len(each) for each in sentences])
    bounds = np.unique(np.quantile(sizes, np.arange(1, _LENGTHS) / _LENGTHS))
    classes = np.searchsorted(bounds, sizes).tolist()
    return [(each, str(number)) for each, number in zip(sentences, classes, strict=True)]


def order(sentences: Sequence[Words]) -> Examples:
    """Class every other sentence of at least five words as swapped: two neighbours drawn at random
    change places."""
    rng, examples = np.random.default_rng(0), []
    for number, each in enumerate(s for s in sentences if len(s) >= _FEWEST_WORDS):
        row, place = list(each), int(rng.integers(len(each) - 1))
        if number % 2:
            row[place : place + 2] = row[place + 1], row[place]
        examples.append((row, "swapped" if number % 2 else "as written"))
    return examples


PROPERTIES = {"length": lengths, "order": order}
