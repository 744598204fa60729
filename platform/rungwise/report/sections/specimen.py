"""One held-out instance as the model reads it: every token with its segment and masking.

It is the first one whose masking has all three outcomes ([MASK], a random token, kept), or the
first of all if the first 256 have none such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from tokenizers import Tokenizer

from rungwise.evaluation.page.held_out import original_ids, read_masked
from rungwise.evaluation.page.spelling import token_text
from rungwise.instances.masked_batch import MaskedBatch, MaskedConfig
from rungwise.instances.pairs import MaskedPairsConfig
from rungwise.instances.reader import MaskedReader
from rungwise.instances.sentence_order import SentenceOrderConfig

Kind = Literal["special", "plain", "masked", "random", "kept"]
_CANDIDATES = 256


@dataclass(frozen=True)
class Piece:
    """One position. `original` is the token to predict, None if there is none."""

    text: str
    kind: Kind
    segment: int
    original: str | None


@dataclass(frozen=True)
class Specimen:
    """One instance. `answer` is its pair label in words, empty without one."""

    instance: int
    pieces: tuple[Piece, ...]
    answer: str

    def count(self, kind: Kind) -> int:
        return sum(piece.kind == kind for piece in self.pieces)


def choose_specimen(reader: MaskedReader, tokenizer: Tokenizer, seed: int) -> Specimen:
    """The instance to show, masked as in validation."""
    count = min(_CANDIDATES, len(reader))
    batch = read_masked(reader, np.arange(count), seed)
    before = original_ids(batch)
    row = np.arange(count)[:, None]
    used = batch.masked.weights > 0
    now = batch.masked.ids[row, batch.masked.positions]
    mask_id = reader.vocabulary.mask
    outcomes = [
        (used & (now == mask_id)).any(axis=1),
        (used & (now != mask_id) & (now != batch.masked.targets)).any(axis=1),
        (used & (now == batch.masked.targets)).any(axis=1),
    ]
    place = int(np.argmax(np.logical_and.reduce(outcomes)))
    return Specimen(
        instance=place,
        pieces=tuple(_pieces(reader, batch, before, place, tokenizer)),
        answer=_answer(reader.config, bool(batch.label[place])),
    )


def _answer(config: MaskedConfig, label: bool) -> str:
    match config:
        case MaskedPairsConfig():
            return "B follows A in its document" if label else "B is from another document"
        case SentenceOrderConfig():
            return "A and B are in order" if label else "A and B are swapped"
        case _:
            return ""


def _pieces(
    reader: MaskedReader, batch: MaskedBatch, before: np.ndarray, row: int, tokenizer: Tokenizer
) -> list[Piece]:
    predicted = set(batch.masked.positions[row][batch.masked.weights[row] > 0].tolist())
    pieces = []
    for position in range(int(batch.lengths[row])):
        now, was = int(batch.masked.ids[row, position]), int(before[row, position])
        original = None
        kind: Kind = "special" if was in reader.vocabulary.special else "plain"
        if position in predicted:
            original = token_text(tokenizer, was)
            kind = "masked" if now == reader.vocabulary.mask else "kept" if now == was else "random"
        text = token_text(tokenizer, now)
        pieces.append(Piece(text, kind, int(batch.segments[row, position]), original))
    return pieces
