"""Simple classifiers on fixed vectors, to see what the vectors separate. Classes are numbered by
frequency; ties, as between the equal vectors of a static rung, go to the more frequent class.

Shapes: K layers, N training vectors, M test vectors, E width, C classes.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rungwise.finetune.model import ScalarMix

Vectors = NDArray[np.floating]
Classes = NDArray[np.int64]
Places = NDArray[np.int64]
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

    if len(np.unique(classes_N)) == 1:
        return np.full(len(test_ME), classes_N[0])
    train_NE, test_ME = standardise(train_NE, test_ME)
    line = LogisticRegression(C=1 / _PENALTY, max_iter=_STEPS, tol=1e-3).fit(train_NE, classes_N)
    return line.predict(test_ME)


@dataclass(frozen=True)
class Mix:
    """The learned share of each layer, and the predictions."""

    shares: tuple[float, ...]
    classes: Classes


def by_ridge(train_NE: Vectors, classes_N: Classes, test_ME: Vectors) -> Classes:
    """The class (M,) with the highest value by ridge regression to -1 and 1."""
    targets_NC = 2 * np.eye(int(classes_N.max()) + 1)[classes_N] - 1
    return _ridge(train_NE, targets_NC, test_ME).argmax(axis=1)


def _ridge(train_NE: Vectors, targets_NC: Vectors, test_ME: Vectors) -> Vectors:
    train_NE, test_ME = standardise(train_NE.astype(np.float64), test_ME.astype(np.float64))
    mean_C, penalty = targets_NC.mean(axis=0), _RIDGE * len(train_NE)
    square_EE = train_NE.T @ train_NE + penalty * np.eye(train_NE.shape[1])
    return test_ME @ np.linalg.solve(square_EE, train_NE.T @ (targets_NC - mean_C)) + mean_C


def by_best_line(train_NE: Vectors, classes_N: Classes, test_ME: Vectors, number: int) -> Classes:
    """The class (M,) by logistic regression whose penalty, of SentEval's grid (Conneau and Kiela
    2018, arXiv:1803.05449), has the highest accuracy over `number` folds."""
    from sklearn.linear_model import LogisticRegression  # takes a second

    def predict(rows: Places, C: float, vectors: Vectors) -> Classes:
        line = LogisticRegression(C=C, max_iter=1000).fit(train_NE[rows], classes_N[rows])
        return line.predict(vectors)

    def right(C: float) -> int:
        parts = folds(classes_N, number)
        return sum(int((predict(i, C, train_NE[j]) == classes_N[j]).sum()) for i, j in parts)

    best = max(_GRID, key=right)
    return predict(np.arange(len(train_NE)), best, test_ME)


def folds(classes_N: Classes, number: int) -> list[tuple[Places, Places]]:
    """Training and test places of folds with equal shares of every class, those of SentEval."""
    from sklearn.model_selection import StratifiedKFold  # takes a second

    number = max(2, min(number, int(np.bincount(classes_N).max(initial=0))))
    parts = StratifiedKFold(number, shuffle=True, random_state=_FOLDS_SEED)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")
        return [*parts.split(classes_N, classes_N)]


def to_scores(
    train_NE: Vectors, scores_N: NDArray[np.float64], test_ME: Vectors, two_hot: bool
) -> Vectors:
    """Scores (M,) of pairs: by ridge regression, or `two_hot` (Tai et al. 2015, arXiv:1503.00075),
    the mean of softmax shares of whole scores: 3.6 is 0.4 of a 3 and 0.6 of a 4."""
    if not two_hot:
        return _ridge(train_NE, scores_N[:, None], test_ME)[:, 0]
    train, test = map(_as_tensor, standardise(train_NE, test_ME))
    grid = np.arange(np.floor(scores_N.min()), np.ceil(scores_N.max()) + 1)
    shares = _as_tensor(np.clip(1 - np.abs(scores_N[:, None] - grid), 0, 1))
    line = nn.Linear(train.shape[1], len(grid))

    def value() -> torch.Tensor:
        penalty = _RIDGE * line.weight.square().sum() / len(grid)
        return (line(train).softmax(dim=1) - shares).square().sum(dim=1).mean() + penalty

    minimise([line], value)
    with torch.no_grad():
        return line(test).softmax(dim=1).double().numpy() @ grid


def _as_tensor(values: Vectors) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))


def minimise(parts: Sequence[nn.Module], value: Callable[[], torch.Tensor]) -> None:
    """Set lines to zero and all parameters to the minimum of `value`."""
    parameters = [each for part in parts for each in part.parameters()]
    for line in parts:
        if isinstance(line, nn.Linear):
            nn.init.zeros_(line.weight)
            nn.init.zeros_(line.bias)
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=_STEPS, tolerance_change=1e-5, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = value()
        total.backward()
        return total

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]


def by_mix(
    train_KNE: Vectors,
    classes_N: Classes,
    test_KME: Vectors,
    allowed_NC: NDArray[np.bool_] | None = None,
    allowed_MC: NDArray[np.bool_] | None = None,
) -> Mix:
    """The likeliest class by logistic regression on a jointly learned mean of standardised layers.
    Besides the penalty of `by_line`, another (Peters et al. 2018, section 3.3) draws the shares to
    the plain mean and gamma to 1. `allowed` limits the classes per vector."""
    K, N, E = train_KNE.shape
    C = int(classes_N.max()) + 1 if allowed_NC is None else allowed_NC.shape[1]
    train, test = _as_tensor(train_KNE), _as_tensor(test_KME)
    closed_NC = None if allowed_NC is None else torch.from_numpy(~allowed_NC)
    classes = torch.from_numpy(classes_N)
    mix, line = ScalarMix(K), nn.Linear(E, C)

    def value() -> torch.Tensor:
        logits_NC = line(mix(list(train)))
        if closed_NC is not None:
            logits_NC = logits_NC.masked_fill(closed_NC, -torch.inf)
        penalty = _PENALTY * line.weight.square().sum()
        penalty = penalty + mix.scores.square().sum() + (mix.gamma - 1).square()
        return nn.functional.cross_entropy(logits_NC, classes) + penalty / (2 * N)

    minimise([mix, line], value)
    with torch.no_grad():
        logits_MC = line(mix(list(test)))
        if allowed_MC is not None:
            logits_MC = logits_MC.masked_fill(torch.from_numpy(~allowed_MC), -torch.inf)
    return Mix(mix.shares(), logits_MC.argmax(dim=1).numpy())


def standardise(train: Vectors, test: Vectors) -> tuple[Vectors, Vectors]:
    """Standardise both (..., N, E) with the mean and standard deviation of `train`."""
    mean = train.mean(axis=-2, keepdims=True)
    spread = train.std(axis=-2, keepdims=True)
    spread = np.where(spread < 1e-6, 1.0, spread)
    return (train - mean) / spread, (test - mean) / spread


def cosines(first_ME: Vectors, second_NE: Vectors) -> NDArray[np.float64]:
    """Cosines (M, N), rounded so that equal ones compare equal; 0 for zero vectors."""
    units = []
    for vectors in (first_ME, second_NE):
        vectors = vectors.astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        units.append(vectors / np.where(lengths == 0, 1.0, lengths))
    return np.round(units[0] @ units[1].T, _DECIMALS)
