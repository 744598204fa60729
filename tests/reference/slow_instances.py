"""The instances again, slow and obvious: plain Python, token by token, no arrays.

Written from the papers, to be compared in distribution with the fast builders:

  next-sentence pairs, masks    Devlin et al. 2019 (arXiv:1810.04805), section 3.1 and appendix A.2
  whole words and spans         the same authors' whole-word variant; Joshi et al. 2020 (SpanBERT)
  sentence order                Lan et al. 2020 (ALBERT), section 3.1

Each function takes its random numbers from `random.Random`. What the platform states to do unlike
the papers is done here too: a document's last single sentence makes a NotNext pair that a later
pair makes up for, at most eight at a time; and B never comes from the document of A. Two more
choices are the platform's where the paper is silent: the target length is drawn for every pair, and
a first sentence that is long enough by itself still gets a second one, where there is one.

`Wrong` holds a switch for each mistake that the statistical tests must be able to see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

Tokens = list[int]
Text = Sequence[Sequence[Tokens]]  # documents of sentences of tokens

OWED_AT_MOST = 8


@dataclass(frozen=True)
class Wrong:
    """Mistakes on purpose; the defaults are right."""

    random_share: float = 0.5  # of pairs with a random B
    short_rate: float | None = None  # used instead of what is asked
    cut_only_behind: bool = False
    b_from_its_first_sentence: bool = False
    cut_in_the_middle: bool = False  # A is half of the sentences instead of a random part


RIGHT = Wrong()


class Pair(NamedTuple):
    a: Tokens
    b: Tokens
    label: int  # 1 if A and B stand in the text as they stand here, else 0


class Masked(NamedTuple):
    tokens: Tokens
    positions: list[int]
    targets: Tokens


def next_sentence_pairs(
    text: Text, sequence_length: int, short_rate: float, rng: Random, wrong: Wrong = RIGHT
) -> list[Pair]:
    """All pairs of a shard in the order of its documents."""
    room = sequence_length - 3  # [CLS] and two [SEP]
    short_rate = short_rate if wrong.short_rate is None else wrong.short_rate
    pairs: list[Pair] = []
    owed = 0
    for number, document in enumerate(text):
        at = 0
        while at < len(document):
            target = _target(room, short_rate, rng)
            gathered = [document[at]]
            while at + len(gathered) < len(document) and (
                sum(map(len, gathered)) < target or len(gathered) == 1
            ):
                gathered.append(document[at + len(gathered)])
            single = len(gathered) == 1
            if single and owed >= OWED_AT_MOST:
                break
            random_next = rng.random() < wrong.random_share
            if single and not random_next:
                random_next = True
                owed += 1
            elif not single and random_next and owed > 0:
                random_next = False
                owed -= 1
            a_count = 1 if single else rng.randint(1, len(gathered) - 1)
            if wrong.cut_in_the_middle:
                a_count = max(1, len(gathered) // 2)
            a = [token for sentence in gathered[:a_count] for token in sentence]
            if random_next:
                other = number
                while other == number:
                    other = rng.randrange(len(text))
                first = 0 if wrong.b_from_its_first_sentence else rng.randrange(len(text[other]))
                b: Tokens = []
                for sentence in text[other][first:]:
                    b.extend(sentence)
                    if len(b) >= target - len(a):
                        break
                at += a_count
            else:
                b = [token for sentence in gathered[a_count:] for token in sentence]
                at += len(gathered)
            a, b = truncate(a, b, room, rng, wrong)
            pairs.append(Pair(a, b, int(not random_next)))
    return pairs


def truncate(
    a: Tokens, b: Tokens, room: int, rng: Random, wrong: Wrong = RIGHT
) -> tuple[Tokens, Tokens]:
    """One token at a time from the longer side (B if they are equal), at either end by a coin."""
    a, b = list(a), list(b)
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5 and not wrong.cut_only_behind:
            longer.pop(0)
        else:
            longer.pop()
    return a, b


def sentence_order_pairs(
    text: Text, sequence_length: int, short_rate: float, rng: Random, swapped_share: float = 0.5
) -> list[Pair]:
    """Two segments that follow each other in one document; label 1 in order, 0 swapped.

    A document's last sentence, if it is left alone, makes no pair.
    """
    room = sequence_length - 3
    pairs: list[Pair] = []
    for document in text:
        at = 0
        while at < len(document):
            target = _target(room, short_rate, rng)
            gathered = [document[at]]
            while at + len(gathered) < len(document) and (
                sum(map(len, gathered)) < target or len(gathered) == 1
            ):
                gathered.append(document[at + len(gathered)])
            at += len(gathered)
            if len(gathered) == 1:
                break
            a_count = rng.randint(1, len(gathered) - 1)
            a = [token for sentence in gathered[:a_count] for token in sentence]
            b = [token for sentence in gathered[a_count:] for token in sentence]
            swapped = rng.random() < swapped_share
            if swapped:
                a, b = b, a
            a, b = truncate(a, b, room, rng)
            pairs.append(Pair(a, b, int(not swapped)))
    return pairs


def mask_tokens(
    tokens: Tokens,
    special: set[int],
    mask_id: int,
    ordinary: Sequence[int],
    rng: Random,
    rate: float = 0.15,
    mask_share: float = 0.8,
    random_share: float = 0.1,
    max_predictions: int = 20,
) -> Masked:
    """Choose `rate` of the tokens that are not special; hide, replace or keep each of them.

    `ordinary` are the ids that a replacement is drawn from.
    """
    candidates = [at for at, token in enumerate(tokens) if token not in special]
    wanted = _wanted([[at] for at in candidates], rate, max_predictions, rng)
    chosen = [[at] for at in sorted(rng.sample(candidates, min(wanted, len(candidates))))]
    return corrupted(tokens, chosen, mask_id, ordinary, rng, mask_share, random_share)


def mask_words(
    tokens: Tokens,
    words: Sequence[Sequence[int]],
    mask_id: int,
    ordinary: Sequence[int],
    rng: Random,
    rate: float = 0.15,
    max_predictions: int = 20,
    stop_at_the_first_too_long: bool = False,
) -> Masked:
    """Whole words in random order; one that is longer than what is still wanted is passed over.

    `words` are the positions of each word's tokens; special tokens are in none. Each token meets
    its own fate.
    """
    wanted = _wanted(words, rate, max_predictions, rng)
    positions: list[int] = []
    for word in rng.sample(words, len(words)):
        if len(positions) + len(word) <= wanted:
            positions.extend(word)
        elif stop_at_the_first_too_long:
            break
    return corrupted(tokens, [[at] for at in sorted(positions)], mask_id, ordinary, rng)


def mask_spans(
    tokens: Tokens,
    words: Sequence[Sequence[int]],
    mask_id: int,
    ordinary: Sequence[int],
    rng: Random,
    rate: float = 0.15,
    max_predictions: int = 20,
    stop_probability: float = 0.2,
    longest: int = 10,
    one_more: bool = False,
    clipped: bool = False,
    one_fate: bool = True,
) -> Masked:
    """Spans of words from random first words on; a geometric draw, at most `longest`, of words.

    A span ends early at a special token, at a word taken before, and before a word that is longer
    than what is still wanted. All its tokens meet one fate.
    """
    wanted = _wanted(words, rate, max_predictions, rng)
    taken: set[int] = set()
    spans: list[list[int]] = []
    for first in rng.sample(range(len(words)), len(words)):
        length = longest + 1
        while length > longest:
            length = 1 + one_more
            while rng.random() >= stop_probability:
                length += 1
            if clipped:
                length = min(length, longest)
        span: list[int] = []
        for number in range(first, min(first + length, len(words))):
            after_a_gap = span and words[number][0] != span[-1] + 1
            too_long = sum(map(len, spans)) + len(span) + len(words[number]) > wanted
            if number in taken or after_a_gap or too_long:
                break
            taken.add(number)
            span.extend(words[number])
        if span:
            spans.append(span)
    if not one_fate:
        spans = [[at] for span in spans for at in span]
    return corrupted(tokens, spans, mask_id, ordinary, rng)


def corrupted(
    tokens: Tokens,
    groups: list[list[int]],
    mask_id: int,
    ordinary: Sequence[int],
    rng: Random,
    mask_share: float = 0.8,
    random_share: float = 0.1,
) -> Masked:
    """A group of positions becomes the mask, or random tokens, or stays: one draw a group."""
    changed = list(tokens)
    for group in groups:
        draw = rng.random()
        for at in group:
            if draw < mask_share:
                changed[at] = mask_id
            elif draw < mask_share + random_share:
                changed[at] = rng.choice(ordinary)
    positions = sorted(at for group in groups for at in group)
    return Masked(changed, positions, [tokens[at] for at in positions])


def _target(room: int, short_rate: float, rng: Random) -> int:
    return rng.randint(2, room) if rng.random() < short_rate else room


def _wanted(words: Sequence[Sequence[int]], rate: float, max_predictions: int, rng: Random) -> int:
    """The share of all tokens, rounded by a coin so that its mean is exact; one at least."""
    share = rate * sum(map(len, words))
    return min(max(1, math.floor(share) + (rng.random() < share % 1)), max_predictions)
