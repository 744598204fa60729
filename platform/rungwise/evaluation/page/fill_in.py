"""Fill in the blank: hide words of held-out text and list the pretrained model's guesses.

Blanks are not hand-picked: a counter-based generator orders the held-out instances and draws a
whole word from each (from segment A if there are two) that has one. A masked model reads the
instance with [MASK] for that token; a two-direction model reads the whole block, since its
prediction at a position never sees the token there.

B blanks, T sequence, V vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from rungwise.core.randomness import bits
from rungwise.evaluation.page.held_out import draw_instances, read_as_validated
from rungwise.evaluation.page.spelling import Spelling, token_text
from rungwise.instances.reader import InstanceReader
from rungwise.models.trained.capabilities import BlankLogits

TOP = 5
_INSTANCE, _WORD = 11, 12  # streams of the generator
_CONTEXT_TOKENS = 16  # minimum on either side of the blank


@dataclass(frozen=True)
class Blank:
    """A hidden word: the (padded) ids that the model reads, and the text shown around it."""

    instance: int
    position: int
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    length: int
    answer_id: int
    answer: str
    before: str
    after: str


@dataclass(frozen=True)
class FilledBlank:
    text: str
    probability: float
    right: bool


@dataclass(frozen=True)
class BlankResult:
    """A blank with the model's best guesses; `rank` of the right word counts from 1."""

    blank: Blank
    guesses: tuple[FilledBlank, ...]
    rank: int
    probability: float


def choose_blanks(
    reader: InstanceReader, tokenizer: Tokenizer, number: int, seed: int
) -> list[Blank]:
    """Choose up to `number` blanks; fewer if the text lacks whole words."""
    spelling = Spelling.of(tokenizer)
    special = reader.vocabulary.special
    borders = (special.cls, special.sep, special.end)
    blanks: list[Blank] = []
    for instance in draw_instances(seed, _INSTANCE, len(reader)):
        if len(blanks) == number:
            break
        batch = read_as_validated(reader, np.array([instance]), seed)
        row = reader.config.whole_row(batch, 0)
        ids, last = row.ids, row.end
        words = [
            position
            for position in range(1, last)
            if ids[position] not in special.ids
            and spelling.is_word(ids[position])
            and not (position + 1 < last and spelling.continues(ids[position + 1]))
        ]
        if not words:
            continue
        position = words[int(bits(seed, _WORD, instance) % np.uint64(len(words)))]
        first, stop = _context_range(ids, position, last, borders, spelling)
        before, after = (
            tokenizer.decode(part, skip_special_tokens=False).strip()
            for part in (ids[first:position], ids[position + 1 : stop])
        )
        answer_id = ids[position]
        if row.hides:
            ids[position] = reader.vocabulary.mask
        blanks.append(
            Blank(
                instance=instance,
                position=position,
                ids=tuple(ids),
                segments=tuple(row.segments),
                length=row.length,
                answer_id=answer_id,
                answer=tokenizer.decode([answer_id]).strip(),
                before=before if ids[first - 1] in borders else f"… {before}",
                after=after if stop == last or ids[stop] in borders else f"{after} …",
            )
        )
    return blanks


def fill_blanks(
    model: BlankLogits, tokenizer: Tokenizer, blanks: Sequence[Blank]
) -> list[BlankResult]:
    if not blanks:
        return []
    with torch.no_grad():
        logits_BV = model.blank_logits(
            torch.tensor([blank.ids for blank in blanks]),
            torch.tensor([blank.segments for blank in blanks]),
            torch.tensor([blank.length for blank in blanks]),
            torch.tensor([blank.position for blank in blanks]),
        )
    probability_BV = torch.softmax(logits_BV.float(), dim=-1)
    results = []
    for blank, probability_V in zip(blanks, probability_BV, strict=True):
        right = float(probability_V[blank.answer_id])
        best = torch.topk(probability_V, min(TOP, len(probability_V)))
        guesses = tuple(
            FilledBlank(token_text(tokenizer, token), value, token == blank.answer_id)
            for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        )
        rank = 1 + int((probability_V > probability_V[blank.answer_id]).sum())
        results.append(BlankResult(blank, guesses, rank, right))
    return results


def _context_range(
    ids: Sequence[int],
    position: int,
    last: int,
    borders: tuple[int | None, ...],
    spelling: Spelling,
) -> tuple[int, int]:
    """The range [first, stop) of tokens to show: one document, cut at words where possible."""
    least, most = _CONTEXT_TOKENS, 2 * _CONTEXT_TOKENS
    first, stop = position, position + 1
    while first > 1 and ids[first - 1] not in borders and position - first < most:
        if position - first >= least and not spelling.continues(ids[first]):
            break
        first -= 1
    while stop < last and ids[stop] not in borders and stop - position <= most:
        if stop - position > least and not spelling.continues(ids[stop]):
            break
        stop += 1
    return first, stop
