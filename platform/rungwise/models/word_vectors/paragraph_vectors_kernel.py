"""The passes of paragraph vectors over documents, compiled by numba on first use.

    document ──> subsampled words ──> its row, and the window of each word ──> step

Noise, subsampling and random numbers are those of word2vec_kernel.py. The last row of the inputs
stands for places beyond the ends of a document.

V vocabulary, P size of a vector in memory, X size of what is read: P, or (n + 1)·P if concatenated,
U documents, n words, m targets
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rungwise.models.word_vectors.word2vec_kernel import (
    COMPILED,
    draw_bits,
    draw_integer,
    draw_noise,
)

SUM, MEAN, CONCATENATION = 0, 1, 2
_ONE = np.float32(1.0)
_HALF = np.uint64(32)


@njit(**COMPILED)
def take_step(
    document: NDArray[np.float32],  # (P,)
    inputs: NDArray[np.float32],
    outputs: NDArray[np.float32],  # (V, X)
    words: NDArray[np.int64],  # (n,) rows of inputs
    targets: NDArray[np.int64],  # (m,) rows of outputs
    labels: NDArray[np.float32],  # (m,) 1 or 0
    joining: int,  # SUM, MEAN or CONCATENATION
    is_training: bool,  # False: only the document learns
    rate: float,  # 0: evaluate only
    x: NDArray[np.float32],  # (X,) this and the next two are scratch space
    error: NDArray[np.float32],  # (X,)
    wrong: NDArray[np.float32],  # (m,)
) -> Any:
    """Take a gradient step on -ln sigmoid(±x·u) summed over the targets u, with x the document
    joined with the words; return the sum of these losses, computed only if `rate` is 0."""
    size = len(document)
    stride = size if joining == CONCATENATION else 0
    share = np.float32(1.0 / (1 + len(words))) if joining == MEAN else _ONE
    x[:] = 0
    x[:size] = document
    for i in range(len(words)):
        row, begin = inputs[words[i]], (i + 1) * stride
        for d in range(size):
            x[begin + d] += row[d]
    for d in range(len(x)):
        x[d] *= share
    for t in range(len(targets)):
        u = outputs[targets[t]]
        dot = np.float32(0.0)
        for d in range(len(x)):
            dot += x[d] * u[d]
        wrong[t] = dot
    loss = 0.0
    if rate == 0.0:
        for t in range(len(targets)):
            loss += np.logaddexp(0.0, np.float64(wrong[t] * (_ONE - 2 * labels[t])))
        return loss
    error[:] = 0
    for t in range(len(targets)):
        slope = np.float32(rate) * (labels[t] - _ONE / (_ONE + np.exp(-wrong[t])))
        u = outputs[targets[t]]
        for d in range(len(x)):
            error[d] += slope * u[d]
        if is_training:
            for d in range(len(x)):
                u[d] += slope * x[d]
    for d in range(size):
        document[d] += share * error[d]
    for i in range(len(words) if is_training else 0):
        row, begin = inputs[words[i]], (i + 1) * stride
        for d in range(size):
            row[d] += share * error[begin + d]
    return loss


@njit(**COMPILED)
def read_documents(
    ids: NDArray[np.int32],
    starts: NDArray[np.int64],  # (U + 1,)
    numbers: NDArray[np.int64],  # (U,) rows of documents
    first: int,
    last: int,
    keep: NDArray[np.uint64],
    share: NDArray[np.uint64],
    other: NDArray[np.int64],
    path_starts: NDArray[np.int64],
    path_nodes: NDArray[np.int64],
    path_labels: NDArray[np.float32],
    documents: NDArray[np.float32],
    inputs: NDArray[np.float32],
    outputs: NDArray[np.float32],
    window: int,  # 0: read the document alone
    dynamic: bool,
    negatives: int,
    joins: bool,  # read document and window together, else one by one
    joining: int,
    is_training: bool,
    first_rate: float,
    last_rate: float,
    seed: int,
) -> Any:
    """Read the documents [first, last); return the sum of losses as in `take_step`, and their
    number. The tables are those of `Plan` in word2vec.py. Without paths it draws noise."""
    state = np.array([np.uint64(seed) | np.uint64(1)], np.uint64)
    longest, deepest = 0, negatives + 1
    for u in range(first, last):
        longest = max(longest, starts[u + 1] - starts[u])
    for word in range(len(path_starts) - 1):
        deepest = max(deepest, path_starts[word + 1] - path_starts[word])
    words = np.empty(longest, np.int64)
    around = np.empty(2 * window, np.int64)
    targets = np.empty(negatives + 1, np.int64)
    labels = np.zeros(negatives + 1, np.float32)
    labels[0] = 1
    x, error = np.empty(outputs.shape[1], np.float32), np.empty(outputs.shape[1], np.float32)
    wrong = np.empty(deepest, np.float32)
    slope = (last_rate - first_rate) / max(1, starts[last] - starts[first])
    missing = len(inputs) - 1
    loss, number = 0.0, 0
    for u in range(first, last):
        count = 0
        for place in range(starts[u], starts[u + 1]):
            word = ids[place]
            if keep[word] > 0 and (draw_bits(state) >> _HALF) <= keep[word]:
                words[count] = word
                count += 1
        rate = first_rate + slope * (starts[u] - starts[first])
        document = documents[numbers[u]]
        for place in range(count):
            n = 0
            reach = 1 + draw_integer(state, window) if dynamic and window > 0 else window
            for near in range(place - reach, place + reach + 1):
                is_inside = 0 <= near < count
                if near != place and (is_inside or joining == CONCATENATION):
                    around[n] = words[near] if is_inside else missing
                    n += 1
            word = words[place]
            if len(path_starts) > 1:
                path = slice(path_starts[word], path_starts[word + 1])
                right, answers = path_nodes[path], path_labels[path]
            else:
                targets[0] = word
                m = 1
                for _ in range(negatives):
                    targets[m] = draw_noise(state, share, other)
                    m += targets[m] != word
                right, answers = targets[:m], labels[:m]
            for i in range(1 if joins else 1 + n):
                row = inputs[around[i - 1]] if i > 0 else document
                near_words = around[:n] if joins else around[:0]
                loss += take_step(
                    *(row, inputs, outputs, near_words, right, answers),
                    *(joining, is_training, rate, x, error, wrong),
                )
                number += 1
    return loss, number
