"""Interpolated modified Kneser-Ney again, slow and obvious: dictionaries, one n-gram at a time.

Straight from Chen & Goodman 1998, section 3 and equations 20 to 26, and Heafield et al. 2013,
section 3: every order is counted by itself, with one start symbol before each sentence. What is
pruned, by its raw count, gives its whole count to the shorter n-grams.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

Ngram = tuple[int, ...]


class SlowNgram:
    """Probabilities of the n-grams of `sentences`, each closed by its end symbol."""

    def __init__(
        self,
        sentences: Sequence[Sequence[int]],
        order: int,
        vocab_size: int,
        start_id: int,
        fallback: Sequence[float],
        prune: Sequence[int] = (0,),
    ) -> None:
        self.order, self.vocab_size, self.start_id = order, vocab_size, start_id
        raw: Counter[Ngram] = Counter()
        before: defaultdict[Ngram, set[int]] = defaultdict(set)
        for sentence in sentences:
            text = (start_id, *sentence)
            for end in range(2, len(text) + 1):
                for start in range(max(0, end - order), end):
                    raw[text[start:end]] += 1
                    if start:
                        before[text[start:end]].add(text[start - 1])
        self.pruned = {
            ngram for ngram, count in raw.items() if count <= prune[min(len(ngram), len(prune)) - 1]
        }
        self.followers: defaultdict[Ngram, Counter[int]] = defaultdict(Counter)
        of_count: defaultdict[int, Counter[int]] = defaultdict(Counter)  # order -> n1, n2, ...
        for ngram, count in raw.items():
            whole = len(ngram) == order or ngram[0] == start_id
            adjusted = count if whole else len(before[ngram])
            self.followers[ngram[:-1]][ngram[-1]] = adjusted
            of_count[len(ngram)][adjusted] += 1
        self.discounts = {n: _discounts(of_count[n], fallback) for n in range(1, order + 1)}

    def probability(self, word: int, history: Sequence[int]) -> float:
        """P(word | start symbol, history)."""
        text = (self.start_id, *history)
        return self._interpolated(word, text[max(0, len(text) - self.order + 1) :])

    def _interpolated(self, word: int, context: Ngram) -> float:
        shorter = self._interpolated(word, context[1:]) if context else 1.0 / (self.vocab_size - 1)
        counts = self.followers.get(context)
        if counts is None:
            return shorter
        discounts = self.discounts[len(context) + 1]
        removed = {
            follower: count if (*context, follower) in self.pruned else discounts[min(count, 3)]
            for follower, count in counts.items()
        }
        total = sum(counts.values())
        left = sum(removed.values()) / total
        return (counts.get(word, 0) - removed.get(word, 0)) / total + left * shorter


def _discounts(n: Counter[int], fallback: Sequence[float]) -> list[float]:
    if n[1] and n[2] and n[3]:
        y = n[1] / (n[1] + 2 * n[2])
        closed = [j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)]
        if all(discount > 0 for discount in closed):
            return [0.0, *closed]
    return [0.0, *fallback]
