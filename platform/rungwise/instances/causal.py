"""Packed causal blocks, the instances of GPT (Radford et al. 2018, 2019), and masked blocks of
which some are read from left to right: GPT-BERT (Charpentier & Samuel 2024, arXiv:2410.24159).

B batch, T sequence
"""

import dataclasses
from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.arrays import Ints
from rungwise.core.randomness import uniform
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances.batch import CausalAndMaskedBatch, CausalBatch, MaskedBatch
from rungwise.instances.kind import Built, Facts, Kind
from rungwise.instances.masking import Vocabulary
from rungwise.instances.pairs import MaskedBlocksConfig
from rungwise.instances.shards import PaddedRows, Shard

_DRAW = 0xCA05  # separates the choice of rows from other random numbers


class CausalConfig(Kind):
    """Blocks of text in which each token is predicted from those before."""

    kind: Literal["causal"] = "causal"
    sequence_length: int = Field(default=1024, ge=2, le=1 << 20)  # tokens predicted per block

    @property
    def length(self) -> int:
        return self.sequence_length

    @property
    def width(self) -> int:
        return self.sequence_length + 1

    def make(self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int) -> Built:
        # One stream, `[END] d1 [END] d2 ... dn [END]`, cut into blocks of T + 1 tokens that overlap
        # by one: every token is predicted once, and none from another document.
        (end_id,) = special.require("end")
        begins = text.starts[text.first_sentence]  # documents + 1
        begins = begins[: planned + 1]
        tokens = int(begins[-1])
        stream = np.empty(tokens + planned + 1, dtype=text.ids.dtype)
        is_end = np.zeros(len(stream), dtype=bool)
        is_end[begins + np.arange(planned + 1)] = True
        stream[is_end] = end_id
        stream[~is_end] = text.ids[:tokens]
        block = self.sequence_length
        count = -(-(len(stream) - 1) // block)
        first = np.arange(count) * block
        lengths = np.minimum(first + block + 1, len(stream)) - first
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # Each block but the first repeats the last token of the one before it.
        ids = np.insert(stream, first[1:], stream[first[1:]])
        counts = {"documents_joined": planned, "text_tokens": tokens}
        return Built(Shard(ids, offsets), counts)

    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        (end_id,) = facts.special.require("end")
        ends = int((shard.ids == end_id).sum())
        counts = facts.check_rows(shard, self.sequence_length + 1, {end_id: ends})
        lengths = shard.lengths
        short = int((lengths != self.sequence_length + 1).sum())
        facts.check("blocks that are not full", short, "at most", facts.sections)
        last, first = shard.ids[shard.offsets[1:-1] - 1], shard.ids[shard.offsets[1:-1]]
        what = "blocks that do not begin with the last token of the one before"
        facts.check(what, int((last != first).sum()), "exactly", 0)
        framed = len(shard.ids) > 0 and shard.ids[0] == end_id and shard.ids[-1] == end_id
        facts.check("stream framed by end symbols", int(framed), "exactly", 1)
        return {
            **counts,
            "predicted": int((lengths - 1).sum()),
            "ends": ends - len(first[first == end_id]),
        }

    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        # Every token and end symbol is predicted once, except the symbol that opens a section.
        unused = totals["text_tokens"] + totals["documents_joined"] - totals["predicted"]
        return {
            "fill": totals["predicted"] / (totals["instances"] * self.sequence_length),
            "tokens_unused": unused,
            "unused_share": unused / max(1, totals["text_tokens"] + totals["documents_joined"]),
        }

    def batch(self, rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary) -> CausalBatch:
        """Split rows into inputs and targets, and derive documents and positions."""
        ids = rows.ids.astype(np.int64)
        inputs = ids[:, :-1]
        column = np.arange(inputs.shape[1])[None, :]
        opens = inputs == vocab.end
        begin = np.maximum.accumulate(np.where(opens, column, 0), axis=1)
        return CausalBatch(
            inputs,
            ids[:, 1:],
            (column < rows.lengths[:, None] - 1).astype(np.float32),
            np.cumsum(opens, axis=1),
            column - begin,
        )


class CorruptedWordsConfig(CausalConfig):
    """Blocks of text with a random word for each token."""

    kind: Literal["corrupted_words"] = "corrupted_words"  # pyright: ignore[reportIncompatibleVariableOverride]

    def batch(self, rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary) -> CausalBatch:
        """Return the inputs, with the random words as targets (B, T)."""
        batch = super().batch(rows, epochs, seed, vocab)
        ordinary = np.setdiff1d(np.arange(vocab.size), vocab.special.ids)
        place_T = np.arange(batch.ids.shape[1])
        draws_BT = uniform(seed, epochs[:, None], rows.instances[:, None], place_T)
        noise_BT = ordinary[(draws_BT * len(ordinary)).astype(np.int64)]
        return dataclasses.replace(batch, targets=noise_BT)


class CausalAndMaskedConfig(MaskedBlocksConfig):
    """Blocks of text, some masked, some read from left to right."""

    kind: Literal["causal_and_masked"] = "causal_and_masked"  # pyright: ignore[reportIncompatibleVariableOverride]
    causal_share: float = Field(default=0.5, ge=0, le=1)  # of the rows

    @property
    def masked_per_row(self) -> float:
        """The mean number of tokens predicted in a full row."""
        share = self.causal_share
        return share * self.length + (1 - share) * super().masked_per_row

    def batch(
        self, rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary
    ) -> CausalAndMaskedBatch:  # pyright: ignore[reportIncompatibleMethodOverride]
        masked = super().batch(rows, epochs, seed, vocab)
        draws_B = uniform(seed, epochs, rows.instances, _DRAW)
        return CausalAndMaskedBatch(
            masked.originals(),
            rows.lengths,
            draws_B < self.causal_share,
            _next_tokens(masked),
            masked,
        )


def _next_tokens(masked: MaskedBatch[NDArray[Any]]) -> CausalBatch[NDArray[Any]]:
    """The rows unmasked, each token with the one after it; nothing is predicted across texts."""
    assert masked.lengths is not None
    ids, T = masked.originals(), masked.ids.shape[1]
    place_BT = np.broadcast_to(np.arange(T), ids.shape)
    targets, weights = np.roll(ids, -1, axis=1), place_BT < masked.lengths[:, None] - 1
    document, positions = masked.document, masked.positions
    if document is None or positions is None:
        document, positions = np.zeros_like(ids), place_BT
    else:
        weights = weights & (document == np.roll(document, -1, axis=1))
    return CausalBatch(ids, targets, weights.astype(np.float32), document, positions)
