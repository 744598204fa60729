"""Objectives of pretraining: `(model, batch) -> LossSum(total, count, ...)`, one entry a part.

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

    name            parts          model          batch             predicts
    mlm_nsp         mlm, nsp       bert           PretrainingBatch  masked tokens; is B next
    mlm             mlm            bert           PretrainingBatch  masked tokens ("No NSP")
    sentence_order  mlm, sop       bert           PretrainingBatch  masked tokens; A and B in order
    causal          lm             gpt            CausalBatch       the next token, from the left
    left_to_right   lm             bert           CausalBatch       the same ("LTR & No NSP")
    bidirectional   bidirectional  bidirectional  CausalBatch       each token, from both sides
    bilm            bilm           elmo           CausalBatch       each token twice: from the left,
                                                                    and from the right
    simcse          contrastive    bert           PretrainingBatch  which vector is of this text
    sentence_pairs  contrastive    bert           PretrainingBatch  which one is of the other half
    tsdae           reconstruction bert           PretrainingBatch  the text, from its vector

`mlm` and the last three (contrastive.py, denoising.py) are ModernBERT's too, and `causal` Llama's
and the recurrent rungs'.

An objective is one value. A family lists those that it takes (family.py), and nothing else needs to
know which there are.

Sentence order is ALBERT's in place of NSP (Lan et al. 2020, arXiv:1909.11942, section 3.1).

Shapes: B batch, T sequence, V vocabulary, M masked positions, P parts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

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
        rows = self._map(lambda tensor: tensor[start:stop])
        return dataclasses.replace(rows, starts=None)  # which are of the whole

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        tensors = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(
            self,
            **{name: function(value) for name, value in tensors.items() if value is not None},
        )


@dataclass(frozen=True)
class PretrainingBatch(_Tensors):
    """Rows that one forward pass of BERT reads.

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
    # Of rows that hold several texts; None where each holds one. Padding is a text of its own.
    document: Tensor | None = None  # (B, T) int64, tokens of one text share a number in their row
    positions: Tensor | None = None  # (B, T) int64, from the beginning of the text
    starts: Tensor | None = None  # (S + 1,) int32, where texts begin: `Documents` of attention.py
    # Where losses compare rows of a global batch of more than this one (contrastive.py).
    vectors: Tensor | None = None  # (2, N, D) of all of its rows, without a graph
    place: Tensor | None = None  # (B,) int64, which of them are these


@dataclass(frozen=True)
class CausalBatch(_Tensors):
    """Packed blocks that one forward pass reads: of a stream, `ids` and what follows each.

    `document`, `positions` and `starts` are None where no row holds a boundary, which is known on
    the host. Padding is at the end of a row.
    """

    ids: Tensor  # (B, T) int64
    targets: Tensor  # (B, T) int64, targets[t] is the token that follows ids[t]
    weights: Tensor  # (B, T) float32, 1 for a real target, 0 at padding
    document: Tensor | None  # (B, T) int64, tokens of one document share a number in their row
    positions: Tensor | None  # (B, T) int64, from the beginning of the document, or of the block
    starts: Tensor | None = None  # (S + 1,) int32, as above; padding is a document of its own
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


@dataclass(frozen=True)
class Part:
    """One of the losses that an objective adds up: its name in metrics, its start, its words."""

    key: str  # of its metrics, `{key}_loss` and `{key}_accuracy`
    name: str  # on the page: the name of the loss
    right: str  # on the page: the share of right answers
    unit: str  # on the page: a loss is in nats a ...
    num_classes: int | None = None  # None: the vocabulary
    start_tolerance: float = 0.5  # nats between its first value and the expected one

    @property
    def loss_key(self) -> str:
        return f"{self.key}_loss"

    @property
    def accuracy_key(self) -> str:
        return f"{self.key}_accuracy"

    def expected_start(self, vocab_size: int) -> float:
        """Its value in nats before the first step, when every class is about as likely."""
        return math.log(self.num_classes or vocab_size)


class PretrainingLogits(NamedTuple):
    """Logits of masked tokens and of pairs; `nsp` is None in a model without the second head."""

    mlm: Tensor  # (B, M, V)
    nsp: Tensor | None  # (B, 2)


class Losses(NamedTuple):
    """Sums over a batch, by part."""

    total: Tensor  # (P,) nats
    correct: Tensor  # (P,) right guesses
    state: Tensor | None = None  # (B, ...) after the last token, of models that carry one


@dataclass(frozen=True)
class Objective:
    """A prediction to train on; see the head of this file.

    `outputs(model, batch)` is one forward pass, `losses` the sums of what comes out;
    `counts(batch)` how many losses each part sums, (P,), from the batch alone. `tokens` is the part
    over tokens, the exponential of its loss is a perplexity; `pair` is over pairs of segments.
    """

    name: str
    tokens: Part
    reads: tuple[str, ...]  # kinds of instances
    masks: bool  # whether it reads rows framed by [CLS] and [SEP] with some tokens masked
    counts: Callable[[Any], Tensor]
    outputs: Callable[[nn.Module, Any], Any]
    losses: Callable[[Any, Any], Losses]  # of the outputs and the batch
    # (rows, length, vocabulary, masked tokens a row) -> full rows of random tokens, for timing
    random_batch: Callable[[int, int, int, float], Batch]
    pair: Part | None = None
    is_code_length: bool = False  # whether the loss is minus the log of the text's probability
    predicts_text: bool = True  # whether the loss is nats a token, beside the unigram entropy
    compares: bool = False  # whether the loss of a row is one among all rows of the global batch
    least_dropout: float = 0.0  # where the model has none
    passes: int = 1  # over a row in one forward
    sentences: bool = False  # whether what it trains gives each text one vector

    @property
    def parts(self) -> tuple[str, ...]:
        """The keys of the parts, the one over tokens first."""
        return (self.tokens.key, self.pair.key) if self.pair else (self.tokens.key,)

    def __call__(self, model: nn.Module, batch: Any) -> LossSum:
        """The sums over this batch; one forward pass."""
        losses = self.losses(self.outputs(model, batch), batch)
        return LossSum(losses.total, self.counts(batch), losses.correct, self.parts, losses.state)


def _masked_counts(batch: PretrainingBatch) -> Tensor:
    return batch.masked_weights.sum()[None]  # () -> (1,)


def _masked_outputs(model: nn.Module, batch: PretrainingBatch) -> PretrainingLogits:
    return model(
        batch.ids,
        batch.segments,
        batch.lengths,
        batch.masked_positions,
        batch.document,
        batch.positions,
        batch.starts,
    )


def _masked_losses(logits: PretrainingLogits, batch: PretrainingBatch) -> Losses:
    total, correct = _mlm_sums(logits.mlm, batch)
    return Losses(total[None], correct[None])


def _masked_and_pair_counts(batch: PretrainingBatch) -> Tensor:
    masked = batch.masked_weights.sum()
    return torch.stack((masked, masked.new_full((), len(batch.label))))


def _masked_and_pair_losses(logits: PretrainingLogits, batch: PretrainingBatch) -> Losses:
    assert logits.nsp is not None, "the objective says that the model is built with this head"
    mlm_total, mlm_correct = _mlm_sums(logits.mlm, batch)
    pair_B2 = at_least_float32(logits.nsp)
    pair_total = functional.cross_entropy(pair_B2, batch.label, reduction="sum")
    pair_correct = (pair_B2.argmax(dim=-1) == batch.label).sum()
    return Losses(
        torch.stack((mlm_total, pair_total)),
        torch.stack((mlm_correct, pair_correct.to(mlm_correct.dtype))),
    )


def _mlm_sums(logits_BMV: Tensor, batch: PretrainingBatch) -> tuple[Tensor, Tensor]:
    """The weighted sum of cross entropies, and the number of right guesses."""
    return weighted_sums(
        logits_BMV.flatten(0, 1),  # (B, M, V) -> (B·M, V)
        batch.masked_ids.flatten(),
        batch.masked_weights.flatten(),
    )


def _random_masked(B: int, T: int, vocab_size: int, masked_per_row: float) -> PretrainingBatch:
    ids_BT = torch.randint(vocab_size, (B, T))
    M = max(1, round(masked_per_row))
    return PretrainingBatch(
        ids=ids_BT,
        segments=torch.zeros(B, T, dtype=torch.int64),
        lengths=None,
        masked_positions=torch.arange(M).expand(B, M),
        masked_ids=ids_BT[:, :M],
        masked_weights=torch.ones(B, M),
        label=torch.ones(B, dtype=torch.int64),
    )


def _token_counts(batch: CausalBatch) -> Tensor:
    return batch.weights.sum()[None]  # () -> (1,)


def _twofold_counts(batch: CausalBatch) -> Tensor:
    return 2 * _token_counts(batch)


def _token_outputs(model: nn.Module, batch: CausalBatch) -> Losses:
    # The model sums by itself: the logits of all positions are too many to hand out
    # (cross_entropy.py).
    if batch.state is None:
        where = (batch.document, batch.positions, batch.starts)
        total, correct = model(batch.ids, batch.targets, batch.weights, *where)
        return Losses(total[None], correct[None])
    total, correct, state = model(batch.ids, batch.targets, batch.weights, batch.state)
    return Losses(total[None], correct[None], state)


def _token_losses(sums: Losses, batch: CausalBatch) -> Losses:
    return sums


def _random_blocks(B: int, T: int, vocab_size: int, masked_per_row: float) -> CausalBatch:
    ids_BT = torch.randint(vocab_size, (B, T))
    return CausalBatch(ids_BT, ids_BT.roll(-1, 1), torch.ones(B, T), None, None)


_MLM = Part("mlm", "MLM", "Masked tokens guessed right", "masked token")
_NSP = Part("nsp", "NSP", "Next sentence recognised", "pair", 2, 0.15)
_SOP = Part("sop", "SOP", "Order of the halves recognised", "pair", 2, 0.15)
_LM = Part("lm", "next-token", "Next tokens guessed right", "token")

MLM_NSP = Objective(
    "mlm_nsp",
    _MLM,
    reads=("masked_pairs",),
    masks=True,
    counts=_masked_and_pair_counts,
    outputs=_masked_outputs,
    losses=_masked_and_pair_losses,
    random_batch=_random_masked,
    pair=_NSP,
)
MLM = Objective(
    "mlm",
    _MLM,
    reads=("masked_pairs", "masked_blocks", "sentence_order"),
    masks=True,
    counts=_masked_counts,
    outputs=_masked_outputs,
    losses=_masked_losses,
    random_batch=_random_masked,
)
SENTENCE_ORDER = dataclasses.replace(
    MLM_NSP, name="sentence_order", reads=("sentence_order",), pair=_SOP
)
CAUSAL = Objective(
    "causal",
    _LM,
    reads=("causal",),
    masks=False,
    counts=_token_counts,
    outputs=_token_outputs,
    losses=_token_losses,
    random_batch=_random_blocks,
    is_code_length=True,
)
LEFT_TO_RIGHT = dataclasses.replace(CAUSAL, name="left_to_right")
BIDIRECTIONAL = dataclasses.replace(
    CAUSAL,
    name="bidirectional",
    tokens=Part(
        "bidirectional",
        "two-direction",
        "Tokens guessed right from all others",
        "token, given all others",
    ),
    is_code_length=False,
)
# The mean of two code lengths is one too: sqrt(p·q) summed over all texts is at most 1.
BILM = dataclasses.replace(
    CAUSAL,
    name="bilm",
    tokens=Part(
        "bilm",
        "biLM",
        "Tokens guessed right, mean of both directions",
        "token, mean of both directions",
    ),
    counts=_twofold_counts,
)
