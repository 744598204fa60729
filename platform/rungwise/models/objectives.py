"""Objectives of pretraining: `(model, batch) -> LossSum(total, count, ...)`, one row a part.

    counts = objective.counts(batch)                 from the batch alone, before any forward
    counts = sum over micro-batches and workers      one small all-reduce
    for micro_batch in batch: objective(model, micro_batch).loss(counts).backward()
    gradients = sum over workers                     a sum, NOT the mean that DDP takes

A mean of means depends on how a batch was split, because micro-batches hold different numbers of
masked tokens. So a loss stays a sum and a count until the last all-reduce. MLM counts tokens and
NSP sentence pairs, hence each part has its own sum and count, and the joint loss of BERT (Devlin et
al. 2019, arXiv:1810.04805) is `sum_mlm / count_mlm + sum_nsp / count_nsp` over the GLOBAL batch.

google-research/bert divides by `sum(weights) + 1e-5` to survive a batch without a masked token.
That makes the loss a little too small, by an amount that depends on the split. Here the division is
by the exact global count, and a part with nothing in it adds exactly 0.

    kind            parts      model      batch              predicts
    mlm_nsp         mlm, nsp   bert       PretrainingBatch   masked tokens; is B next
    mlm             mlm        bert       PretrainingBatch   masked tokens ("No NSP")
    sentence_order  mlm, sop   bert       PretrainingBatch   masked tokens; are A and B in order
    causal          lm         gpt        CausalBatch        the next token, from the left
    left_to_right   lm         bert       CausalBatch        the same ("LTR & No NSP")
    bidirectional   bidirectional  bidirectional  CausalBatch  each token, from left and right

Sentence order is ALBERT's in place of NSP (Lan et al. 2020, arXiv:1909.11942, section 3.1).

Shapes: B batch, T sequence, V vocabulary, M masked positions, P parts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.config import Config
from rungwise.models.config import PAIR_OBJECTIVES, ObjectiveKind
from rungwise.models.cross_entropy import at_least_float32, weighted_sums


@dataclass(frozen=True)
class _Tensors:
    """Tensors of one batch on one device; None stays None."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The batch on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The batch in page-locked memory, from where copies to a GPU are asynchronous."""
        return self._map(torch.Tensor.pin_memory)

    def rows(self, start: int, stop: int) -> Self:
        """The micro-batch of the rows [start, stop); views, nothing is copied."""
        return self._map(lambda tensor: tensor[start:stop])

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        tensors = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(
            self,
            **{name: function(value) for name, value in tensors.items() if value is not None},
        )


@dataclass(frozen=True)
class PretrainingBatch(_Tensors):
    """What one forward pass of BERT reads.

    `lengths` is None where every row is full. The reader knows that on the host; finding it out
    from a tensor on an accelerator would stall each step.
    """

    ids: Tensor  # (B, T) int64, masked already
    segments: Tensor  # (B, T) int64, 0 or 1
    lengths: Tensor | None  # (B,) int64, positions from there on are padding; None: none are
    masked_positions: Tensor  # (B, M) int64, filled up with 0
    masked_ids: Tensor  # (B, M) int64, the original tokens, filled up with 0
    masked_weights: Tensor  # (B, M) float32, 1 for a masked position, 0 for the filling
    label: Tensor  # (B,) int64, 1 IsNext and 0 NotNext; or 1 in order and 0 swapped


@dataclass(frozen=True)
class CausalBatch(_Tensors):
    """What one forward pass reads of packed blocks: of a stream, `ids` and what follows each.

    `document` and `positions` are None where no row holds a boundary, which keeps the flash kernel
    and is known on the host. Padding is at the end of a row.
    """

    ids: Tensor  # (B, T) int64
    targets: Tensor  # (B, T) int64, targets[t] is the token that follows ids[t]
    weights: Tensor  # (B, T) float32, 1 for a real target, 0 at padding
    document: Tensor | None  # (B, T) int64, tokens of one document share a number in their row
    positions: Tensor | None  # (B, T) int64, from the beginning of the document, or of the block
    # Of models that carry a state from step to step; None for others.
    lanes: Tensor | None = None  # (B,) int64, numbers of the rows' lanes on this worker
    continues: Tensor | None = None  # (B,) bool, False where a lane begins anew
    state: Tensor | None = None  # (B, ...) float32, what the rows begin with (training/lanes.py)


class CarriesState(Protocol):
    """A model that reads a text block by block; it goes on where the block before has ended.

    S stands for `state_shape`.
    """

    state_shape: tuple[int, ...]  # of one row; zeros where a text begins

    def __call__(
        self, ids_BT: Tensor, targets_BT: Tensor, weights_BT: Tensor, state_BS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The sums of token_sums (cross_entropy.py), and the state (B, S) after the last token."""
        ...


Batch = PretrainingBatch | CausalBatch
BatchT = TypeVar("BatchT", PretrainingBatch, CausalBatch, contravariant=True)


@dataclass(frozen=True)
class LossSum:
    """For each part, the sum of losses, the number of things summed, and how many were right.

    `total` carries the graph. Adding two gives that of both batches together.
    """

    total: Tensor  # (P,) nats
    count: Tensor  # (P,)
    correct: Tensor  # (P,)
    parts: tuple[str, ...]
    state: Tensor | None = None  # (B, ...) after the last token, of models that carry one

    def loss(self, global_count: Tensor | None = None) -> Tensor:
        """The scalar to call `backward` on: this batch's share of the loss of the global batch.

        `global_count` is `counts` summed over all micro-batches and workers; None where this batch
        is all there is. Shares sum to the loss, and their gradients to its gradient.
        """
        count = self.count if global_count is None else global_count
        # Weights are 0 or 1: a part's count is at least 1, or its total is 0.
        return (self.total / count.clamp(min=1)).sum()

    def __add__(self, other: Self) -> Self:
        assert self.parts == other.parts, "only losses of one objective can be added"
        return dataclasses.replace(
            self,
            total=self.total + other.total,
            count=self.count + other.count,
            correct=self.correct + other.correct,
            state=None,
        )

    def packed(self) -> Tensor:
        """Totals, counts and corrects as (3, P) without the graph: one all-reduce, or one copy.

        In float64, since float32 stops counting at 2^24, fewer tokens than one evaluation has.
        """
        return torch.stack((self.total.detach(), self.count, self.correct)).double()

    @classmethod
    def unpacked(cls, packed_3P: Tensor, parts: tuple[str, ...]) -> Self:
        """The inverse of `packed`, for metrics."""
        total, count, correct = packed_3P.unbind(0)
        return cls(total, count, correct, parts)

    def metrics(self) -> dict[str, float]:
        """`loss`, and each part's loss and accuracy. Waits for the device: call it when logging."""
        total, count, correct = self.packed().tolist()
        values = {"loss": 0.0}
        for index, part in enumerate(self.parts):
            number = max(count[index], 1.0)
            values[f"{part}_loss"] = total[index] / number
            values[f"{part}_accuracy"] = correct[index] / number
            values["loss"] += values[f"{part}_loss"]
        return values


class Objective(Protocol[BatchT]):
    """What the loop trains on; see the head of this file.

    The first part is the one over tokens: the exponential of its loss is a perplexity.
    """

    parts: tuple[str, ...]

    def counts(self, batch: BatchT) -> Tensor:
        """How many losses each part of this batch sums, (P,), from the batch alone."""
        ...

    def __call__(self, model: nn.Module, batch: BatchT) -> LossSum:
        """The sums over this batch; one forward pass."""
        ...

    def expected_initial_losses(self, vocab_size: int) -> dict[str, float]:
        """What each part is near before the first step, when every class is about as likely."""
        ...


class ObjectiveConfig(Config):
    """What is predicted; see the head of this file. `mlm_nsp` is BERT's."""

    kind: ObjectiveKind = "mlm_nsp"

    @property
    def masks(self) -> bool:
        """Whether it reads a PretrainingBatch; the others read a CausalBatch."""
        return self.kind in ("mlm_nsp", "mlm", "sentence_order")

    @property
    def next_sentence(self) -> bool:
        """Whether it reads sentence pairs and trains BERT's NSP head."""
        return self.kind in PAIR_OBJECTIVES


def build_objective(config: ObjectiveConfig) -> Objective[Any]:
    """The objective that the config names."""
    match config.kind:
        case "mlm_nsp":
            return MaskedLanguageModelAndPairs("nsp")
        case "mlm":
            return MaskedLanguageModel()
        case "sentence_order":
            return MaskedLanguageModelAndPairs("sop")
        case "causal" | "left_to_right":
            return EveryToken("lm")
        case "bidirectional":
            return EveryToken("bidirectional")


class MaskedLanguageModel:
    """Cross entropy of the original token at each masked position."""

    parts: tuple[str, ...] = ("mlm",)

    def counts(self, batch: PretrainingBatch) -> Tensor:
        return batch.masked_weights.sum()[None]  # () -> (1,)

    def __call__(self, model: nn.Module, batch: PretrainingBatch) -> LossSum:
        logits = model(batch.ids, batch.segments, batch.lengths, batch.masked_positions)
        total, correct = _mlm_sums(logits.mlm, batch)
        return LossSum(total[None], self.counts(batch), correct[None], self.parts)

    def expected_initial_losses(self, vocab_size: int) -> dict[str, float]:
        return {"mlm": math.log(vocab_size)}


class MaskedLanguageModelAndPairs:
    """BERT's two losses: masked tokens, and one of two classes of the sentence pair.

    The class is whether the second segment follows the first (`nsp`) or whether the two are in
    order (`sop`); the batch says which.
    """

    def __init__(self, pair: Literal["nsp", "sop"]) -> None:
        self.pair = pair
        self.parts: tuple[str, ...] = ("mlm", pair)

    def counts(self, batch: PretrainingBatch) -> Tensor:
        masked = batch.masked_weights.sum()
        return torch.stack((masked, masked.new_full((), len(batch.label))))

    def __call__(self, model: nn.Module, batch: PretrainingBatch) -> LossSum:
        logits = model(batch.ids, batch.segments, batch.lengths, batch.masked_positions)
        mlm_total, mlm_correct = _mlm_sums(logits.mlm, batch)
        pair_B2 = at_least_float32(logits.nsp)
        pair_total = functional.cross_entropy(pair_B2, batch.label, reduction="sum")
        pair_correct = (pair_B2.argmax(dim=-1) == batch.label).sum()
        return LossSum(
            torch.stack((mlm_total, pair_total)),
            self.counts(batch),
            torch.stack((mlm_correct, pair_correct.to(mlm_correct.dtype))),
            self.parts,
        )

    def expected_initial_losses(self, vocab_size: int) -> dict[str, float]:
        return {"mlm": math.log(vocab_size), self.pair: math.log(2)}


class EveryToken:
    """Cross entropy of every token, from what the model lets a position see.

    The model sums by itself: the logits of all positions are too many to hand out
    (models/cross_entropy.py).
    """

    def __init__(self, part: Literal["lm", "bidirectional"]) -> None:
        self.part = part
        self.parts: tuple[str, ...] = (part,)

    def counts(self, batch: CausalBatch) -> Tensor:
        return batch.weights.sum()[None]  # () -> (1,)

    def __call__(self, model: nn.Module, batch: CausalBatch) -> LossSum:
        state = None
        if batch.state is None:
            total, correct = model(
                batch.ids, batch.targets, batch.weights, batch.document, batch.positions
            )
        else:
            total, correct, state = model(batch.ids, batch.targets, batch.weights, batch.state)
        return LossSum(total[None], self.counts(batch), correct[None], self.parts, state)

    def expected_initial_losses(self, vocab_size: int) -> dict[str, float]:
        return {self.part: math.log(vocab_size)}


def _mlm_sums(logits_BMV: Tensor, batch: PretrainingBatch) -> tuple[Tensor, Tensor]:
    """The weighted sum of cross entropies, and the number of right guesses."""
    return weighted_sums(
        logits_BMV.flatten(0, 1),  # (B, M, V) -> (B·M, V)
        batch.masked_ids.flatten(),
        batch.masked_weights.flatten(),
    )
