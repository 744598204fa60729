"""Packed blocks in which each token has a random word beside it, for models that tell the text from
its corruption (Collobert & Weston 2008, "A unified architecture for natural language processing").

Blocks are those of `causal`. Words are drawn uniformly from the vocabulary without its special
tokens when a row is read, as a function of seed, epoch, instance and position.

B batch, T sequence
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rungwise.core.randomness import uniform
from rungwise.instances.causal import CausalConfig
from rungwise.instances.causal_batch import CausalBatch
from rungwise.instances.kind import ShownRow
from rungwise.instances.masking import Vocabulary
from rungwise.instances.rows import PaddedRows


class CorruptedWordsConfig(CausalConfig):
    """Blocks of text with a random word for each token."""

    kind: Literal["corrupted_words"] = "corrupted_words"  # pyright: ignore[reportIncompatibleVariableOverride]

    def batch(
        self, rows: PaddedRows, epochs: NDArray[np.int64], seed: int, vocabulary: Vocabulary
    ) -> CausalBatch[NDArray[Any]]:
        """Return the inputs, with the random words as targets (B, T)."""
        batch = super().batch(rows, epochs, seed, vocabulary)
        ordinary = np.setdiff1d(np.arange(vocabulary.size), vocabulary.special.ids)
        place_T = np.arange(batch.ids.shape[1])
        draws_BT = uniform(seed, epochs[:, None], rows.instances[:, None], place_T)
        noise_BT = ordinary[(draws_BT * len(ordinary)).astype(np.int64)]
        return dataclasses.replace(batch, targets=noise_BT)

    def show(
        self, batch: Any, row: int, vocabulary: Vocabulary, spell: Callable[[int], str]
    ) -> ShownRow:
        row_shown = super().show(batch, row, vocabulary, spell)
        length = int(batch.weights[row].sum())
        first = " ".join(spell(int(token)) for token in batch.targets[row, :3])
        note = f"{length} tokens, each beside a random word: {first} ..."
        return dataclasses.replace(row_shown, note=note)
