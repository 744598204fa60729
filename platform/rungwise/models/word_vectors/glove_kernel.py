"""The epochs of GloVe over co-occurrence cells, compiled by numba on first use.

Each cell is an AdaGrad step (Duchi et al. 2011) on its weighted squared error, as in glove.c: the
gradient is scaled by the learning rate and clipped to ±100 before its squares are summed, and the
sums start at 1.

N cells, V vocabulary, P size of a vector in memory
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rungwise.models.word_vectors.word2vec_kernel import COMPILED

_LARGEST = np.float32(100.0)


@njit(**COMPILED)
def read_cells(
    order: NDArray[np.int64],  # (n,) which cells, one after the other
    rows: NDArray[np.int32],  # (N,)
    columns: NDArray[np.int32],  # (N,)
    amounts: NDArray[np.float32],  # (N,) weighted co-occurrences
    words: NDArray[np.float32],  # (V, P)
    contexts: NDArray[np.float32],  # (V, P)
    word_bias: NDArray[np.float32],  # (V,)
    context_bias: NDArray[np.float32],  # (V,)
    word_squares: NDArray[np.float32],  # (V, P) sums of squared gradients
    context_squares: NDArray[np.float32],
    word_bias_squares: NDArray[np.float32],
    context_bias_squares: NDArray[np.float32],
    x_max: float,
    alpha: float,
    rate: float,  # 0: learn nothing
) -> Any:
    """Take a step for each cell and its mirror image; return the sum of the losses before each,
    f(x)·(w·c + b + b' - ln x)²/2, and their number."""
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
