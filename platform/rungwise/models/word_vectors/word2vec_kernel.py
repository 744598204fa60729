"""The passes of word2vec over text, compiled by numba on first use and cached beside this file.

    sentence ──> subsampled words ──> the window of each ──> noise, or its path ──> step

Each call reads its sentences in order with its own random generator (xorshift64*, Vigna 2016), so
the same call gives the same bits on one kind of processor. Threads that share the weights write
without locks (Niu et al. 2011, "Hogwild!", arXiv:1106.5730).

Noise is drawn once per window, so its rows stay in the fastest cache for all words of the window.
Rows of vectors are padded, so that vectorised loops have no remainder.

V vocabulary, P size of a vector in memory, n words of a window, m targets
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Sums may be reordered, as in BLAS; infinities and NaN keep their meaning.
COMPILED: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
}
_ONE = np.float32(1.0)
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_A, _B, _C = np.uint64(12), np.uint64(25), np.uint64(27)
_SCRAMBLE = np.uint64(2685821657736338717)


@njit(**COMPILED)
def draw_bits(state: NDArray[np.uint64]) -> Any:
    """Return 64 random bits and advance `state` (1,), which must not be 0."""
    bits = state[0]
    bits ^= bits >> _A
    bits ^= bits << _B
    bits ^= bits >> _C
    state[0] = bits
    return bits * _SCRAMBLE


@njit(**COMPILED)
def draw_integer(state: NDArray[np.uint64], size: int) -> Any:
    """Return a random integer below `size`."""
    return np.int64(((draw_bits(state) >> _HALF) * np.uint64(size)) >> _HALF)


@njit(**COMPILED)
def draw_noise(
    state: NDArray[np.uint64], share: NDArray[np.uint64], other: NDArray[np.int64]
) -> Any:
    """Draw a word from an alias table."""
    bits = draw_bits(state)
    slot = np.int64(((bits >> _HALF) * np.uint64(len(share))) >> _HALF)
    return slot if (bits & _LOW) < share[slot] else other[slot]


@njit(**COMPILED)
def take_step(
    inputs: NDArray[np.float32],
    outputs: NDArray[np.float32],
    window: NDArray[np.int64],  # (n,) rows of inputs
    targets: NDArray[np.int64],  # (m,) rows of outputs
    labels: NDArray[np.float32],  # (m,) 1 or 0
    mean: bool,  # read the window's mean, else its words one by one
    rate: float,  # 0: evaluate only
    x: NDArray[np.float32],  # (P,) this and the next two are scratch space
    error: NDArray[np.float32],  # (P,)
    wrong: NDArray[np.float32],  # (m,)
) -> Any:
    """For each x, take a gradient step on -ln sigmoid(±x·u) summed over the targets u; return the
    sum of these losses, which is computed only if `rate` is 0."""
    loss = 0.0
    share = np.float32(1.0 / len(window)) if mean else _ONE
    threes = len(targets) // 3 * 3  # together, for which x and its error are read once
    for i in range(1 if mean else len(window)):
        last = len(window) if mean else i + 1
        x[:] = inputs[window[i]]
        for j in range(i + 1, last):
            row = inputs[window[j]]
            for d in range(len(x)):
                x[d] += row[d]
        if mean:
            for d in range(len(x)):
                x[d] *= share
        for t in range(0, threes, 3):
            u, v, w = outputs[targets[t]], outputs[targets[t + 1]], outputs[targets[t + 2]]
            of_u, of_v, of_w = np.float32(0.0), np.float32(0.0), np.float32(0.0)
            for d in range(len(x)):
                of_u += x[d] * u[d]
                of_v += x[d] * v[d]
                of_w += x[d] * w[d]
            wrong[t], wrong[t + 1], wrong[t + 2] = of_u, of_v, of_w
        for t in range(threes, len(targets)):
            u = outputs[targets[t]]
            of_u = np.float32(0.0)
            for d in range(len(x)):
                of_u += x[d] * u[d]
            wrong[t] = of_u
        if rate == 0.0:
            for t in range(len(targets)):
                loss += np.logaddexp(0.0, np.float64(wrong[t] * (_ONE - 2 * labels[t])))
            continue
        for t in range(len(targets)):
            wrong[t] = np.float32(rate) * (labels[t] - _ONE / (_ONE + np.exp(-wrong[t])))
        error[:] = 0
        for t in range(0, threes, 3):
            u, v, w = outputs[targets[t]], outputs[targets[t + 1]], outputs[targets[t + 2]]
            of_u, of_v, of_w = wrong[t], wrong[t + 1], wrong[t + 2]
            for d in range(len(x)):
                error[d] += of_u * u[d] + of_v * v[d] + of_w * w[d]
                u[d] += of_u * x[d]
                v[d] += of_v * x[d]
                w[d] += of_w * x[d]
        for t in range(threes, len(targets)):
            u = outputs[targets[t]]
            for d in range(len(x)):
                error[d] += wrong[t] * u[d]
                u[d] += wrong[t] * x[d]
        for j in range(i, last):
            row = inputs[window[j]]
            for d in range(len(x)):
                row[d] += share * error[d]
    return loss


@njit(**COMPILED)
def read_sentences(
    ids: NDArray[np.int32],
    starts: NDArray[np.int64],
    first: int,
    last: int,
    keep: NDArray[np.uint64],
    share: NDArray[np.uint64],
    other: NDArray[np.int64],
    path_starts: NDArray[np.int64],
    path_nodes: NDArray[np.int64],
    path_labels: NDArray[np.float32],
    inputs: NDArray[np.float32],
    outputs: NDArray[np.float32],
    window: int,
    dynamic: bool,
    negatives: int,
    mean: bool,
    first_rate: float,
    last_rate: float,
    seed: int,
) -> Any:
    """Read the sentences [first, last); return the sum of losses as in `take_step`, and their
    number. The tables are those of `Plan` in word2vec.py. Without paths it draws noise."""
    state = np.array([np.uint64(seed) | np.uint64(1)], np.uint64)
    longest, deepest = 0, negatives + 1
    for s in range(first, last):
        longest = max(longest, starts[s + 1] - starts[s])
    for word in range(len(path_starts) - 1):
        deepest = max(deepest, path_starts[word + 1] - path_starts[word])
    read_words = np.empty(longest, np.int64)
    around = np.empty(2 * window, np.int64)
    targets = np.empty(negatives + 1, np.int64)
    labels = np.zeros(negatives + 1, np.float32)
    labels[0] = 1
    x, error = np.empty(inputs.shape[1], np.float32), np.empty(inputs.shape[1], np.float32)
    wrong = np.empty(deepest, np.float32)
    slope = (last_rate - first_rate) / max(1, starts[last] - starts[first])
    loss, number = 0.0, 0
    for s in range(first, last):
        count = 0
        for place in range(starts[s], starts[s + 1]):
            word = ids[place]
            if keep[word] > 0 and (draw_bits(state) >> _HALF) <= keep[word]:
                read_words[count] = word
                count += 1
        rate = first_rate + slope * (starts[s] - starts[first])
        for place in range(count):
            reach = 1 + draw_integer(state, window) if dynamic else window
            n = 0
            for near in range(max(0, place - reach), min(count, place + reach + 1)):
                if near != place:
                    around[n] = read_words[near]
                    n += 1
            if n == 0:
                continue
            word = read_words[place]
            if len(path_starts) > 1:
                path = slice(path_starts[word], path_starts[word + 1])
                right, answers = path_nodes[path], path_labels[path]
            else:
                targets[0] = word
                m = 1
                for _ in range(negatives):
                    targets[m] = draw_noise(state, share, other)
                    m += targets[m] != word  # as in word2vec.c, skip noise equal to the word
                right, answers = targets[:m], labels[:m]
            loss += take_step(
                inputs, outputs, around[:n], right, answers, mean, rate, x, error, wrong
            )
            number += 1 if mean else n
    return loss, number
