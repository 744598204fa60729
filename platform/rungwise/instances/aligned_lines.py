"""Aligned lines: a text and the one to write for it, such as a sentence and its translation (McCann
et al. 2017, arXiv:1708.00107). They are the examples of a task of generation.

B batch
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from rungwise.core.errors import DataError
from rungwise.instances.kind import Built, ShownRow
from rungwise.instances.masking import Vocabulary
from rungwise.instances.text_pairs import TextPairsKind, pair_pieces
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.text import TokenisedText


class AlignedLinesConfig(TextPairsKind):
    """Pairs of a text and the one to write for it, of a task."""

    kind: Literal["aligned_lines"] = "aligned_lines"

    def build(
        self,
        text: TokenisedText,
        special: SpecialIds,
        rng: np.random.Generator,
        planned: int | None = None,
    ) -> Built:
        if text.labels is not None:
            raise DataError(
                "aligned_lines need a task with a text to write for each text, found one with a "
                "label for each pair; name another one in pretraining_task, or take labelled_pairs"
            )
        return super().build(text, special, rng, planned)

    def show(
        self, batch: Any, row: int, vocabulary: Vocabulary, spell: Callable[[int], str]
    ) -> ShownRow:
        first, second = batch.lengths[row].tolist()
        return ShownRow(pair_pieces(batch, row), f"{first} tokens, {second} to write for them")
