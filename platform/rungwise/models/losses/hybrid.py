"""The hybrid of masked and next-token prediction: GPT-BERT (Charpentier & Samuel 2024, "GPT or
BERT: why not both?", arXiv:2410.24159).

    causal row   attention from the left    each state predicts the token after it
    masked row   attention both ways        the state BEFORE a masked token predicts it

So both ask a state for the token that follows it, with one head. Which rows of a batch are causal
is a property of the instances (causal.py); the loss is the mean over predicted tokens. A
micro-batch runs its causal rows as `left_to_right` does and its masked rows as `mlm`, shifted by
one: with rows of one sort its sums are theirs bit for bit.

Shapes: B batch, T sequence, D hidden, V vocabulary, M masked positions.

Permuted prediction: XLNet (Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for
Language Understanding", arXiv:1906.08237).

    content   the row unmasked: all tokens see the context, a predicted one also those before it in
              a random order of the predicted ones, and itself
    query     a copy of each predicted token, masked: it sees the context and the contents before
              it in the order, predicts its token, and is seen by none

The predicted tokens are those that masking selects, a sixth or so as in the paper, and the others
are the context. Both streams share their weights, so one pass over the queries behind the row is
the paper's two streams. Their positions are learned or sinusoidal, not relative to the query, and
nothing is remembered of the text before the row. A query begins as the token that masking put in
its place: give it `mask_share: 1`, or some see what they predict.

The order is a hash of the row and its masks: new with every mask, and the same whatever the batch
or the workers.

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
from rungwise.models.losses.replaced_tokens import real_tokens, row_numbers
from rungwise.models.losses.sentences import unmasked
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


class PermutedModel(MaskedHead):
    """A body with the head for tokens on its query stream."""

    def forward(self, rows: MaskedBatch[Tensor]) -> PretrainingLogits:
        """Return the logits (B, M, V) of the masked tokens, each given those before it."""
        return self._predict(rows, order(rows))

    def fill(self, rows: MaskedBatch[Tensor]) -> PretrainingLogits:
        """Return the same, given the context alone."""
        return self._predict(rows, (rows.masked_positions > 0).long())

    def _predict(self, rows: MaskedBatch[Tensor], rank_BM: Tensor) -> PretrainingLogits:
        body: Any = self.body
        place_BM = rows.masked_positions
        ids_BM, segments_BM = rows.ids.gather(1, place_BM), rows.segments.gather(1, place_BM)
        positions_BM = place_BM if rows.positions is None else rows.positions.gather(1, place_BM)
        content_BTD = body.embed(unmasked(rows)[0], rows.segments, rows.positions)
        both_BXD = torch.cat((content_BTD, body.embed(ids_BM, segments_BM, positions_BM)), dim=1)
        states_BXD = body.transformer.layers(both_BXD, visible=visible_to_both(rows, rank_BM))[-1]
        return self.heads(states_BXD[:, rows.ids.shape[1] :])


def order(rows: MaskedBatch[Tensor]) -> Tensor:
    """The places 1 to M of the masked tokens in a random order, (B, M); unused slots last."""
    numbers_BM = torch.where(rows.masked_weights > 0, row_numbers(rows), 2.0)
    return 1 + numbers_BM.argsort(dim=1).argsort(dim=1)


def visible_to_both(rows: MaskedBatch[Tensor], rank_BM: Tensor) -> Tensor:
    """Return the mask (B, 1, T + M, T + M) of contents and queries, given ranks from 1. The context
    has rank 0; the unused slots, at position 0, stay in it."""
    place_BM, T = rows.masked_positions, rows.ids.shape[1]
    rank_BT = torch.zeros_like(rows.ids).scatter(1, place_BM, rank_BM * (place_BM > 0))
    text_BT = real_tokens(rows).long() if rows.document is None else rows.document
    text_BX = torch.cat((text_BT, text_BT.gather(1, place_BM)), dim=1)
    last_BX = torch.cat((rank_BT, rank_BM - 1), dim=1)  # the highest rank that each sees
    seen_BXT = (rank_BT[:, None] <= last_BX[..., None]) & (text_BT[:, None] == text_BX[..., None])
    return torch.nn.functional.pad(seen_BXT, (0, text_BX.shape[1] - T))[:, None]


def _more_flops(family: Any, V: int, T: int, M: float) -> float:
    """The queries of a row, and what all its attention costs beside that of T tokens."""
    both = T + round(M)
    return family.stack_flops(both, False) * both / T - family.stack_flops(T, False)


PERMUTED: Objective = dataclasses.replace(
    MLM,
    name="permuted",
    tokens=Part("permuted", "permuted", "Tokens predicted correctly in a random order", "token"),
    head=OwnHead(make=PermutedModel, more_flops=_more_flops),
    origin=Origin(2019, "after Yang et al.", "guesses words in a random order, one after another"),
)
