"""The config, contract and batches shared by masked pairs, masked blocks and sentence-order pairs.

Shards hold unmasked ids. A batch is masked when it is read (masking.py), by a draw that is a
function of (seed, epoch, instance, position).

B batch, T sequence, M masked positions
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core.config import Config
from rungwise.instances.contract import Facts, check_rows, must, near
from rungwise.instances.masking import Masked, MaskingConfig, Vocabulary, mask
from rungwise.instances.rows import PaddedRows, padded
from rungwise.instances.shards import Shard
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.mask_units import MaskUnitsConfig

_ROWS_AT_ONCE = 1024
_TOKENS_A_SPAN = 10.0  # phrases and spans decide 80/10/10 for all their tokens together


class MaskedConfig(Config):
    """The keys of every masked kind."""

    renamed: ClassVar[Mapping[str, str]] = {"units": "mask_units"}

    sequence_length: int = Field(default=128, ge=8, le=65_535)  # special tokens included
    short_rate: float = Field(default=0.1, ge=0, le=1)  # of instances with a shorter target
    masking: MaskingConfig = MaskingConfig()
    mask_units: MaskUnitsConfig = MaskUnitsConfig()
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _room_for_predictions(self) -> MaskedConfig:
        wanted = math.floor(self.masking.rate * (self.sequence_length - 3))
        if wanted > self.masking.max_predictions:
            raise ValueError(
                f"masking.rate {self.masking.rate} of sequence_length {self.sequence_length} is "
                f"{wanted} predictions, more than masking.max_predictions "
                f"{self.masking.max_predictions}; raise max_predictions to {wanted + 1}"
            )
        return self


@dataclass(frozen=True)
class MaskedBatch:
    """Masked rows. Positions from `lengths` on are padding."""

    instances: NDArray[np.int64]  # (B,) index of each row in its split
    segments: NDArray[np.int64]  # (B, T) 0 for A, 1 for B, 0 for padding
    lengths: NDArray[np.int64]  # (B,)
    masked: Masked  # ids (B, T), positions, targets, weights (B, M)
    label: NDArray[np.int64]  # (B,) 1 if B follows A, or A and B are in order; 1 without pairs


def masked_batch(
    rows: PaddedRows,
    epochs: NDArray[np.int64],
    seed: int,
    vocabulary: Vocabulary,
    config: MaskingConfig,
) -> MaskedBatch:
    """Mask these rows for their epochs, or for epoch 0 if masks are static."""
    ids = rows.ids.astype(np.int64)
    masked = mask(
        ids, rows.lengths, rows.unit_starts, rows.instances, epochs, seed, vocabulary, config
    )
    column = np.arange(rows.ids.shape[1])[None, :]
    if "a_length" in rows.columns:
        in_b = column >= rows.columns["a_length"].astype(np.int64)[:, None]
        segments = (in_b & (column < rows.lengths[:, None])).astype(np.int64)
    else:
        segments = np.zeros(rows.ids.shape, dtype=np.int64)
    label = rows.columns.get("is_next", rows.columns.get("in_order"))
    return MaskedBatch(
        rows.instances,
        segments,
        rows.lengths,
        masked,
        np.ones(len(rows.ids), np.int64) if label is None else label.astype(np.int64),
    )


def vocabulary_of(vocab_size: int, special: SpecialIds) -> Vocabulary:
    """The vocabulary as masking needs it; DataError if it has no [MASK] or [PAD]."""
    pad_id, mask_id = special.require("pad", "mask")
    return Vocabulary(size=vocab_size, special=special.ids, mask=mask_id, pad=pad_id)


def check_masked(shard: Shard, facts: Facts, config: MaskedConfig, segments: int) -> dict[str, Any]:
    """Check the frame and the mask statistics of a shard whose rows have so many segments.

    Returns the counts of `check_rows` and `candidates`, `selected`, `to_mask`, `to_random`, `kept`,
    `most_predictions`. Raises DataError naming the figure and the bound.
    """
    special = facts.special
    cls_id, sep_id = special.require("cls", "sep")
    rows = len(shard)
    counts = check_rows(
        shard, facts, config.sequence_length, {cls_id: rows, sep_id: segments * rows}
    )
    first, last = shard.offsets[:-1], shard.offsets[1:] - 1
    begin = int((shard.ids[first] == cls_id).sum())
    must(facts.name, "instances that begin with [CLS]", begin, "exactly", rows, begin == rows)
    ends = shard.ids[last] == sep_id
    if "a_length" in shard.columns:
        middle = first + shard.columns["a_length"].astype(np.int64) - 1
        ends &= shard.ids[np.clip(middle, 0, len(shard.ids) - 1)] == sep_id
    end = int(ends.sum())
    what = "instances whose A and last segment end with [SEP]"
    must(facts.name, what, end, "exactly", rows, end == rows)
    counts |= _masking_counts(shard, facts, config)
    masking = config.masking
    per_draw = _TOKENS_A_SPAN if masking.unit in ("phrase", "span") else 1.0
    for figure, part, whole, expected, bound in (
        ("share of tokens selected", "selected", "candidates", masking.rate, 0.003),
        ("share of selected made [MASK]", "to_mask", "selected", masking.mask_share, 0.01),
        ("share of selected made random", "to_random", "selected", masking.random_share, 0.01),
    ):
        near(facts.name, figure, counts[part], counts[whole], expected, bound, per_draw)
    most, allowed = counts["most_predictions"], masking.max_predictions
    must(facts.name, "predictions of an instance", most, "at most", allowed, most <= allowed)
    return counts


def masked_statistics(totals: dict[str, Any], config: MaskedConfig) -> dict[str, Any]:
    """The shares reported for an artifact, from the counts of all its shards."""
    return {
        "selected_share": totals["selected"] / totals["candidates"],
        "mask_share": totals["to_mask"] / totals["selected"],
        "random_share": totals["to_random"] / totals["selected"],
        "kept_share": totals["kept"] / totals["selected"],
        "most_predictions": totals["most_predictions"],
        "truncated_share": totals["truncated"] / totals["instances"],
        "fill": totals["tokens"] / (totals["instances"] * config.sequence_length),
    }


def masked_headline(statistics: dict[str, Any]) -> str:
    """`mlm 15.0% (80.0/10.0/10.0)`, and the balance of labels if there are pairs."""
    text = (
        f"mlm {statistics['selected_share']:.1%} ({statistics['mask_share'] * 100:.1f}/"
        f"{statistics['random_share'] * 100:.1f}/{statistics['kept_share'] * 100:.1f})"
    )
    for key, name in (("is_next_share", "nsp"), ("in_order_share", "in order")):
        if key in statistics:
            text += f"  {name} {statistics[key]:.1%}"
    return text


def _masking_counts(shard: Shard, facts: Facts, config: MaskedConfig) -> dict[str, int]:
    counts: dict[str, int] = dict.fromkeys(
        ("candidates", "selected", "to_mask", "to_random", "kept", "most_predictions"), 0
    )
    vocabulary = vocabulary_of(facts.vocab_size, facts.special)
    special = np.zeros(facts.vocab_size, dtype=np.int64)
    special[list(facts.special.ids)] = 1
    for begin in range(0, len(shard), _ROWS_AT_ONCE):
        local = np.arange(begin, min(begin + _ROWS_AT_ONCE, len(shard)))
        rows = padded(shard, local, local, config.sequence_length, vocabulary.pad)
        masked = mask(
            rows.ids.astype(np.int64),
            rows.lengths,
            rows.unit_starts,
            local,
            np.zeros_like(local),
            facts.seed,
            vocabulary,
            config.masking,
        )
        used = masked.weights > 0
        now = np.take_along_axis(masked.ids, masked.positions, axis=1)[used]
        before = masked.targets[used]
        tokens = shard.ids[shard.offsets[begin] : shard.offsets[local[-1] + 1]]
        counts["candidates"] += len(tokens) - int(special[tokens].sum())
        counts["selected"] += int(used.sum())
        counts["to_mask"] += int((now == vocabulary.mask).sum())
        counts["to_random"] += int(((now != vocabulary.mask) & (now != before)).sum())
        counts["kept"] += int((now == before).sum())
        most = int(used.sum(axis=1).max(initial=0))
        counts["most_predictions"] = max(counts["most_predictions"], most)
    return counts
