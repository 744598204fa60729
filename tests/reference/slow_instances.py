"""The instances again, slow and obvious: plain Python, token by token, no arrays.

Written from the papers, to be compared in distribution with the fast builders:

  next-sentence pairs   Devlin et al. 2019 (arXiv:1810.04805), section 3.1 and appendix A.2
  sentence order        Lan et al. 2020 (ALBERT), section 3.1

Each function takes its random numbers from `random.Random`. What the platform states to do unlike
the papers is done here too: a sentence longer than half a row is cut into pieces that act as
sentences; a pair ends before the sentence that would overshoot, and so does a random B, which is
drawn again where its first sentence is too long; a document's last single sentence makes a NotNext
pair that a later pair makes up for, or is split in two if too many are owed; and B never comes from
the document of A. Two more choices are the platform's where the paper is silent: the target length
is drawn for every pair, and a first sentence that is long enough by itself still gets a second one,
where there is one.

`Wrong` holds a switch for each mistake that the statistical tests must be able to see.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

Tokens = list[int]
Text = Sequence[Sequence[Tokens]]  # documents of sentences of tokens

OWED_AT_MOST = 8
PAIRS_A_DEBT = 32
TIMES_DRAWN = 8


@dataclass(frozen=True)
class Wrong:
    """Mistakes on purpose; the defaults are right."""

    random_share: float = 0.5  # of pairs with a random B
    short_rate: float | None = None  # used instead of what is asked
    even_pieces: bool = False  # pieces of a long sentence are as long as may be
    b_fills_the_row: bool = False  # a random B is cut at the end of the row
    b_from_its_first_sentence: bool = False
    cut_in_the_middle: bool = False  # A is half of the sentences instead of a random part


RIGHT = Wrong()


class Pair(NamedTuple):
    a: Tokens
    b: Tokens
    label: int  # 1 if A and B stand in the text as they stand here, else 0


def next_sentence_pairs(
    text: Text, sequence_length: int, short_rate: float, rng: Random, wrong: Wrong = RIGHT
) -> list[Pair]:
    """All pairs of a shard in the order of its documents."""
    room = sequence_length - 3  # [CLS] and two [SEP]
    short_rate = short_rate if wrong.short_rate is None else wrong.short_rate
    documents = [pieces_of(document, room, rng, wrong) for document in text]
    pairs: list[Pair] = []
    owed = 0
    for number, document in enumerate(documents):
        at = 0
        while at < len(document):
            target = _target(room, short_rate, rng)
            gathered = _gathered(document[at:], target, 2)
            single = len(gathered) == 1
            random_next = rng.random() < wrong.random_share
            a_count = 1 if single else rng.randint(1, len(gathered) - 1)
            if wrong.cut_in_the_middle:
                a_count = max(1, len(gathered) // 2)
            if single and not random_next:
                if len(gathered[0]) > 1 and owed >= min(
                    OWED_AT_MOST, 1 + (len(pairs) + 1) // PAIRS_A_DEBT
                ):
                    at += 1
                    middle = rng.randint(1, len(gathered[0]) - 1)
                    pairs.append(Pair(gathered[0][:middle], gathered[0][middle:], 1))
                    continue
                random_next = True
                owed += 1
            elif not single and random_next and owed > 0:
                random_next = False
                owed -= 1
            a, own_b = _joined(gathered[:a_count]), _joined(gathered[a_count:])
            if not random_next:
                at += len(gathered)
                pairs.append(Pair(a, own_b, 1))
                continue
            at += a_count
            wanted = max(target - len(a), len(own_b))
            limit = room - len(a) if single else wanted
            other, first = number, 0
            for _ in range(TIMES_DRAWN):
                other = number
                while other == number:
                    other = rng.randrange(len(text))
                first = rng.randrange(len(documents[other]))
                if wrong.b_from_its_first_sentence:
                    first = 0
                if len(documents[other][first]) <= limit:
                    break
            if wrong.b_fills_the_row:
                b = _joined(documents[other][first:])
            else:
                b = _joined(_gathered(documents[other][first:], wanted, 1))
            pairs.append(Pair(a, b[: room - len(a)], 0))
    return pairs


def pieces_of(
    document: Sequence[Tokens], room: int, rng: Random, wrong: Wrong = RIGHT
) -> list[Tokens]:
    """The sentences of a document, those longer than half of `room` cut at random."""
    half = room // 2
    pieces: list[Tokens] = []
    for sentence in document:
        if len(sentence) <= half:
            pieces.append(list(sentence))
            continue
        most = half if len(sentence) <= room else max(half // 2, 1)
        rest = list(sentence)
        while rest:
            size = most if wrong.even_pieces else rng.randint((most + 1) // 2, most)
            pieces.append(rest[:size])
            rest = rest[size:]
    return pieces


def _gathered(pieces: Sequence[Tokens], wanted: int, least: int) -> list[Tokens]:
    """At least `least` pieces, if there are so many, and more that hold `wanted` or less."""
    gathered: list[Tokens] = []
    for piece in pieces:
        if len(gathered) >= least and sum(map(len, gathered)) + len(piece) > wanted:
            break
        gathered.append(piece)
    return gathered


def _joined(pieces: Sequence[Tokens]) -> Tokens:
    return [token for piece in pieces for token in piece]


def sentence_order_pairs(
    text: Text, sequence_length: int, short_rate: float, rng: Random, swapped_share: float = 0.5
) -> list[Pair]:
    """Two segments that follow each other in one document; label 1 in order, 0 swapped.

    A pair that leaves a lone piece behind gives it its own last one, or takes it in; what is lone
    all the same is split in the middle.
    """
    room = sequence_length - 3
    pairs: list[Pair] = []
    for document in text:
        pieces = pieces_of(document, room, rng)
        while pieces:
            gathered = _gathered(pieces, _target(room, short_rate, rng), 2)
            if len(gathered) == len(pieces) - 1:
                if len(gathered) > 2:
                    gathered.pop()
                elif len(_joined(pieces)) <= room:
                    gathered = pieces
            pieces = pieces[len(gathered) :]
            if len(gathered) == 1:
                (piece,) = gathered
                if len(piece) == 1:
                    continue
                gathered = [piece[: len(piece) // 2], piece[len(piece) // 2 :]]
            a_count = rng.randint(1, len(gathered) - 1)
            a, b = _joined(gathered[:a_count]), _joined(gathered[a_count:])
            swapped = rng.random() < swapped_share
            pairs.append(Pair(*((b, a) if swapped else (a, b)), int(not swapped)))
    return pairs


def _target(room: int, short_rate: float, rng: Random) -> int:
    return rng.randint(2, room) if rng.random() < short_rate else room
