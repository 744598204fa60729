"""Rivals: what people use without any pretraining, linear models of scikit-learn.

    training examples ──> features ──> a model for each strength ──> outputs ──> the kind's answers
    validation examples ──> the strength with the best score

A linear model of two texts side by side cannot tell how they relate, so it also gets |a - b| and
a * b (Conneau et al. 2017, arXiv:1705.02364, section 3.2.1), whose sum is the cosine.

N rows (texts, or words of sentences), F features, C labels"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rungwise.tasks.kinds.examples import Tagged, Text
from rungwise.tasks.kinds.items import Item
from rungwise.tokenizer.mask_units import HAN

Matrix = Any  # a sparse matrix (N, F) of SciPy, whose import takes time
Numbers = NDArray[np.float64]
Read = Callable[[Sequence[Any]], Matrix]  # the features of examples
Predict = Callable[[Matrix], Numbers]  # (N, C), or (N,)

STRENGTHS = (0.1, 1.0, 10.0, 100.0)  # C of scikit-learn: the inverse of the regularisation
# As scikit-learn's, but a Han character is a word, since Chinese has no blanks.
_WORD = rf"[{HAN}]|[^\W{HAN}]{{2,}}"
_TEXTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("words", "words", {"token_pattern": _WORD}),
    ("characters", "chars", {"analyzer": "char", "ngram_range": (2, 5)}),
)
LOGISTIC = "logistic regression"
# Above so many rows, whose features are many too, SAGA (Defazio et al. 2014, arXiv:1407.0202) is
# as good after these passes as the usual solver in a tenth of the time; below, it is slower.
_FEW_ROWS, _PASSES = 2000, 30


@dataclass(frozen=True)
class Rival:
    """A rival by its name in sentences and its `short` one in tables. `learn` learns features from
    training examples, and returns theirs and how to read others. `targets` are those of the rows of
    an example, whose output has a place for each row if it has `many`, and else is that of its one
    row."""

    name: str
    short: str
    learn: Callable[[Sequence[Any]], tuple[Matrix, Read]]
    targets: Callable[[Any], Sequence[Any]]
    fit: Callable[[Matrix, NDArray[Any], float], Predict]
    many: bool = False

    def fit_strengths(
        self, train: Sequence[Any], others: Mapping[str, Sequence[Any]]
    ) -> Iterator[tuple[float, dict[str, list[Numbers]], dict[str, float]]]:
        """Fit the training examples once for each strength, and yield it with the outputs of the
        `others` by their names, and with the seconds that reading and predicting each took."""
        own, read = self.learn(train)
        targets = np.array([target for each in train for target in self.targets(each)])
        features, reading = {}, {}
        for name, examples in others.items():
            start = time.perf_counter()
            features[name] = read(examples)
            reading[name] = time.perf_counter() - start
        for strength in STRENGTHS:
            predict = self.fit(own, targets, strength)
            values, seconds = {}, {}
            for name, matrix in features.items():
                start = time.perf_counter()
                values[name] = self._split(predict(matrix), others[name])
                seconds[name] = reading[name] + time.perf_counter() - start
            yield strength, values, seconds

    def _split(self, values: Numbers, examples: Sequence[Any]) -> list[Numbers]:
        if not self.many:
            return list(values)
        ends = np.cumsum([len(self.targets(each)) for each in examples])
        return np.split(values, ends[:-1])


def row_items(outputs: Sequence[Numbers]) -> list[Item]:
    """The items of outputs, one for each example, without tokens."""
    return [
        Item((), index, places=tuple(range(len(output) if output.ndim else 0)))
        for index, output in enumerate(outputs)
    ]


def text_rivals(
    target: Callable[[Any], Any], fit: Callable[..., Predict], method: str
) -> tuple[Rival, ...]:
    """TF-IDF of the words and of the characters of texts, or of pairs of texts."""
    return tuple(
        Rival(
            name=f"TF-IDF of {unit}, {method}",
            short=f"TF-IDF ({short})",
            learn=partial(learn_texts, settings),
            targets=lambda example: [target(example)],
            fit=fit,
        )
        for unit, short, settings in _TEXTS
    )


def tag_rival(targets: Callable[[Any], Sequence[int]], classes: int) -> Rival:
    """The classic tagger: each word by itself, from its letters and its neighbours."""
    return Rival(
        name=f"words with suffixes and neighbours, {LOGISTIC}",
        short="linear tagger",
        learn=learn_words,
        targets=targets,
        fit=partial(fit_classes, classes=classes),
        many=True,
    )


def learn_texts(settings: Mapping[str, Any], train: Sequence[Text]) -> tuple[Matrix, Read]:
    """Learn the TF-IDF of the texts of examples, by the logarithm of counts."""
    import scipy.sparse
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True, **settings)

    def sides(examples: Sequence[Text]) -> list[str]:
        return [
            *(each.text for each in examples),
            *(each.second for each in examples if each.second is not None),
        ]

    def combine(sides: Matrix, count: int) -> Matrix:
        if sides.shape[0] == count:
            return sides
        first, second = sides[:count], sides[count:]
        shared = first.multiply(second)
        parts = [first, second, abs(first - second), shared, shared.sum(axis=1)]
        return scipy.sparse.hstack(parts, format="csr")

    if not any(map(vectorizer.build_analyzer(), sides(train))):  # all are alike: nothing to read
        return np.zeros((len(train), 1)), lambda examples: np.zeros((len(examples), 1))
    own = combine(vectorizer.fit_transform(sides(train)), len(train))
    return own, lambda examples: combine(vectorizer.transform(sides(examples)), len(examples))


def learn_words(train: Sequence[Tagged]) -> tuple[Matrix, Read]:
    """Learn the features of words that more than one word has."""
    from sklearn.feature_extraction import DictVectorizer

    def rows(examples: Sequence[Tagged]) -> list[dict[str, str]]:
        return [row for each in examples for row in describe_words(each.words)]

    vectorizer = DictVectorizer()
    own = vectorizer.fit_transform(rows(train))
    common = np.bincount(own.indices) > 1
    vectorizer.restrict(common)
    return own[:, common], lambda examples: vectorizer.transform(rows(examples))


def describe_words(words: Sequence[str]) -> list[dict[str, str]]:
    """The features of each word: itself, its ends, its form, and two words to either side."""
    lower = ["", "", *(word.lower() for word in words), "", ""]
    rows = []
    for place, word in enumerate(words):
        before2, before, own, after, after2 = lower[place : place + 5]
        forms = word[:1].isupper(), word.isupper(), any(map(str.isdigit, word)), "-" in word
        row = {"form": str((place == 0, *forms)), "word": own}
        row |= {"-2": before2, "-1": before, "+1": after, "+2": after2}
        row |= {"-1 suffix": before[-3:], "+1 suffix": after[-3:], "any": ""}
        row |= {f"suffix {n}": own[-n:] for n in (1, 2, 3, 4)}
        row |= {f"prefix {n}": own[:n] for n in (1, 2, 3)}
        rows.append(row)
    return rows


def fit_classes(features: Matrix, targets: NDArray[Any], strength: float, classes: int) -> Predict:
    """Fit one of the classes to each row. A class without training rows is impossible."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    present = np.unique(targets)
    solver, passes = ("lbfgs", 1000) if len(targets) <= _FEW_ROWS else ("saga", _PASSES)
    model = LogisticRegression(C=strength, solver=solver, max_iter=passes, random_state=0)
    if len(present) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(features, targets)

    def predict(matrix: Matrix) -> Numbers:
        logits = np.full((matrix.shape[0], classes), -np.inf)
        if len(present) == 1 or not len(logits):
            logits[:, present] = 0
        elif len(present) == 2:
            logits[:, present] = np.outer(model.decision_function(matrix), [0, 1])
        else:
            logits[:, present] = model.decision_function(matrix)
        return logits

    return predict


def fit_labels(features: Matrix, targets: NDArray[Any], strength: float) -> Predict:
    """Fit the presence of each label by itself; one that every row has, or none, is certain."""
    models = [fit_classes(features, present, strength, 2) for present in targets.T]

    def predict(matrix: Matrix) -> Numbers:
        return np.stack([-np.subtract(*fitted(matrix).T) for fitted in models], axis=1)

    return predict


def fit_numbers(features: Matrix, targets: NDArray[Any], strength: float) -> Predict:
    """Fit a number to each row by ridge regression."""
    from sklearn.linear_model import Ridge

    return Ridge(alpha=1 / strength).fit(features, targets).predict
