"""The hybrid of masked and next-token prediction: GPT-BERT (Charpentier & Samuel 2024, "GPT or
BERT: why not both?", arXiv:2410.24159).

    causal row   attention from the left    each state predicts the token after it
    masked row   attention both ways        the state BEFORE a masked token predicts it

So both ask a state for the token that follows it, with one head. Which rows of a batch are causal
is a property of the instances (causal_and_masked.py); the loss is the mean over predicted tokens. A
micro-batch runs its causal rows as `left_to_right` does and its masked rows as `mlm`, shifted by
one: with rows of one sort its sums are theirs bit for bit.

Shapes: B batch, T sequence, D hidden, V vocabulary, M masked positions.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from rungwise.instances.batch import CausalAndMaskedBatch, MaskedBatch
from rungwise.models.losses.objectives import (
    MLM,
    Losses,
    Objective,
    Origin,
    Part,
    PretrainingLogits,
)
from rungwise.models.transformer.block import initialise
from rungwise.models.transformer.body import OnBody, TokenOutput, boundaries


class BlanksFromBefore(OnBody):
    """Predicts masked tokens from the states before them."""

    def __init__(self, body: Any, mlm: nn.Module) -> None:
        super().__init__(body)
        self.mlm = mlm

    def forward(self, rows: MaskedBatch[Tensor]) -> PretrainingLogits:
        """Return the logits (B, M, V) of the masked tokens; the first token of a row has no state
        before it, and is never masked."""
        body: Any = self.body
        read, before_BM = (rows.ids, rows.segments, rows.lengths), rows.masked_positions - 1
        states_BMD = body.encode(*read, boundaries(rows), before_BM.clamp(min=0))
        return PretrainingLogits(self.mlm(states_BMD, body.token_embedding.weight), None)


class HybridModel(TokenOutput):
    """A body built to read both ways, with the head that predicts the token after a state."""

    def __init__(self, family: Any, body: Any, mlm: Any) -> None:
        super().__init__(body)
        self.mlm = mlm
        initialise(self.mlm, family.initializer_range)

    def forward(self, rows: CausalAndMaskedBatch[Tensor]) -> Losses:
        """Return the sums over the predicted tokens of both sorts of rows, (1,) each."""
        totals: list[Tensor] = []
        corrects: list[Tensor] = []
        if rows.causal is not None:
            body: Any = self.body
            where = boundaries(rows.causal)._replace(causal=True)
            states_BTD = self.mlm.transform(body.encode(rows.causal.ids, None, None, where))
            total, correct = self.sums(states_BTD, rows.causal.targets, rows.causal.weights)
            totals.append(total)
            corrects.append(correct)
        if rows.masked is not None:
            masked = MLM.losses(self.blanks()(rows.masked), rows.masked)
            totals.append(masked.total[0])
            corrects.append(masked.correct[0])
        return Losses(torch.stack(totals).sum()[None], torch.stack(corrects).sum()[None])

    def word_bias(self) -> Tensor:
        return self.mlm.bias

    def blanks(self) -> nn.Module:
        return BlanksFromBefore(self.body, self.mlm)


def _outputs(model: nn.Module, batch: CausalAndMaskedBatch[Tensor]) -> Losses:
    return model(batch)


def _losses(sums: Losses, batch: CausalAndMaskedBatch[Tensor]) -> Losses:
    return sums


def _counts(batch: CausalAndMaskedBatch[Tensor]) -> Tensor:
    weights = [
        *([] if batch.causal is None else [batch.causal.weights]),
        *([] if batch.masked is None else [batch.masked.masked_weights]),
    ]
    return torch.stack([each.sum() for each in weights]).sum()[None]


HYBRID: Objective = dataclasses.replace(
    MLM,
    name="causal_and_masked",
    tokens=Part(
        "causal_and_masked",
        "causal and masked",
        "Masked and next tokens predicted correctly",
        "masked or next token",
    ),
    reads=("causal_and_masked",),
    counts=_counts,
    outputs=_outputs,
    losses=_losses,
    origin=Origin(
        2024, "Charpentier & Samuel", "fills in hidden words and guesses next ones, by turns"
    ),
    compiles=False,
    build=HybridModel,
)
