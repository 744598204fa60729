"""Vectors of single words, outside any text.

A word's vector is the mean over its pieces. The unknown token and tokens too rare to be learned,
whose vectors are zero, are ignored; a word without other pieces is unknown.
N words, D size of a vector
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rungwise.evaluation.suites.base import Rung
from rungwise.tokenizer import ids_after_blank

KNOWN = "known"  # the part with the share of known items


def word_pieces(rung: Rung, words: Sequence[str]) -> list[list[int]]:
    """The ids of each word as within a text.

    With or without a space before it, whichever gives fewer pieces: a byte-level BPE includes the
    space in the first piece, while for a vocabulary of characters it is a piece of its own.
    """
    alone, behind = rung.encode(words), ids_after_blank(rung.splitter, words)
    return [min(second, first, key=len) for first, second in zip(alone, behind, strict=True)]


def word_vectors(rung: Rung, words: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The vectors (N, D) of words, and which (N,) are known; unknown ones have zeros."""
    pieces = word_pieces(rung, words)
    flat = [piece for each in pieces for piece in each]
    vectors = rung.model.vectors(flat).astype(np.float64)
    known = vectors.any(axis=1) & ~np.isin(flat, list(rung.special.ids))
    owner = np.repeat(np.arange(len(words)), [len(each) for each in pieces])[known]
    sums = np.zeros((len(words), vectors.shape[1]))
    np.add.at(sums, owner, vectors[known])
    counts = np.bincount(owner, minlength=len(words))
    return sums / np.maximum(counts, 1)[:, None], counts > 0


def cosines(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Row-wise cosines (N,) of two (N, D) arrays; 0 for zero vectors."""
    sizes = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(axis=1) / np.where(sizes == 0, 1.0, sizes)
