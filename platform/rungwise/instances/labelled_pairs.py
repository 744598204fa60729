"""Labelled pairs of texts, for sentence encoders that learn from a task: InferSent (Conneau et al.
2017, arXiv:1705.02364) and its kin. They are the examples of a task; a column says which label a
pair has.

B batch
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rungwise.core.errors import DataError
from rungwise.instances.batch import ArrayT
from rungwise.instances.contract import Facts, must
from rungwise.instances.kind import Built, ShownRow
from rungwise.instances.masking import Vocabulary
from rungwise.instances.rows import PaddedRows
from rungwise.instances.shards import Shard
from rungwise.instances.text_pairs import TextPairs, TextPairsKind, pair_pieces
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.text import TokenisedText

if TYPE_CHECKING:  # building shards needs no PyTorch
    from torch import Tensor


@dataclass(frozen=True)
class LabelledPairs(TextPairs[ArrayT]):
    """Pairs of texts, each text by itself, and what is to be told of them."""

    label: ArrayT  # (B,) int64


class LabelledPairsConfig(TextPairsKind):
    """Pairs of texts of a task, of which the label is predicted."""

    kind: Literal["labelled_pairs"] = "labelled_pairs"

    def build(
        self,
        text: TokenisedText,
        special: SpecialIds,
        rng: np.random.Generator,
        planned: int | None = None,
    ) -> Built:
        if text.labels is None:
            raise DataError(
                "labelled_pairs need a task with one label for a pair of texts, found one with a "
                "text to write; name another one in pretraining_task, or take aligned_lines"
            )
        built = super().build(text, special, rng, planned)
        columns = {**built.shard.columns, "label": text.labels[: len(built.shard)]}
        return replace(built, shard=replace(built.shard, columns=columns))

    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        counts = super().check(shard, facts)
        label = shard.columns["label"].astype(np.int64)
        largest = int(label.max(initial=0))
        must(facts.name, "largest label", largest, "below", facts.labels, largest < facts.labels)
        pairs_per_label = np.bincount(label, minlength=facts.labels).tolist()
        return counts | {f"label_{number}": count for number, count in enumerate(pairs_per_label)}

    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        per_label = {key: count for key, count in totals.items() if key.startswith("label_")}
        return {
            "labels": len(per_label),
            **per_label,
            "largest_label_share": max(per_label.values()) / max(totals["instances"], 1),
            **super().statistics(totals),
        }

    def headline(self, totals: dict[str, Any], statistics: dict[str, Any]) -> str:
        return (
            f"{statistics['labels']} labels, {statistics['largest_label_share']:.1%} have the most "
            f"frequent  {super().headline(totals, statistics)}"
        )

    def batch(
        self, rows: PaddedRows, epochs: NDArray[np.int64], seed: int, vocabulary: Vocabulary
    ) -> LabelledPairs[NDArray[Any]]:
        pairs = super().batch(rows, epochs, seed, vocabulary)
        return LabelledPairs(pairs.ids, pairs.lengths, rows.columns["label"].astype(np.int64))

    def random_batch(self, B: int, vocab_size: int) -> LabelledPairs[Tensor]:
        import torch

        pairs = super().random_batch(B, vocab_size)
        return LabelledPairs(pairs.ids, pairs.lengths, torch.arange(B) % 2)

    def show(
        self, batch: Any, row: int, vocabulary: Vocabulary, spell: Callable[[int], str]
    ) -> ShownRow:
        first, second = batch.lengths[row].tolist()
        label = vocabulary.labels[int(batch.label[row])]
        return ShownRow(
            pair_pieces(batch, row), f"label: {label}; {first} and {second} tokens", label
        )
