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
from typing import Any, ClassVar

import torch
from torch import Tensor

from rungwise.instances.batch import CausalAndMaskedBatch, MaskedBatch
from rungwise.models.losses.heads import OwnHead
from rungwise.models.losses.objectives import (
    MLM,
    BatchShapes,
    Loss,
    Losses,
    Objective,
    Origin,
    Part,
    PretrainingLogits,
    masked_losses,
)
from rungwise.models.transformer.body import MaskedHead, TokenOutput, boundaries


class HybridModel(MaskedHead, TokenOutput):
    """A body built to read both ways, with the head that predicts the token after a state."""

    graphs: ClassVar[tuple[str, ...]] = ("sums", "masked_sums")  # see parallel.py

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
            masked = self.masked_sums(self.before(rows.masked), rows.masked)
            totals.append(masked.total[0])
            corrects.append(masked.correct[0])
        return Losses(torch.stack(totals).sum()[None], torch.stack(corrects).sum()[None])

    def before(self, rows: MaskedBatch[Tensor]) -> Tensor:
        """Return the states (B, M, D) before the masked tokens; the first token of a row has no
        state before it, and is never masked."""
        body: Any = self.body
        inputs, before_BM = (rows.ids, rows.segments, rows.lengths), rows.masked_positions - 1
        return body.encode(*inputs, boundaries(rows), before_BM.clamp(min=0))

    def fill(self, rows: MaskedBatch[Tensor]) -> PretrainingLogits:
        return self.heads(self.before(rows))

    def masked_sums(self, before_BMD: Tensor, rows: MaskedBatch[Tensor]) -> Losses:
        return masked_losses(self.heads(before_BMD), rows)


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
    loss=Loss(_counts),
    origin=Origin(
        2024, "Charpentier & Samuel", "fills in hidden words and guesses next ones, by turns"
    ),
    shapes=BatchShapes.ROWS_VARY,
    head=OwnHead(make=HybridModel),
)
