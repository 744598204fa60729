"""Simple classifiers on fixed vectors, to see what the vectors separate.

    by_centroid     class whose mean vector has the highest cosine
    by_neighbours   vote of the k nearest training vectors by cosine
    by_line         logistic regression on standardised vectors
    by_mix          logistic regression on a learned mean of all layers (finetune/tops.py)

Classes are numbered by frequency, 0 the most frequent. Ties, as between the equal vectors of a
static rung, go to the more frequent class. Everything is deterministic.

Shapes: K layers, N training vectors, M test vectors, E width, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rungwise.finetune.tops import ScalarMix

Vectors = NDArray[np.floating]
Classes = NDArray[np.int64]
_DECIMALS = 10  # of a cosine; states can differ little from their mean
_STEPS = 200
# L2 penalty relative to the summed loss: 1 in scikit-learn, but a sense has few sentences.
_PENALTY = 10.0


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


def by_neighbours(
    train_NE: Vectors, classes_N: Classes, test_ME: Vectors, neighbours: int
) -> Classes:
    """The class (M,) with most votes; neighbours as near as the last one vote too."""
    cosines_MN = cosines(test_ME, train_NE)
    last = max(0, len(train_NE) - neighbours)
    threshold_M = np.partition(cosines_MN, last, axis=1)[:, last]
    votes_MN = (cosines_MN >= threshold_M[:, None]).astype(np.float64)
    return (votes_MN @ np.eye(int(classes_N.max()) + 1)[classes_N]).argmax(axis=1)


def by_line(train_NE: Vectors, classes_N: Classes, test_ME: Vectors) -> Classes:
    from sklearn.linear_model import LogisticRegression  # takes a second

    if len(np.unique(classes_N)) == 1:
        return np.full(len(test_ME), classes_N[0])
    train_NE, test_ME = standardised(train_NE, test_ME)
    line = LogisticRegression(C=1 / _PENALTY, max_iter=_STEPS, tol=1e-3).fit(train_NE, classes_N)
    return line.predict(test_ME)


@dataclass(frozen=True)
class Mix:
    """The learned share of each layer and scale, and the predictions."""

    shares: tuple[float, ...]
    gamma: float
    classes: Classes

    def as_data(self) -> dict[str, Any]:
        """For the page; `centre` is the mean layer (Tenney et al. 2019, arXiv:1905.05950)."""
        centre = sum(layer * share for layer, share in enumerate(self.shares))
        return {"shares": list(self.shares), "gamma": self.gamma, "centre": centre}


def by_mix(
    train_KNE: Vectors,
    classes_N: Classes,
    test_KME: Vectors,
    allowed_NC: NDArray[np.bool_] | None = None,
    allowed_MC: NDArray[np.bool_] | None = None,
) -> Mix:
    """The likeliest class by logistic regression on a jointly learned mean of layers.

    Layers are standardised, or shares would reflect the length of their vectors. Besides the
    penalty of `by_line` on the weights, another (as in Peters et al. 2018, section 3.3) draws the
    shares to the plain mean and gamma to 1. `allowed` limits the classes per vector.
    """
    K, N, E = train_KNE.shape
    C = int(classes_N.max()) + 1 if allowed_NC is None else allowed_NC.shape[1]
    train, test = (
        torch.from_numpy(np.ascontiguousarray(x, np.float32)) for x in (train_KNE, test_KME)
    )
    closed_NC = None if allowed_NC is None else torch.from_numpy(~allowed_NC)
    classes = torch.from_numpy(classes_N)
    mix, line = ScalarMix(K), nn.Linear(E, C)
    nn.init.zeros_(line.weight)
    nn.init.zeros_(line.bias)
    parameters = [*mix.parameters(), *line.parameters()]
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=_STEPS, tolerance_change=1e-5, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits_NC = line(mix(list(train)))
        if closed_NC is not None:
            logits_NC = logits_NC.masked_fill(closed_NC, -torch.inf)
        penalty = _PENALTY * line.weight.square().sum()
        penalty = penalty + mix.scores.square().sum() + (mix.gamma - 1).square()
        value = nn.functional.cross_entropy(logits_NC, classes) + penalty / (2 * N)
        value.backward()
        return value

    optimizer.step(loss)
    with torch.no_grad():
        logits_MC = line(mix(list(test)))
        if allowed_MC is not None:
            logits_MC = logits_MC.masked_fill(torch.from_numpy(~allowed_MC), -torch.inf)
    return Mix(mix.shares(), float(mix.gamma.detach()), logits_MC.argmax(dim=1).numpy())


def standardised(train: Vectors, test: Vectors) -> tuple[Vectors, Vectors]:
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
