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

Shapes: B batch, T sequence, V vocabulary, M masked positions, P parts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.config import Config


@dataclass(frozen=True)
class PretrainingBatch:
    """What one forward pass of BERT reads. All tensors lie on one device.

    `lengths` is None where every row is full. The reader knows that on the host; finding it out
    from a tensor on an accelerator would stall each step.
    """

    ids: Tensor  # (B, T) int64, masked already
    segments: Tensor  # (B, T) int64, 0 or 1
    lengths: Tensor | None  # (B,) int64, positions from there on are padding; None: none are
    masked_positions: Tensor  # (B, M) int64, filled up with 0
    masked_ids: Tensor  # (B, M) int64, the original tokens, filled up with 0
    masked_weights: Tensor  # (B, M) float32, 1 for a masked position, 0 for the filling
    is_next: Tensor  # (B,) int64, 1 IsNext and 0 NotNext

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
class LossSum:
    """For each part, the sum of losses, the number of things summed, and how many were right.

    `total` carries the graph. Adding two gives that of both batches together.
    """

    total: Tensor  # (P,) nats
    count: Tensor  # (P,)
    correct: Tensor  # (P,)
    parts: tuple[str, ...]

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


class Objective(Protocol):
    """What the loop trains on; see the head of this file."""

    parts: tuple[str, ...]

    def counts(self, batch: PretrainingBatch) -> Tensor:
        """How many losses each part of this batch sums, (P,), from the batch alone."""
        ...

    def __call__(self, model: nn.Module, batch: PretrainingBatch) -> LossSum:
        """The sums over this batch; one forward pass."""
        ...

    def expected_initial_losses(self, vocab_size: int) -> dict[str, float]:
        """What each part is near before the first step, when every class is about as likely."""
        ...


class ObjectiveConfig(Config):
    """`mlm_nsp` is BERT's; `mlm` leaves next-sentence prediction out (the paper's "No NSP")."""

    kind: Literal["mlm_nsp", "mlm"] = "mlm_nsp"

    @property
    def next_sentence(self) -> bool:
        """Whether the model needs its NSP head: BertForPretraining(next_sentence=...)."""
        return self.kind == "mlm_nsp"


def build_objective(config: ObjectiveConfig) -> Objective:
    """The objective that the config names."""
    match config.kind:
        case "mlm_nsp":
            return MaskedLanguageModelAndNextSentence()
        case "mlm":
            return MaskedLanguageModel()


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


class MaskedLanguageModelAndNextSentence:
    """BERT's two losses: masked tokens, and whether the second segment follows the first."""

    parts: tuple[str, ...] = ("mlm", "nsp")

    def counts(self, batch: PretrainingBatch) -> Tensor:
        masked = batch.masked_weights.sum()
        return torch.stack((masked, masked.new_full((), len(batch.is_next))))

    def __call__(self, model: nn.Module, batch: PretrainingBatch) -> LossSum:
        logits = model(batch.ids, batch.segments, batch.lengths, batch.masked_positions)
        mlm_total, mlm_correct = _mlm_sums(logits.mlm, batch)
        nsp_B2 = _at_least_float32(logits.nsp)
        nsp_total = functional.cross_entropy(nsp_B2, batch.is_next, reduction="sum")
        nsp_correct = (nsp_B2.argmax(dim=-1) == batch.is_next).sum()
        return LossSum(
            torch.stack((mlm_total, nsp_total)),
            self.counts(batch),
            torch.stack((mlm_correct, nsp_correct.to(mlm_correct.dtype))),
            self.parts,
        )

    def expected_initial_losses(self, vocab_size: int) -> dict[str, float]:
        return {"mlm": math.log(vocab_size), "nsp": math.log(2)}


def _mlm_sums(logits_BMV: Tensor, batch: PretrainingBatch) -> tuple[Tensor, Tensor]:
    """The weighted sum of cross entropies, and the number of right guesses."""
    logits_XV = _at_least_float32(logits_BMV).flatten(0, 1)  # (B, M, V) -> (B·M, V)
    ids_X, weights_X = batch.masked_ids.flatten(), batch.masked_weights.flatten()
    losses_X = functional.cross_entropy(logits_XV, ids_X, reduction="none")
    right_X = logits_XV.detach().argmax(dim=-1) == ids_X
    return (losses_X * weights_X).sum(), (right_X * weights_X).sum()


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
