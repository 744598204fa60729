"""One held-out instance as the model reads it: every token with its segment and masking.

It is the first one whose masking has all three outcomes ([MASK], a random token, kept), or the
first of all if the first 256 have none such.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from rungwise.evaluation.page.held_out import read_as_validated
from rungwise.evaluation.page.spelling import token_text
from rungwise.instances.kind import PieceKind, ShownRow
from rungwise.instances.reader import InstanceReader

_CANDIDATES = 256


@dataclass(frozen=True)
class Piece:
    """One position. `original` is the token to predict, None if there is none."""

    text: str
    kind: PieceKind
    segment: int
    original: str | None


@dataclass(frozen=True)
class Specimen:
    """One instance. `answer` is its pair label in words, empty without one."""

    instance: int
    pieces: tuple[Piece, ...]
    answer: str

    def count(self, kind: PieceKind) -> int:
        return sum(piece.kind == kind for piece in self.pieces)


def choose_specimen(reader: InstanceReader, tokenizer: Tokenizer, seed: int) -> Specimen:
    """The instance to show, masked as in validation."""
    count = min(_CANDIDATES, len(reader))
    batch = read_as_validated(reader, np.arange(count), seed)

    def row_at(row: int) -> ShownRow:
        return reader.config.show(batch, row, reader.vocabulary, str)

    outcomes = {"masked", "random", "kept"}
    instance = next(
        (row for row in range(count) if outcomes <= {piece.kind for piece in row_at(row).pieces}), 0
    )
    row = row_at(instance)
    pieces = (
        Piece(
            token_text(tokenizer, piece.token),
            piece.kind,
            piece.segment,
            None if piece.original is None else token_text(tokenizer, piece.original),
        )
        for piece in row.pieces
    )
    return Specimen(instance, tuple(pieces), row.answer)
