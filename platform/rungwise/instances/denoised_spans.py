"""Texts with spans taken out, and the spans to write after them: the rows of T5 (Raffel et al.
2020, arXiv:1910.10683) in the form of one row, as tasks of generation have it.

    text    [CLS] a b c d e f g [SEP]                 b, c and f are masked
    row     [CLS] a [MASK] d e [MASK] g [SEP] | [MASK] b c [MASK] f [SEP]

The first text is read both ways; the second is written from left to right, its end too. Masking
selects the tokens; neighbours are one span, and a single [MASK] stands for each in both texts, as
in the infilling of BART (Lewis et al. 2020, arXiv:1910.13461): their order says which is which.
Every selected token is taken out, so `mask_share` and `random_share` change nothing.

A row of n tokens with s spans is read as n + 2 s, so blocks leave room for twice `max_predictions`.

B batch, T sequence, M tokens that a row writes
"""

from typing import Any, Literal, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core.errors import BlockError
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances.batch import MaskedBatch
from rungwise.instances.blocks import MaskedBlocksConfig
from rungwise.instances.kind import Built, ColouredPiece, ShownRow, Spell, WholeRow
from rungwise.instances.masking import MaskingConfig, Vocabulary
from rungwise.instances.shards import PaddedRows

_SHORTEST = 8  # tokens of a block


class DenoisedSpansConfig(MaskedBlocksConfig):
    """Blocks of text with spans taken out, to be written after them."""

    kind: Literal["denoised_spans"] = "denoised_spans"  # pyright: ignore[reportIncompatibleVariableOverride]
    packed: Literal[False] = False  # pyright: ignore[reportIncompatibleVariableOverride]
    # which tokens to take out; its other shares have no effect
    masking: MaskingConfig = Field(default=MaskingConfig(unit="span"))

    @model_validator(mode="after")
    def _room_for_spans(self) -> Self:
        if self._block < _SHORTEST:
            raise BlockError(
                f"sequence_length {self.sequence_length} must be at least {_SHORTEST} more than "
                f"twice masking.max_predictions {self.masking.max_predictions}, which it leaves "
                "room for",
                {"sequence_length": _SHORTEST + 2 * self.masking.max_predictions},
            )
        return self

    @property
    def _block(self) -> int:
        """The most tokens of a block as it is stored."""
        return self.sequence_length - 2 * self.masking.max_predictions

    def build(
        self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int | None = None
    ) -> Built:
        shorter = self.model_copy(update={"sequence_length": self._block})
        return MaskedBlocksConfig.build(shorter, text, special, rng, planned)

    def batch(
        self, rows: PaddedRows, epochs: NDArray[np.int64], seed: int, vocabulary: Vocabulary
    ) -> MaskedBatch[NDArray[Any]]:
        """Take the spans out. `masked_positions` are the places from which the tokens of the second
        text, `masked_ids`, are predicted: each is the one before."""
        masked = super().batch(rows, epochs, seed, vocabulary)
        ids, hidden = masked.originals(), np.zeros(masked.ids.shape, dtype=bool)
        row, column = np.nonzero(masked.masked_weights)
        hidden[row, masked.masked_positions[row, column]] = True
        (end,) = vocabulary.special.require("sep")
        texts = [
            _take_out(ids[number, :length], hidden[number, :length], vocabulary.mask, end)
            for number, length in enumerate(rows.lengths.tolist())
        ]
        first, second = (
            np.array([len(text) for text in part]) for part in zip(*texts, strict=True)
        )
        lengths, most = first + second - 1, self.masking.max_predictions  # the end is not read
        shape = (len(texts), self.length)
        ids_BT, segments = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        places, targets = (np.zeros((len(texts), 2 * most + 1), np.int64) for _ in range(2))
        for number, (source, target) in enumerate(texts):
            ids_BT[number, : lengths[number]] = np.append(source, target[:-1])
            segments[number, first[number] : lengths[number]] = 1
            places[number, : len(target)] = first[number] - 1 + np.arange(len(target))
            targets[number, : len(target)] = target
        weights = (np.arange(places.shape[1]) < second[:, None]).astype(np.float32)
        label = np.ones(len(texts), np.int64)
        return MaskedBatch(ids_BT, segments, lengths, places, targets, weights, label)

    def random_batch(self, B: int, vocab_size: int) -> MaskedBatch[Any]:
        import dataclasses

        import torch

        ids_BT = torch.randint(vocab_size, (B, self.length))
        M = self.masking.max_predictions
        places_BM = torch.arange(self.length - M, self.length).expand(B, M)
        whole = MaskedBatch.to_predict(ids_BT, None, None, places_BM - 1)
        segments_BT = (torch.arange(self.length) >= self.length - M).long().expand(B, -1)
        weights_BM = torch.ones(B, M)
        return dataclasses.replace(
            whole,
            segments=segments_BT,
            masked_ids=ids_BT.gather(1, places_BM),
            masked_weights=weights_BM,
        )

    def show(self, batch: Any, row: int, vocabulary: Vocabulary, spell: Spell) -> ShownRow:
        length, (end,) = int(batch.lengths[row]), vocabulary.special.require("sep")
        tokens = [*batch.ids[row, :length].tolist(), end]
        first = int((batch.segments[row, :length] == 0).sum())
        pieces = [
            ColouredPiece(token, "opens" if place == first else "plain", int(place >= first))
            for place, token in enumerate(tokens)
        ]
        return ShownRow(pieces, f"{first} tokens to read, {len(tokens) - first} to write")

    def whole_row(self, batch: Any, row: int) -> WholeRow:
        raise AssertionError(f"no model fills in blanks of {self.kind}")


def _take_out(
    ids: NDArray[np.int64], hidden: NDArray[np.bool_], mask: int, end: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The text without its spans, and the spans; [MASK] stands for, and before, each."""
    begins = hidden & ~np.append(False, hidden[:-1])
    source = np.where(begins, mask, ids)[~hidden | begins]
    target = np.insert(ids[hidden], np.flatnonzero(begins[hidden]), mask)
    return source, np.append(target, end)
