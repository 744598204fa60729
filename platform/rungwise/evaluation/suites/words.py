"""Vectors of words for suites that ask for words and not for text.

A word of several pieces is the mean of their vectors. The unknown token and a token that was too
rare to be learnt, whose vector is zero, are no pieces; a word that has no others is unknown.

N words, D size of a vector
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rungwise.evaluation.items import Items
from rungwise.evaluation.suites.base import Rung

KNOWN = "known"  # the part of the share of items whose words are all known


def pieces_of(rung: Rung, words: Sequence[str]) -> list[list[int]]:
    """The ids of each word as it stands within a text.

    A byte-level BPE has the blank before a word in its first piece, a vocabulary of characters has
    it as a piece of its own: of both ways to write a word the one with fewer pieces is taken.
    """
    alone, behind = rung.encode(words), rung.encode([f" {word}" for word in words])
    return [min(second, first, key=len) for first, second in zip(alone, behind, strict=True)]


def vectors_of(rung: Rung, words: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The vectors (N, D) of words, and which (N,) are known; the others have zeros."""
    pieces = pieces_of(rung, words)
    flat = [piece for each in pieces for piece in each]
    vectors = rung.model.vectors(flat).astype(np.float64)
    known = vectors.any(axis=1) & ~np.isin(flat, list(rung.special.ids))
    owner = np.repeat(np.arange(len(words)), [len(each) for each in pieces])[known]
    sums = np.zeros((len(words), vectors.shape[1]))
    np.add.at(sums, owner, vectors[known])
    counts = np.bincount(owner, minlength=len(words))
    return sums / np.maximum(counts, 1)[:, None], counts > 0


def cosines(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cosine of each row of one with that of the other, (N, D) each; 0 for zeros."""
    sizes = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(axis=1) / np.where(sizes == 0, 1.0, sizes)


def share_known(
    suite: str, names: list[str], groups: list[str], known: NDArray[np.bool_], part: str = KNOWN
) -> Items:
    """The items of which all words are known, as a share of all."""
    numbers = np.stack([known.astype(np.float64), np.ones(len(names))], axis=1)
    return Items(suite, "accuracy", names, groups, numbers, part)
