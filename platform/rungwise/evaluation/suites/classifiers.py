"""Simple classifiers on fixed vectors, to see what the vectors separate. Classes are numbered by
frequency; ties, as between the equal vectors of a static rung, go to the more frequent class.

Shapes: K layers, N training vectors, M test vectors, E width, C classes.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rungwise.finetune.model import ScalarMix

Vectors = NDArray[np.floating]
Classes = NDArray[np.int64]
Places = NDArray[np.int64]
Predict = Callable[[Vectors, Classes, Vectors], Classes]
_DECIMALS = 10  # of a cosine; states can differ little from their mean
_STEPS = 200
# L2 penalty relative to the summed loss: 1 in scikit-learn, but a sense has few sentences.
_PENALTY = 10.0
_RIDGE = 0.01  # penalty of a squared error, relative to the number of training vectors
_GRID = tuple(2.0**power for power in range(-2, 4))  # SentEval's; C is 1 over the penalty
_FOLDS_SEED = 1111


def by_frequency(names: Sequence[str]) -> list[str]:
    """The distinct names, most frequent first; ties are sorted by name."""
    counts = Counter(names)
    return sorted(counts, key=lambda name: (-counts[name], name))


def number_classes(order: Sequence[str], names: Sequence[str]) -> Classes:
    """The place of each name in `order`; -1 if it has none."""
    places = {name: place for place, name in enumerate(order)}
    return np.array([places.get(name, -1) for name in names], np.int64)


def by_centroid(train_NE: Vectors, classes_N: Classes, test_ME: Vectors) -> Classes:
    """The class (M,) of the nearest mean (Loureiro et al. 2021, arXiv:2008.11608)."""
    classes = np.unique(classes_N)
    train_NE = train_NE.astype(np.float64)
    means_CE = np.stack([train_NE[classes_N == each].mean(axis=0) for each in classes])
    return classes[cosines(test_ME, means_CE).argmax(axis=1)]


def by_line(train_NE: Vectors, classes_N: Classes, test_ME: Vectors) -> Classes:
    """The class (M,) by logistic regression on standardised vectors."""
    from sklearn.linear_model import LogisticRegression  # takes a second

    line = LogisticRegression(C=1 / _PENALTY, max_iter=_STEPS, tol=1e-3)
    return _predict(line, classes_N, *standardise(train_NE, test_ME))


def by_ridge(train_NE: Vectors, classes_N: Classes, test_ME: Vectors) -> Classes:
    """The class (M,) with the highest value by ridge regression to -1 and 1."""
    from sklearn.linear_model import RidgeClassifier

    line = RidgeClassifier(alpha=_RIDGE * len(train_NE))
    return _predict(line, classes_N, *standardise(train_NE, test_ME))


def by_best_line(train_NE: Vectors, classes_N: Classes, test_ME: Vectors, number: int) -> Classes:
    """The class (M,) by logistic regression whose penalty, of SentEval's grid (Conneau and Kiela
    2018, arXiv:1803.05449), has the highest accuracy over `number` folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    line = LogisticRegression(max_iter=1000)
    best = GridSearchCV(line, {"C": _GRID}, cv=folds(classes_N, number))
    return _predict(best, classes_N, train_NE, test_ME)


def _predict(model: Any, classes_N: Classes, train_NE: Vectors, test_ME: Vectors) -> Classes:
    if len(np.unique(classes_N)) == 1:
        return np.full(len(test_ME), classes_N[0])
    return model.fit(train_NE, classes_N).predict(test_ME)


def folds(classes_N: Classes, number: int) -> list[tuple[Places, Places]]:
    """Training and test places of folds with equal shares of every class, those of SentEval."""
    from sklearn.model_selection import StratifiedKFold  # takes a second

    number = max(2, min(number, int(np.bincount(classes_N).max(initial=0))))
    parts = StratifiedKFold(number, shuffle=True, random_state=_FOLDS_SEED)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")
        return [*parts.split(classes_N, classes_N)]


def to_scores(train_NE: Vectors, scores_N: NDArray[np.float64], test_ME: Vectors) -> Vectors:
    """Scores (M,) by ridge regression."""
    from sklearn.linear_model import Ridge

    train_NE, test_ME = standardise(train_NE, test_ME)
    return Ridge(alpha=_RIDGE * len(train_NE)).fit(train_NE, scores_N).predict(test_ME)


def by_mix(train_KNE: Vectors, classes_N: Classes, test_KME: Vectors) -> Classes:
    """The class (M,) by logistic regression on a jointly learned mean of standardised layers.
    Besides the penalty of `by_line`, another (Peters et al. 2018, section 3.3) draws the shares to
    the plain mean and gamma to 1."""
    layers = standardise(train_KNE, test_KME)
    train, test = (torch.from_numpy(np.ascontiguousarray(each, np.float32)) for each in layers)
    classes = torch.from_numpy(classes_N)
    mix, line = ScalarMix(len(train)), nn.Linear(train.shape[2], int(classes_N.max()) + 1)
    for each in line.parameters():
        nn.init.zeros_(each)
    optimizer = torch.optim.LBFGS(
        [*mix.parameters(), *line.parameters()],
        max_iter=_STEPS,
        tolerance_change=1e-5,
        line_search_fn="strong_wolfe",
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        penalty = _PENALTY * line.weight.square().sum()
        penalty = penalty + mix.scores.square().sum() + (mix.gamma - 1).square()
        total = nn.functional.cross_entropy(line(mix(list(train))), classes)
        total = total + penalty / (2 * len(classes))
        total.backward()
        return total

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        return line(mix(list(test))).argmax(dim=1).numpy()


def by_layer(
    train_KNE: Vectors, classes_N: Classes, test_KME: Vectors, rule: str, predict: Predict
) -> dict[str, Classes]:
    """The classes (M,) that a rule predicts from each layer, by the part that it is of a suite."""
    layers = enumerate(zip(train_KNE, test_KME, strict=True))
    return {f"{rule} layer {n}": predict(train, classes_N, test) for n, (train, test) in layers}


def standardise(train: Vectors, test: Vectors) -> tuple[Vectors, Vectors]:
    """Standardise both (..., N, E) with the mean and standard deviation of `train`."""
    mean = train.mean(axis=-2, keepdims=True)
    spread = train.std(axis=-2, keepdims=True)
    spread = np.where(spread < 1e-6, 1.0, spread)
    return (train - mean) / spread, (test - mean) / spread


def cosines(first_ME: Vectors, second_NE: Vectors) -> NDArray[np.float64]:
    """Cosines (M, N), rounded so that equal ones compare equal; 0 for zero vectors."""
    from sklearn.metrics.pairwise import cosine_similarity

    both = first_ME.astype(np.float64), second_NE.astype(np.float64)
    return np.round(cosine_similarity(*both), _DECIMALS)
