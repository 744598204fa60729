"""The log-probabilities of all next tokens by an n-gram model, for the rows of a batch at once.

B batch, T sequence, X = B·T, V vocabulary, K contexts that are known, N n-grams
"""

import math

import torch
from torch import Tensor

from rungwise.models.ngram_model import NgramLanguageModel

_NEVER = -1e4  # in place of minus infinity, which has no difference to itself


class NextTokenCounts:
    """Looks up the contexts of a row in the trie. No context is longer than the row, and none
    begins before the last end symbol in it."""

    def __init__(self, model: NgramLanguageModel) -> None:
        self._vocab_size, self._start, self._end = model.vocab_size, model.start_id, model.end_id
        self._keys = [torch.tensor(keys) for keys in model.keys]
        self._logs = [
            torch.tensor(logs).clamp(min=_NEVER) for logs in model.ngram_log_probabilities
        ]
        self._logs[0][model.start_id] = -math.inf
        self._backoffs = [torch.tensor(each) for each in model.log_backoffs]
        self._first = [  # of each context, its first n-gram, and where the last one's end
            torch.searchsorted(keys, torch.arange(len(backoffs) + 1) * model.vocab_size)
            for keys, backoffs in zip(self._keys, self._backoffs, strict=True)
        ]

    def to(self, device: torch.device, dtype: torch.dtype) -> "NextTokenCounts":
        """Move the tables; probabilities become `dtype`."""
        self._keys, self._first = (
            [each.to(device) for each in x] for x in (self._keys, self._first)
        )
        self._logs = [each.to(device, dtype) for each in self._logs]
        self._backoffs = [each.to(device, dtype) for each in self._backoffs]
        return self

    def __call__(self, ids_BT: Tensor) -> Tensor:
        """Return the natural log-probabilities (X, V) of the token after each position."""
        if self._logs[0].device != ids_BT.device:
            self.to(ids_BT.device, self._logs[0].dtype)
        contexts = self._find_contexts(ids_BT)
        below_X = self._logs[0].new_zeros(ids_BT.numel())  # weights of the contexts above a level
        weights = []
        for (rows_K, context_K), backoffs in zip(
            reversed(contexts), reversed(self._backoffs), strict=True
        ):
            weights.append(below_X[rows_K])
            below_X[rows_K] += backoffs[context_K]
        logs_XV = self._logs[0] + below_X[:, None]
        flat = logs_XV.view(-1)
        levels = zip(
            contexts, reversed(weights), self._keys, self._first, self._logs[1:], strict=True
        )
        for (rows_K, context_K), weights_K, keys, first, logs in levels:
            begin_K = first[context_K]
            sizes_K = first[context_K + 1] - begin_K
            of_N = torch.repeat_interleave(sizes_K)
            place_N = torch.arange(len(of_N), device=ids_BT.device)
            place_N += (begin_K - (sizes_K.cumsum(0) - sizes_K))[of_N]
            flat[keys[place_N] + ((rows_K - context_K) * self._vocab_size)[of_N]] = (
                logs[place_N] + weights_K[of_N]
            )
        return logs_XV

    def _find_contexts(self, ids_BT: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return, by length, which positions end a known context, and its index, (K,) each."""
        end = -1 if self._end is None else self._end
        tokens_BT = ids_BT.masked_fill(ids_BT == end, self._start)
        index_BT, contexts = tokens_BT, []
        for keys in self._keys:
            index_X = index_BT.flatten()
            rows_K = (index_X >= 0).nonzero()[:, 0]
            contexts.append((rows_K, index_X[rows_K]))
            key_BT = index_BT[:, :-1] * self._vocab_size + tokens_BT[:, 1:]
            place_BT = torch.searchsorted(keys, key_BT).clamp(max=len(keys) - 1)
            exists_BT = (keys[place_BT] == key_BT) & (index_BT[:, :-1] >= 0)
            index_BT = torch.full_like(tokens_BT, -1)
            index_BT[:, 1:] = torch.where(exists_BT, place_BT, -1)
        return contexts
