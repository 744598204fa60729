"""Masked blocks `[CLS] A [SEP]`, for MLM without pairs.

A holds whole sentences of one document up to the sequence length (DOC-SENTENCES of Liu et al. 2019,
arXiv:1907.11692). A sentence longer than that fills blocks of its own.

With `packed`, a row continues with the next document (FULL-SENTENCES of the same paper),
`[CLS] A [SEP] [CLS] B [SEP]`, until a sentence does not fit. Unlike in the paper, attention stays
within each text and positions restart, so the loss equals that of the same texts in padded rows.
Less than one sentence per row is padding.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.random import Generator

from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances import plan
from rungwise.instances.kind import Built
from rungwise.instances.masked_kind import MaskedKind
from rungwise.instances.masking import Vocabulary


class MaskedBlocksConfig(MaskedKind):
    """Blocks of text, masked."""

    kind: Literal["masked_blocks"] = "masked_blocks"
    packed: bool = False  # rows hold the texts of several documents, and short_rate shortens none

    @property
    def holds_several_texts(self) -> bool:
        return self.packed

    def build(
        self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int | None = None
    ) -> Built:
        room = self.sequence_length - 2
        short_rate = 0.0 if self.packed else self.short_rate
        pieces = plan.in_rows(text, room, short_rate, rng, planned)
        begin = np.arange(len(pieces.document))
        if self.packed:
            last = plan.full_rows(pieces, self.sequence_length, frame_size=2)
        else:
            last = pieces.gathered(begin, pieces.end, plan.targets(pieces, room, short_rate, rng))
        begin = plan.chain(last)
        # A text begins at each row; in packed rows, also at each document.
        opens = np.union1d(begin, np.flatnonzero(np.diff(pieces.document, prepend=-1)))
        texts = opens if self.packed else begin
        spans = pieces.span(texts, np.append(texts[1:], len(last)))
        counts = plan.tokens_unused(pieces, [spans], allowed=0)
        columns = {"document": text.documents[pieces.document[begin]]}
        framed = plan.frame_rows(text, [spans], special, columns)
        rows = np.append(np.searchsorted(texts, begin), len(texts))
        return Built(replace(framed, offsets=framed.offsets[rows]), counts)

    @property
    def segments(self) -> int | None:
        return None if self.packed else 1

    def opens_text(self, vocabulary: Vocabulary) -> int | None:
        return vocabulary.special.cls if self.packed else None
