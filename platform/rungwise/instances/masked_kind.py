"""The base of masked pairs, masked blocks and sentence-order pairs."""

import math
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rungwise.core.errors import BlockError
from rungwise.instances.batch import MaskedBatch
from rungwise.instances.kind import ContractShare, Facts, Kind, check_shares
from rungwise.instances.masking import Masked, MaskingConfig, Vocabulary, expected_predictions, mask
from rungwise.instances.shards import PaddedRows, Shard, pad_rows
from rungwise.tokenizer.mask_units import MaskUnitsConfig
from rungwise.tokenizer.token_stage import TokensConfig
from rungwise.tokenizer.token_text import document_hash

_ROWS_AT_ONCE = 1024
_TOKENS_MASKED = 1 << 19
_TOKENS_A_SPAN = 10.0  # which share one 80/10/10 draw
_LABELS = {"is_next": "share of IsNext pairs", "in_order": "share of pairs in order"}


class MaskedKind(Kind):
    """The keys of every masked kind."""

    segments: ClassVar[int] = 2  # of each text of a row

    # tokens per row, special tokens included
    sequence_length: int = Field(default=128, ge=8, le=65_535)
    # share of the rows with a shorter, random target length
    short_rate: float = Field(default=0.1, ge=0, le=1)
    masking: MaskingConfig = MaskingConfig()  # which tokens to mask, and how
    mask_units: MaskUnitsConfig = MaskUnitsConfig()  # what counts as a word in masking

    @model_validator(mode="after")
    def _room_for_predictions(self) -> Self:
        rate = self.masking.rate
        needed = math.floor(rate * (self.sequence_length - 3))
        if needed > self.masking.max_predictions:
            raise BlockError(
                f"masking.rate {rate} of sequence_length {self.sequence_length} is "
                f"{needed} predictions, more than masking.max_predictions "
                f"{self.masking.max_predictions}",
                {"masking.max_predictions": needed + 1},
            )
        return self

    @property
    def length(self) -> int:
        return self.sequence_length

    @property
    def masked_per_row(self) -> float:
        return min(self.masking.rate * self.sequence_length, self.masking.max_predictions)

    @property
    def tokens(self) -> TokensConfig:
        if self.masking.unit == "token":
            return TokensConfig()
        return TokensConfig(units=True, mask_units=self.mask_units)

    @property
    def identity(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"mask_units"})

    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        """Check frame, masks and labels of a shard. The counts are those of `check_rows`, the sums
        of labels, `too_small_to_say` (0 or 1), and those of the masks drawn."""
        cls_id, sep_id = facts.special.require("cls", "sep")
        rows = len(shard)
        first, last = shard.offsets[:-1], shard.offsets[1:] - 1
        texts = rows
        if self.holds_several_texts:
            opens, closes = shard.ids[1:] == cls_id, shard.ids[:-1] == sep_id
            apart = int((opens != closes).sum())
            facts.check("[SEP] and [CLS] that are not neighbours", apart, "exactly", 0)
            texts = 1 + int(opens.sum())
        symbols = {cls_id: texts, sep_id: self.segments * texts}
        counts = facts.check_rows(shard, self.length, symbols)
        begin = int((shard.ids[first] == cls_id).sum())
        facts.check("instances that begin with [CLS]", begin, "exactly", rows)
        ends = shard.ids[last] == sep_id
        if "a_length" in shard.columns:
            middle = first + shard.columns["a_length"].astype(np.int64) - 1
            ends &= shard.ids[np.clip(middle, 0, len(shard.ids) - 1)] == sep_id
        what = "instances whose A and last segment end with [SEP]"
        facts.check(what, int(ends.sum()), "exactly", rows)
        counts |= self._count_masks(shard, facts)
        counts |= {
            name: int(shard.columns[name].sum()) for name in _LABELS if name in shard.columns
        }
        most = counts["most_predictions"]
        facts.check("predictions of an instance", most, "at most", self.masking.max_predictions)
        counts["too_small_to_say"] = int(bool(check_shares(facts.name, self.shares(counts))))
        return counts

    def shares(self, counts: dict[str, Any]) -> list[ContractShare]:
        """The shares that the counts of a shard, or their sums over all shards, must keep."""
        masking = self.masking
        candidates, selected = counts["candidates"], counts["selected"]
        to_mask, to_random, rows = counts["to_mask"], counts["to_random"], counts["instances"]
        a_draw = _TOKENS_A_SPAN if masking.unit == "span" else 1.0
        rate = counts["expected"] / max(candidates, 1)
        made = "share of selected made"
        return [
            ContractShare("share of tokens selected", selected, candidates, rate, 0.003, a_draw),
            ContractShare(f"{made} [MASK]", to_mask, selected, masking.mask_share, 0.01, a_draw),
            ContractShare(
                f"{made} random", to_random, selected, masking.random_share, 0.01, a_draw
            ),
            *(
                ContractShare(figure, counts[label], rows, 0.5, 0.01)
                for label, figure in _LABELS.items()
                if label in counts
            ),
        ]

    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        selected, instances = max(totals["selected"], 1), max(totals["instances"], 1)
        labels = {f"{name}_share": totals[name] / instances for name in _LABELS if name in totals}
        return {
            "selected_share": totals["selected"] / max(totals["candidates"], 1),
            "mask_share": totals["to_mask"] / selected,
            "random_share": totals["to_random"] / selected,
            "kept_share": totals["kept"] / selected,
            "most_predictions": totals["most_predictions"],
            "fill": totals["tokens"] / (instances * self.sequence_length),
            **self.count_unused_tokens(totals),
            "shards_too_small_to_say": totals["too_small_to_say"],
            **labels,
        }

    def headline(self, totals: dict[str, Any], statistics: dict[str, Any]) -> str:
        """One line: `mlm 15.0% (80.0/10.0/10.0)`, label balance, unused text, unchecked shares."""
        too_small = check_shares("all shards", self.shares(totals))
        text = (
            f"mlm {statistics['selected_share']:.1%} ({statistics['mask_share'] * 100:.1f}/"
            f"{statistics['random_share'] * 100:.1f}/{statistics['kept_share'] * 100:.1f})"
        )
        for key, name in (("is_next_share", "nsp"), ("in_order_share", "in order")):
            if key in statistics:
                text += f"  {name} {statistics[key]:.1%}"
        text += f"  {statistics['unused_share']:.2%} of the text unused"
        if too_small:
            text += f"  too few instances to check the {', the '.join(too_small)}"
        return text

    def batch(
        self, rows: PaddedRows, epochs: NDArray[np.int64], seed: int, vocabulary: Vocabulary
    ) -> MaskedBatch[NDArray[Any]]:
        """Mask the rows for these epochs (B,), or for epoch 0 if masking is static."""
        masked = self._mask(rows, epochs, seed, vocabulary)
        column = np.arange(rows.ids.shape[1])[None, :]
        real = column < rows.lengths[:, None]
        segments = np.zeros(rows.ids.shape, dtype=np.int64)
        if "a_length" in rows.columns:
            in_b = column >= rows.columns["a_length"].astype(np.int64)[:, None]
            segments = (in_b & real).astype(np.int64)
        label = rows.columns.get("is_next", rows.columns.get("in_order"))
        document = positions = None
        if self.holds_several_texts:
            opens = (rows.ids == vocabulary.special.cls) & real
            document = np.cumsum(opens, axis=1) * real
            begins = np.where(opens | (column == rows.lengths[:, None]), column, 0)
            positions = column - np.maximum.accumulate(begins, axis=1)
        return MaskedBatch(
            masked.ids,
            segments,
            rows.lengths,
            masked.positions,
            masked.targets,
            masked.weights,
            np.ones(len(rows.ids), np.int64) if label is None else label.astype(np.int64),
            document,
            positions,
        )

    def _mask(
        self, rows: PaddedRows, epochs: NDArray[np.int64], seed: int, vocabulary: Vocabulary
    ) -> Masked:
        ids, numbers = rows.ids.astype(np.int64), rows.instances
        return mask(
            ids, rows.lengths, rows.unit_starts, numbers, epochs, seed, vocabulary, self.masking
        )

    def _count_masks(self, shard: Shard, facts: Facts) -> dict[str, int]:
        """Draw the masks of epoch 0, and count what became of which tokens. Rows are numbered from
        a place of the shard's own: small shards that shared draws would share their luck too."""
        names = ("candidates", "selected", "to_mask", "to_random", "kept", "most_predictions")
        counts: dict[str, int] = dict.fromkeys(names, 0)
        expected = 0.0
        vocabulary = Vocabulary(facts.vocab_size, facts.special)
        ordinary = np.ones(facts.vocab_size, dtype=bool)
        ordinary[list(facts.special.ids)] = False
        sample = np.arange(0, len(shard), max(1, len(shard.ids) // _TOKENS_MASKED))
        first_number = document_hash(facts.name) >> 2
        for begin in range(0, len(sample), _ROWS_AT_ONCE):
            local = sample[begin : begin + _ROWS_AT_ONCE]
            rows = pad_rows(shard, local, first_number + local, self.length, vocabulary.pad)
            masked = self._mask(rows, np.zeros_like(local), facts.seed, vocabulary)
            real = masked.weights > 0
            now = np.take_along_axis(masked.ids, masked.positions, axis=1)[real]
            before = masked.targets[real]
            candidates = ordinary[rows.ids].sum(axis=1)  # padding is special
            expected += float(expected_predictions(candidates, self.masking).sum())
            counts["candidates"] += int(candidates.sum())
            counts["selected"] += int(real.sum())
            counts["to_mask"] += int((now == vocabulary.mask).sum())
            counts["to_random"] += int(((now != vocabulary.mask) & (now != before)).sum())
            counts["kept"] += int((now == before).sum())
            most = int(real.sum(axis=1).max(initial=0))
            counts["most_predictions"] = max(counts["most_predictions"], most)
        return {**counts, "expected": round(expected)}
