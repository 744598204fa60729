"""Pretraining objectives: `(model, batch) -> LossSum(total, count, ...)`, one entry per part.

A mean of means depends on how a batch is split, because micro-batches hold different numbers of
masked tokens. So each part of a loss stays a sum and a count until the last all-reduce, and the
joint loss of BERT (Devlin et al. 2019, arXiv:1810.04805) is `sum_mlm / count_mlm + sum_nsp /
count_nsp` over the GLOBAL batch. Gradients of workers are summed, not averaged as DDP does. An
empty part adds exactly 0. Sentence order is ALBERT's (Lan et al. 2020, arXiv:1909.11942).

Shapes: B batch, T sequence, D hidden, V vocabulary, M masked positions, P parts.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.instances.batch import CausalBatch, MaskedBatch
from rungwise.models.losses.cross_entropy import at_least_float32, sum_weighted_losses

MoreFlops = Callable[[Any, int, int, float], float]  # of the family, V, T and M
_MIXED = "+"  # between the names of the objectives of a mixture


@dataclass(frozen=True, kw_only=True)
class ModelHead:
    """The layers of a model above its body, for one objective."""

    gives_sentences: ClassVar[bool] = False  # whether the model gives one vector per text
    dropout: float = 0.0  # used if the model's dropout is 0


class EncoderHead(ModelHead, ABC):
    """A head of an `EncoderFamily` (families/bert.py)."""

    @abstractmethod
    def build(self, family: Any, vocab_size: int) -> nn.Module:
        """Build the model, with random weights."""

    @abstractmethod
    def flops(self, family: Any, V: int, T: int, M: float) -> float:
        """Count the operations per token; see `Family.flops_per_token`."""


@dataclass(frozen=True, kw_only=True)
class MaskedTokensHead(EncoderHead):
    """The head for masked tokens, and for `pairs` one on the pooled state."""

    pairs: bool = False

    def build(self, family: Any, vocab_size: int) -> nn.Module:
        return family.masked(vocab_size, self.pairs)

    def flops(self, family: Any, V: int, T: int, M: float) -> float:
        """Count the blocks, the MLM head at M positions, and pooler and NSP once per sequence:

            stack_flops + 6·M/T·(D² + D·V) + 6/T·(D² + 2·D)

        BERT base with 15 % masked and V = 30,522: 545.4 MFLOP at T = 128, 587.9 at T = 512.
        """
        D = family.hidden_size
        tokens = family.stack_flops(T, False) + _token_flops(family, V, T, M)
        return tokens + (6 / T * (D * D + 2 * D) if self.pairs else 0.0)


@dataclass(frozen=True, kw_only=True)
class OwnHead(EncoderHead):
    """A model of the objective with the family's head for tokens. With `causal` it reads from the
    left and predicts a token from every state."""

    causal: bool = False
    make: Callable[[Any, Any, Any], nn.Module]  # takes the family, its body and its head
    more_flops: MoreFlops = lambda *_: 0.0

    def build(self, family: Any, vocab_size: int) -> nn.Module:
        body = family.stack(vocab_size, causal=self.causal)
        return self.make(family, body, family.head(vocab_size))

    def flops(self, family: Any, V: int, T: int, M: float) -> float:
        head = _token_flops(family, V, T, T if self.causal else M)
        return family.stack_flops(T, self.causal) + head + self.more_flops(family, V, T, M)


def _token_flops(family: Any, V: int, T: int, predicted: float) -> float:
    D = family.hidden_size
    return 6 * predicted / T * (D * D + D * V)


@dataclass(frozen=True)
class LossSum:
    """Sums, counts and correct predictions of each part, which add up over batches."""

    total: Tensor  # (P,) nats; carries the graph
    count: Tensor  # (P,)
    correct: Tensor  # (P,)
    parts: tuple[str, ...]
    state: Tensor | None = None  # (B, ...) after the last token, of models that carry one

    def loss(self, global_count: Tensor | None = None) -> Tensor:
        """Return the scalar for `backward`: this batch's share of the global batch's loss.
        `global_count` is `counts` summed over all micro-batches and workers; None if this is the
        whole batch. Shares sum to the loss, and their gradients to its gradient."""
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
        """Return totals, counts and corrects as (3, P), detached, for one all-reduce or copy. In
        float64, because float32 stops counting at 2^24, fewer tokens than an evaluation has."""
        return torch.stack((self.total.detach(), self.count, self.correct)).double()

    @classmethod
    def unpacked(cls, packed_3P: Tensor, parts: tuple[str, ...]) -> Self:
        """Invert `packed`, for metrics."""
        total, count, correct = packed_3P.unbind(0)
        return cls(total, count, correct, parts)

    def metrics(self) -> dict[str, float]:
        """Return `loss` and each part's loss and accuracy. Waits for the device."""
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
    """One of the losses that an objective sums."""

    key: str  # its metrics are `{key}_loss` and `{key}_accuracy`
    name: str  # on the page: the name of the loss
    right: str  # on the page: the name of the accuracy
    unit: str  # on the page: the loss is in nats per ...
    num_classes: int | None = None  # None: the vocabulary size
    start_tolerance: float = 0.5  # nats its first value may differ from the expected one

    @property
    def loss_key(self) -> str:
        return f"{self.key}_loss"

    @property
    def accuracy_key(self) -> str:
        return f"{self.key}_accuracy"

    def expected_start(self, words: float) -> float:
        """Return its value in nats while classes are equally likely; `words`: that over words."""
        return math.log(self.num_classes) if self.num_classes else words


@dataclass(frozen=True)
class Origin:
    """A model's place in history, shown on a ladder's page."""

    year: int  # of the paper
    paper: str  # `Devlin et al.`
    idea: str  # in plain words, for readers who do not know the field


class PretrainingLogits(NamedTuple):
    """Logits of masked tokens and of pairs; `nsp` is None without that head."""

    mlm: Tensor  # (B, M, V)
    nsp: Tensor | None  # (B, 2)


class Losses(NamedTuple):
    """Sums over a batch, by part."""

    total: Tensor  # (P,) nats
    correct: Tensor  # (P,) right guesses
    state: Tensor | None = None  # (B, ...) after the last token, of models that carry one


class Meaning(Enum):
    """The measure of a loss in nats; only code lengths compare between any two models."""

    CODE_LENGTH = "minus the log of the text's probability"
    TOKENS = "minus the log-probability of tokens, given more than those before them"
    ANSWERS = "minus the log-probability of answers, which are no tokens"


class BatchShapes(Enum):
    """The sizes of a step, as torch.compile has to know them: which change from batch to batch."""

    FIXED = "none"
    ROWS_VARY = "the number of rows of each sort, of which a batch has two"
    UNKNOWN = "any; the step is not compiled"


class Loss(NamedTuple):
    """How the losses of a batch are computed. By default the model returns their sums."""

    counts: Callable[[Any], Tensor]  # how many losses each part sums, (P,), from the batch alone
    outputs: Callable[[nn.Module, Any], Any] = lambda model, batch: model(batch)  # one forward pass
    sums: Callable[[Any, Any], Losses] = lambda sums, batch: sums  # of the outputs and the batch


@dataclass(frozen=True)
class Objective:
    """A prediction to train on; see the module docstring. The exponential of the loss of `tokens`
    is a perplexity; `pair` is a loss over pairs of segments."""

    name: str
    tokens: Part
    reads: tuple[str, ...]  # kinds of instances
    masks: bool  # whether rows are framed by [CLS] and [SEP], with some tokens masked
    loss: Loss
    pair: Part | None = None
    meaning: Meaning = Meaning.TOKENS
    needs_whole_batch: bool = False  # whether a row's loss depends on all rows of the global batch
    shapes: BatchShapes = BatchShapes.FIXED
    head: ModelHead = field(default_factory=ModelHead)
    origin: Origin | None = None  # if it, and not the family, is what a paper proposed
    mixture: "tuple[Objective, ...]" = ()  # those that take turns, if it is one or their mixture

    @property
    def parts(self) -> tuple[str, ...]:
        """The keys of its losses, or of those of the whole mixture."""
        return tuple(key for each in self.mixture or (self,) for key in each.own_parts)

    @property
    def own_parts(self) -> tuple[str, ...]:
        return (self.tokens.key, self.pair.key) if self.pair else (self.tokens.key,)

    @property
    def members(self) -> "tuple[Objective, ...]":
        """The objectives of a mixture, with a place for the losses of all, so that steps add up."""
        return tuple(dataclasses.replace(each, mixture=self.mixture) for each in self.mixture)

    @property
    def predicts_text(self) -> bool:
        """Whether the loss compares with that of guessing tokens by their frequency."""
        return self.meaning is not Meaning.ANSWERS

    @property
    def is_code_length(self) -> bool:
        return self.meaning is Meaning.CODE_LENGTH

    @property
    def sentences(self) -> bool:
        """Whether the model gives one vector per text."""
        return self.head.gives_sentences

    @property
    def fewest_rows(self) -> int:
        """The rows that a global batch, and validation, need for a loss."""
        return 2 if self.needs_whole_batch else 1

    def counts(self, batch: Any) -> Tensor:
        """Count how many losses each part sums, (P,)."""
        return self._place(self.loss.counts(batch))

    def outputs(self, model: nn.Module, batch: Any) -> Any:
        return self.loss.outputs(model, batch)

    def losses(self, outputs: Any, batch: Any) -> Losses:
        """Sum the losses of a forward pass."""
        total, correct, state = self.loss.sums(outputs, batch)
        return Losses(self._place(total), self._place(correct), state)

    def __call__(self, model: nn.Module, batch: Any) -> LossSum:
        """Run one forward pass and return the sums over this batch."""
        losses = self.losses(self.outputs(model, batch), batch)
        return LossSum(losses.total, self.counts(batch), losses.correct, self.parts, losses.state)

    def _place(self, own: Tensor) -> Tensor:
        """Put zeros in the places of the losses that other objectives of a mixture have."""
        if not self.mixture:
            return own
        before = self.parts.index(self.own_parts[0])
        return functional.pad(own, (before, len(self.parts) - before - len(self.own_parts)))


def member_names(name: str) -> list[str]:
    """Return the names of the members of a mixture, or the only name."""
    return name.split(_MIXED)


def mix(objectives: Sequence[Objective]) -> Objective:
    """Mix objectives that take turns. A page describes a mixture by its first objective."""
    return dataclasses.replace(
        objectives[0],
        name=_MIXED.join(each.name for each in objectives),
        mixture=tuple(objectives),
        origin=Origin(
            2018, "after Subramanian et al.", "learns from several tasks, one after another"
        ),
    )


def masked_losses(logits: PretrainingLogits, batch: MaskedBatch[Tensor]) -> Losses:
    sums = sum_weighted_losses(
        logits.mlm.flatten(0, 1),  # (B, M, V) -> (B·M, V)
        batch.masked_ids.flatten(),
        batch.masked_weights.flatten(),
    )
    return only_part(sums)


def add_part(losses: Losses, total: Tensor, correct: Tensor) -> Losses:
    """Return the sums of one more part, () each, behind those of the others."""
    return Losses(
        torch.cat((losses.total, total[None].to(losses.total.dtype))),
        torch.cat((losses.correct, correct[None].to(losses.correct.dtype))),
    )


def _masked_and_pair_counts(batch: MaskedBatch[Tensor]) -> Tensor:
    masked = batch.masked_weights.sum()
    return torch.stack((masked, masked.new_full((), len(batch.label))))


def _masked_and_pair_losses(logits: PretrainingLogits, batch: MaskedBatch[Tensor]) -> Losses:
    assert logits.nsp is not None, "the objective says that the model is built with this head"
    return add_part(masked_losses(logits, batch), *label_losses(logits.nsp, batch.label))


def _token_counts(batch: CausalBatch[Tensor]) -> Tensor:
    return batch.weights.sum()[None]  # () -> (1,)


def only_part(sums: Sequence[Tensor]) -> Losses:
    """Return sums of a model that has summed its one loss itself, as the logits of all positions
    are too many (cross_entropy.py): its total, the correct ones and perhaps a state."""
    total, correct, *state = sums
    return Losses(total[None], correct[None].to(total.dtype), *state)


def label_losses(logits: Tensor, label_B: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the losses and the correct labels, () each, of logits (B, C)."""
    logits_BC = at_least_float32(logits)
    total = functional.cross_entropy(logits_BC, label_B, reduction="sum")
    return total, (logits_BC.argmax(dim=-1) == label_B).sum()


_MLM = Part("mlm", "MLM", "Masked tokens predicted correctly", "masked token")
_NSP = Part("nsp", "NSP", "Next sentence accuracy", "pair", 2, 0.15)
_SOP = Part("sop", "SOP", "Sentence order accuracy", "pair", 2, 0.15)
_LM = Part("lm", "next-token", "Next tokens predicted correctly", "token")

MLM_NSP = Objective(
    "mlm_nsp",
    _MLM,
    reads=("masked_pairs",),
    masks=True,
    loss=Loss(_masked_and_pair_counts, sums=_masked_and_pair_losses),
    pair=_NSP,
    head=MaskedTokensHead(pairs=True),
)
MLM = Objective(
    "mlm",
    _MLM,
    reads=("masked_pairs", "masked_blocks", "sentence_order"),
    masks=True,
    loss=Loss(lambda batch: batch.masked_weights.sum()[None], sums=masked_losses),  # () -> (1,)
    head=MaskedTokensHead(),
)
SENTENCE_ORDER = dataclasses.replace(
    MLM_NSP, name="sentence_order", reads=("sentence_order",), pair=_SOP
)
CAUSAL = Objective(
    "causal",
    _LM,
    reads=("causal",),
    masks=False,
    loss=Loss(_token_counts, lambda model, batch: only_part(model(batch))),
    meaning=Meaning.CODE_LENGTH,
)
BIDIRECTIONAL = dataclasses.replace(
    CAUSAL,
    name="bidirectional",
    tokens=Part(
        "bidirectional",
        "two-direction",
        "Tokens predicted correctly from all others",
        "token, given all others",
    ),
    meaning=Meaning.TOKENS,
)
# The mean of two code lengths is a code length: sqrt(p·q) sums to at most 1 over all texts.
BILM = dataclasses.replace(
    CAUSAL,
    name="bilm",
    tokens=Part(
        "bilm",
        "biLM",
        "Tokens predicted correctly, mean of both directions",
        "token, mean of both directions",
    ),
    loss=CAUSAL.loss._replace(counts=lambda batch: 2 * _token_counts(batch)),
)
