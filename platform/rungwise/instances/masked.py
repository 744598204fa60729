"""Masked pairs: BERT's instances, `[CLS] A [SEP] B [SEP]`, or single blocks if NSP is off.

The procedure is that of Devlin et al. 2019 (arXiv:1810.04805, appendix A.2): sentences of one
document are gathered until a target length, which now and then is short; the gathered ones are cut
in two; B is what follows A, or, half of the time, text from another document, and then what was not
used is gathered again. Pairs too long lose tokens from the longer side, front or back.

It works in two passes. The plan walks over sentences with one bisection an instance and touches no
token; then all tokens are moved at once.

Two things differ from the published procedure, and both are about labels. A document that ends in a
single sentence can only give NotNext, which makes such pairs more than half of all; here a later
pair is made IsNext in exchange, and where too many are owed the sentence is left out and counted.
And B is never from the document of A, however often the draw has to be repeated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rungwise.errors import DataError
from rungwise.instances.shards import Shard, document_hash
from rungwise.tokenizer import CLS_ID, SEP_ID

_OWED_AT_MOST = 8  # NotNext pairs a shard may be ahead before single sentences are left out


@dataclass(frozen=True)
class TokenisedText:
    """Documents of one shard as ids: sentence s is `ids[starts[s]:starts[s + 1]]`."""

    ids: NDArray[np.unsignedinteger]
    starts: NDArray[np.int64]  # sentences + 1
    first_sentence: NDArray[np.int64]  # documents + 1
    documents: Sequence[str]


@dataclass
class _Plan:
    a: list[tuple[int, int]]  # begin and end of A in ids
    b: list[tuple[int, int]]
    is_next: list[bool]
    document_a: list[int]
    document_b: list[int]
    owed: int = 0  # pairs made NotNext for want of a second sentence, not yet made up for
    left_out: int = 0
    truncated: int = 0

    def add(
        self,
        a: tuple[int, int],
        b: tuple[int, int],
        is_next: bool,
        document_a: int,
        document_b: int,
        cut: bool,
    ) -> None:
        self.a.append(a)
        self.b.append(b)
        self.is_next.append(is_next)
        self.document_a.append(document_a)
        self.document_b.append(document_b)
        self.truncated += cut


@dataclass(frozen=True)
class Built:
    """A shard and what was counted on the way."""

    shard: Shard
    sentences_left_out: int
    pairs_truncated: int


def build(
    text: TokenisedText,
    sequence_length: int,
    next_sentence: bool,
    short_rate: float,
    rng: np.random.Generator,
) -> Built:
    """Instances of one shard of documents, `sequence_length` tokens at most.

    Raises DataError if NSP needs a second document and there is none.
    """
    if next_sentence and len(text.documents) < 2:
        raise DataError(
            "a next-sentence pair needs a B from another document, but a shard holds "
            f"{len(text.documents)} document; set instances.next_sentence=false, add documents, or "
            "raise corpus.shard_megabytes"
        )
    plan = _Plan([], [], [], [], [])
    draw = _Draws(rng)
    starts, bounds = text.starts.tolist(), text.first_sentence.tolist()
    for document in range(len(text.documents)):
        if next_sentence:
            _plan_pairs(starts, bounds, document, sequence_length - 3, short_rate, draw, plan)
        else:
            _plan_blocks(starts, bounds, document, sequence_length - 2, short_rate, draw, plan)
    return Built(_gather(text, plan, with_b=next_sentence), plan.left_out, plan.truncated)


def _plan_pairs(
    starts: list[int],
    bounds: list[int],
    document: int,
    room: int,
    short_rate: float,
    draw: _Draws,
    plan: _Plan,
) -> None:
    sentence, end = bounds[document], bounds[document + 1]
    while sentence < end:
        target = draw.integer(2, room) if draw.uniform() < short_rate else room
        last = _gather_until(starts, sentence, end, target)
        if last - sentence == 1 and last < end:
            last += 1  # one long sentence: a true next needs another
        count = last - sentence
        if count == 1 and plan.owed >= _OWED_AT_MOST:
            # Whatever its coin would say: to leave out only one kind would tilt the labels.
            plan.left_out += 1
            return
        random_next = draw.uniform() < 0.5
        if count == 1 and not random_next:
            plan.owed += 1
            random_next = True
        elif random_next and plan.owed and count > 1:
            plan.owed -= 1
            random_next = False
        a_count = 1 if count <= 2 else draw.integer(1, count - 1)
        a = (starts[sentence], starts[sentence + a_count])
        if random_next:
            other = draw.integer(0, len(bounds) - 3)
            other += other >= document
            first = draw.integer(bounds[other], bounds[other + 1] - 1)
            wanted = max(1, target - (a[1] - a[0]))
            b = (starts[first], starts[_gather_until(starts, first, bounds[other + 1], wanted)])
            sentence += a_count  # the rest is gathered again
        else:
            other = document
            b = (a[1], starts[last])
            sentence = last
        a, b, cut = _truncate(a, b, room, draw)
        plan.add(a, b, not random_next, document, other, cut)


def _plan_blocks(
    starts: list[int],
    bounds: list[int],
    document: int,
    room: int,
    short_rate: float,
    draw: _Draws,
    plan: _Plan,
) -> None:
    sentence, end = bounds[document], bounds[document + 1]
    while sentence < end:
        target = draw.integer(2, room) if draw.uniform() < short_rate else room
        last = _gather_until(starts, sentence, end, target)
        stop = min(starts[last], starts[sentence] + room)
        plan.add(
            (starts[sentence], stop), (stop, stop), True, document, document, stop < starts[last]
        )
        sentence = last


def _gather_until(starts: list[int], sentence: int, end: int, wanted: int) -> int:
    """The end of the fewest sentences from `sentence` on that hold `wanted` tokens, or `end`."""
    return min(bisect_left(starts, starts[sentence] + wanted, sentence + 1, end + 1), end)


def _truncate(
    a: tuple[int, int], b: tuple[int, int], room: int, draw: _Draws
) -> tuple[tuple[int, int], tuple[int, int], bool]:
    """Cut the pair to `room` tokens: one by one from the longer side, front or back by a coin."""
    a_length, b_length = a[1] - a[0], b[1] - b[0]
    excess = a_length + b_length - room
    if excess <= 0:
        return a, b, False
    from_longer = min(abs(a_length - b_length), excess)
    rest = excess - from_longer
    cut_a = (from_longer if a_length > b_length else 0) + rest // 2
    cut_b = (from_longer if b_length >= a_length else 0) + rest - rest // 2
    front_a, front_b = draw.binomial(cut_a), draw.binomial(cut_b)
    a = (a[0] + front_a, a[1] - (cut_a - front_a))
    b = (b[0] + front_b, b[1] - (cut_b - front_b))
    return a, b, True


def _gather(text: TokenisedText, plan: _Plan, with_b: bool) -> Shard:
    """All rows of a plan at once: every token is copied once, none is looked at by Python."""
    a, b = np.array(plan.a, np.int64).reshape(-1, 2), np.array(plan.b, np.int64).reshape(-1, 2)
    a_length, b_length = a[:, 1] - a[:, 0], b[:, 1] - b[:, 0]
    lengths = a_length + b_length + (3 if with_b else 2)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.empty(int(offsets[-1]), dtype=text.ids.dtype)
    begin = offsets[:-1]
    ids[begin] = CLS_ID
    ids[begin + 1 + a_length] = SEP_ID
    _copy_ranges(text.ids, a[:, 0], a_length, ids, begin + 1)
    if with_b:
        ids[offsets[1:] - 1] = SEP_ID
        _copy_ranges(text.ids, b[:, 0], b_length, ids, begin + 2 + a_length)
    hashes = np.array([document_hash(name) for name in text.documents], dtype=np.uint64)
    return Shard(
        ids=ids,
        offsets=offsets,
        a_length=(a_length + 2).astype(np.uint16),
        is_next=np.array(plan.is_next, dtype=np.uint8),
        document_a=hashes[np.array(plan.document_a, dtype=np.int64)],
        document_b=hashes[np.array(plan.document_b, dtype=np.int64)],
    )


def _copy_ranges(
    source: NDArray[np.unsignedinteger],
    source_begin: NDArray[np.int64],
    lengths: NDArray[np.int64],
    target: NDArray[np.unsignedinteger],
    target_begin: NDArray[np.int64],
) -> None:
    """`target[t:t+n] = source[s:s+n]` for every (s, n, t), without a loop."""
    ends = np.cumsum(lengths)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    target[np.repeat(target_begin, lengths) + within] = source[
        np.repeat(source_begin, lengths) + within
    ]


class _Draws:
    """Random numbers of one shard, drawn in blocks because one at a time costs microseconds."""

    _BLOCK = 1 << 14

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._block: list[float] = []

    def uniform(self) -> float:
        if not self._block:
            self._block = self._rng.random(self._BLOCK).tolist()
        return self._block.pop()

    def integer(self, low: int, high: int) -> int:
        """Uniform over low..high, both included."""
        return low + int(self.uniform() * (high - low + 1))

    def binomial(self, trials: int) -> int:
        """Heads among `trials` fair coins."""
        return int(self._rng.binomial(trials, 0.5)) if trials else 0
