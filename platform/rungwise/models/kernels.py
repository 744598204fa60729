"""Loops that numba compiles on first use and caches beside this file, which is apart because numba
is slow to import: the passes of word2vec, paragraph vectors and GloVe, and the merges of Brown
clustering.

A pass reads its text in order with its own random generator (xorshift64*, Vigna 2016), so the same
call gives the same bits on one kind of processor. Threads that share the weights write without
locks (Niu et al. 2011, "Hogwild!", arXiv:1106.5730). Noise is drawn once per window, so its rows
stay in the fastest cache. Rows of vectors are padded, so that vectorised loops have no remainder.

Of the clusters that merge, those in view have a slot each. A word enters, then the two clusters
whose merge loses least mutual information become one; at last pairs merge down to one cluster
(Liang 2005, "Semi-Supervised Learning for Natural Language", section 4.2). With F(n) = n ln n and
n[a, b] the adjacent pairs of words of two clusters, the loss of merging a and b, times the number
of all pairs, is

    sum over the other clusters c in view of F(n[a, c]) + F(n[b, c]) - F(n[a, c] + n[b, c])

and of columns, plus what the counts of a and b and their sizes lose. The sums are kept up to date.

V vocabulary, P size of a vector in memory, X size of what is read: P, or (n + 1)·P if concatenated,
U documents, n words of a window, m targets, N cells or distinct pairs of adjacent words, S slots
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rungwise.core.arrays import Bits, Bools, Floats, Ints, Singles

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
SUM, MEAN, CONCATENATION = 0, 1, 2
_LARGEST = np.float32(100.0)  # gradient of a cell, before its squares are summed
_IN_ORDER: dict[str, Any] = {"nogil": True, "cache": True}  # floats are summed as written


@njit(**COMPILED)
def draw_bits(state: Bits) -> Any:
    """Return 64 random bits and advance `state` (1,), which must not be 0."""
    bits = state[0]
    bits ^= bits >> _A
    bits ^= bits << _B
    bits ^= bits >> _C
    state[0] = bits
    return bits * _SCRAMBLE


@njit(**COMPILED)
def draw_integer(state: Bits, size: int) -> Any:
    """Return a random integer below `size`."""
    return np.int64(((draw_bits(state) >> _HALF) * np.uint64(size)) >> _HALF)


@njit(**COMPILED)
def draw_noise(state: Bits, share: Bits, other: Ints) -> Any:
    """Draw a word from an alias table."""
    bits = draw_bits(state)
    slot = np.int64(((bits >> _HALF) * np.uint64(len(share))) >> _HALF)
    return slot if (bits & _LOW) < share[slot] else other[slot]


@njit(**COMPILED)
def find_longest(starts: Ints, first: int, last: int) -> Any:
    """Return the length of the longest of the runs [first, last)."""
    longest = 0
    for run in range(first, last):
        longest = max(longest, starts[run + 1] - starts[run])
    return longest


@njit(**COMPILED)
def sample_words(state: Bits, ids: NDArray[np.int32], keep: Bits, words: Ints) -> Any:
    """Write the words that are read to `words`; return their number."""
    count = 0
    for word in ids:
        if keep[word] > 0 and (draw_bits(state) >> _HALF) <= keep[word]:
            words[count] = word
            count += 1
    return count


@njit(**COMPILED)
def find_targets(state: Bits, word: int, plan: Any, targets: Ints, labels: Singles) -> Any:
    """Return the rows of outputs for a word and their labels: its path, or the word and noise. As
    in word2vec.c, noise that is equal to the word is skipped."""
    if len(plan.path_starts) > 1:
        path = slice(plan.path_starts[word], plan.path_starts[word + 1])
        return plan.path_nodes[path], plan.path_labels[path]
    targets[0] = word
    number = 1
    for _ in range(len(targets) - 1):
        targets[number] = draw_noise(state, plan.share, plan.other)
        number += targets[number] != word
    return targets[:number], labels[:number]


@njit(**COMPILED)
def take_step(
    inputs: Singles,
    outputs: Singles,
    window: Ints,  # (n,) rows of inputs
    targets: Ints,  # (m,) rows of outputs
    labels: Singles,  # (m,) 1 or 0
    mean: bool,  # read the window's mean, else its words one by one
    rate: float,  # 0: evaluate only
    x: Singles,  # (P,) this and the next two are scratch space
    error: Singles,  # (P,)
    wrong: Singles,  # (m,)
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
    starts: Ints,
    first: int,
    last: int,
    plan: Any,  # the `Plan` of word2vec.py
    inputs: Singles,
    outputs: Singles,
    window: int,
    dynamic: bool,
    negatives: int,
    mean: bool,
    first_rate: float,
    last_rate: float,
    seed: int,
) -> Any:
    """Read the sentences [first, last); return the losses, as in `take_step`, and their number."""
    state = np.array([np.uint64(seed) | np.uint64(1)], np.uint64)
    longest = find_longest(starts, first, last)
    deepest = max(negatives + 1, find_longest(plan.path_starts, 0, len(plan.path_starts) - 1))
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
        text = ids[starts[s] : starts[s + 1]]
        count = sample_words(state, text, plan.keep, read_words)
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
            right, answers = find_targets(state, word, plan, targets, labels)
            loss += take_step(
                inputs, outputs, around[:n], right, answers, mean, rate, x, error, wrong
            )
            number += 1 if mean else n
    return loss, number


@njit(**COMPILED)
def take_document_step(
    document: Singles,  # (P,)
    inputs: Singles,
    outputs: Singles,  # (V, X)
    words: Ints,  # (n,) rows of inputs
    targets: Ints,  # (m,) rows of outputs
    labels: Singles,  # (m,) 1 or 0
    joining: int,  # SUM, MEAN or CONCATENATION
    is_training: bool,  # False: only the document learns
    rate: float,  # 0: evaluate only
    x: Singles,  # (X,) this and the next two are scratch space
    error: Singles,  # (X,)
    wrong: Singles,  # (m,)
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
    starts: Ints,  # (U + 1,)
    numbers: Ints,  # (U,) rows of documents
    first: int,
    last: int,
    plan: Any,  # the `Plan` of word2vec.py
    documents: Singles,
    inputs: Singles,
    outputs: Singles,
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
    """Read the documents [first, last); return the sum of losses and their number."""
    state = np.array([np.uint64(seed) | np.uint64(1)], np.uint64)
    longest = find_longest(starts, first, last)
    deepest = max(negatives + 1, find_longest(plan.path_starts, 0, len(plan.path_starts) - 1))
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
        text = ids[starts[u] : starts[u + 1]]
        count = sample_words(state, text, plan.keep, words)
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
            right, answers = find_targets(state, word, plan, targets, labels)
            for i in range(1 if joins else 1 + n):
                row = inputs[around[i - 1]] if i > 0 else document
                near_words = around[:n] if joins else around[:0]
                loss += take_document_step(
                    *(row, inputs, outputs, near_words, right, answers),
                    *(joining, is_training, rate, x, error, wrong),
                )
                number += 1
    return loss, number


@njit(**COMPILED)
def read_cells(
    order: Ints,  # (n,) which cells, one after the other
    rows: NDArray[np.int32],  # (N,)
    columns: NDArray[np.int32],  # (N,)
    amounts: Singles,  # (N,) weighted co-occurrences
    words: Singles,  # (V, P)
    contexts: Singles,  # (V, P)
    word_bias: Singles,  # (V,)
    context_bias: Singles,  # (V,)
    word_squares: Singles,  # (V, P) sums of squared gradients
    context_squares: Singles,
    word_bias_squares: Singles,
    context_bias_squares: Singles,
    x_max: float,
    alpha: float,
    rate: float,  # 0: learn nothing
) -> Any:
    """Take an AdaGrad step (Duchi et al. 2011) for each cell and its mirror image, as in glove.c:
    the gradient is scaled by the rate and clipped to ±100 before its squares are summed. Return the
    sum of the losses before each, f(x)·(w·c + b + b' - ln x)²/2, and their number."""
    loss, number = 0.0, 0
    for cell in order:
        amount = amounts[cell]
        weight = min(1.0, (amount / x_max) ** alpha)
        goal = np.log(amount)
        for mirrored in range(1 if rows[cell] == columns[cell] else 2):
            row = columns[cell] if mirrored else rows[cell]
            column = rows[cell] if mirrored else columns[cell]
            word, context = words[row], contexts[column]
            dot = np.float32(0.0)
            for d in range(len(word)):
                dot += word[d] * context[d]
            wrong = dot + word_bias[row] + context_bias[column] - goal
            loss += 0.5 * weight * wrong * wrong
            number += 1
            if rate == 0.0:
                continue
            scaled = np.float32(rate * weight * wrong)
            word_sums, context_sums = word_squares[row], context_squares[column]
            for d in range(len(word)):
                of_word = min(max(scaled * context[d], -_LARGEST), _LARGEST)
                of_context = min(max(scaled * word[d], -_LARGEST), _LARGEST)
                word[d] -= of_word / np.sqrt(word_sums[d])
                context[d] -= of_context / np.sqrt(context_sums[d])
                word_sums[d] += of_word * of_word
                context_sums[d] += of_context * of_context
            scaled = min(max(scaled, -_LARGEST), _LARGEST)
            word_bias[row] -= scaled / np.sqrt(word_bias_squares[row])
            context_bias[column] -= scaled / np.sqrt(context_bias_squares[column])
            word_bias_squares[row] += scaled * scaled
            context_bias_squares[column] += scaled * scaled
    return loss, number


@njit(**_IN_ORDER)
def _f(count: int, table: Floats) -> Any:
    """Return n ln n; `table` has it for small n."""
    return table[count] if count < len(table) else count * np.log(count)


@njit(**_IN_ORDER)
def _loss(one: int, other: int, table: Floats) -> Any:
    return _f(one, table) + _f(other, table) - _f(one + other, table)


@njit(**_IN_ORDER)
def _add(sign: float, slot: int, pairs: Ints, losses: Floats, table: Floats) -> None:
    """Add what a cluster contributes to the losses of all pairs of others."""
    for counts in pairs[:, slot]:
        neighbours = np.flatnonzero(counts)
        for place, a in enumerate(neighbours):
            for b in neighbours[place + 1 :]:
                losses[a, b] += sign * _loss(counts[a], counts[b], table)


@njit(**_IN_ORDER)
def _fill(slot: int, pairs: Ints, sizes: Ints, losses: Floats, logs: Floats, table: Floats) -> None:
    """Calculate what depends on a cluster whose counts are new."""
    sums = np.zeros(len(losses))
    for side in range(2):
        counts = pairs[side, slot]
        for c in np.flatnonzero(counts):
            facing = pairs[1 - side, c]
            for b in range(len(sums)):
                if facing[b] and c != slot and c != b:
                    sums[b] += _loss(counts[c], facing[b], table)
    for b in range(len(sums)):
        total = np.int64(0)
        for row, column in ((slot, slot), (slot, b), (b, slot), (b, b)):
            total += pairs[0, row, column]
            sums[b] += _f(pairs[0, row, column], table)
        first, last = min(slot, b), max(slot, b)
        losses[first, last] = sums[b] - _f(total, table)
        for side in range(2):
            size = sizes[side, slot] + (0 if b == slot else sizes[side, b])
            logs[side, first, last] = np.log(max(1, size))


@njit(**_IN_ORDER)
def _cheapest(in_view: Bools, pairs: Ints, losses: Floats, logs: Floats) -> Any:
    """Return the two slots whose merge loses least, the first of equals."""
    slots = np.flatnonzero(in_view)
    out, into = np.zeros(len(losses), np.int64), np.zeros(len(losses), np.int64)
    apart = np.zeros(len(losses))
    for a in slots:
        out[a], into[a] = pairs[0, a].sum(), pairs[1, a].sum()
        apart[a] = out[a] * logs[0, a, a] + into[a] * logs[1, a, a]
    best, first, last = np.inf, -1, -1
    for place, a in enumerate(slots):
        for b in slots[place + 1 :]:
            own = (out[a] + out[b]) * logs[0, a, b] + (into[a] + into[b]) * logs[1, a, b]
            loss = losses[a, b] + own - apart[a] - apart[b]
            if loss < best:
                best, first, last = loss, a, b
    return first, last


@njit(**_IN_ORDER)
def merge_words(
    starts: Ints,  # (2, V + 1) where the neighbours of each word begin, on the right and left
    words: Ints,  # (2, N) the neighbours
    counts: Ints,  # (2, N) of the pairs
    classes: int,  # at least 1 and at most V
    table: Floats,  # n ln n of small n
) -> Any:
    """Cluster words, which enter in this order. Return the slot of each (V,) after the last, and
    the merges from then on (C - 1, 2): the second slot of each becomes part of the first."""
    size, slots = starts.shape[1] - 1, classes + 1
    slot_of, in_view = np.full(size, -1, np.int64), np.zeros(slots, np.bool_)
    pairs = np.zeros((2, slots, slots), np.int64)  # and its transpose
    sizes = np.zeros((2, slots), np.int64)  # pairs of the whole text, on the right and left
    losses, logs = np.zeros((slots, slots)), np.zeros((2, slots, slots))
    merges = np.zeros((classes - 1, 2), np.int64)
    slot: Any = np.int64(0)  # a plain 0 is a type of its own, for which all is compiled twice
    for step in range(size + classes - 1):
        if step < size:
            slot_of[step], in_view[slot] = slot, True
            for side in range(2):
                for at in range(starts[side, step], starts[side, step + 1]):
                    sizes[side, slot] += counts[side, at]
                    other = slot_of[words[side, at]]
                    if other >= 0 and not (side and other == slot):
                        pairs[side, slot, other] += counts[side, at]
                        pairs[1 - side, other, slot] += counts[side, at]
            _add(1.0, slot, pairs, losses, table)
            _fill(slot, pairs, sizes, losses, logs, table)
            if step < classes:
                slot += 1
                continue
        a, b = _cheapest(in_view, pairs, losses, logs)
        _add(-1.0, a, pairs, losses, table)
        _add(-1.0, b, pairs, losses, table)
        for side in range(2):
            sizes[side, a] += sizes[side, b]
            pairs[side, a] += pairs[side, b]
            pairs[side, :, a] += pairs[side, :, b]
            sizes[side, b], pairs[side, b], pairs[side, :, b] = 0, 0, 0
        in_view[b] = False
        _add(1.0, a, pairs, losses, table)
        _fill(a, pairs, sizes, losses, logs, table)
        if step < size:
            slot_of[slot_of == b] = a
            slot = b
        else:
            merges[step - size] = a, b
    return slot_of, merges
