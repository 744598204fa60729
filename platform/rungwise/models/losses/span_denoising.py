"""Denoising as a sequence-to-sequence objective: the spans of T5 (Raffel et al. 2020,
arXiv:1910.10683) for one stack that reads one text and writes another, as in UniLM (Dong et al.
2019, arXiv:1905.03197).

    text with spans taken out ──> read both ways ──┐
    the spans, one after the other ──> written from left to right, seeing both ──> next token

It is what fine-tuning on tasks of generation does, on rows of instances/denoised_spans.py; T5 and
BART have a stack for each text instead. The head is that of masked tokens.

Shapes: B batch, T sequence, D hidden, V vocabulary, M tokens that a row writes.
"""

import dataclasses
from typing import Any

from torch import Tensor

from rungwise.instances.batch import MaskedBatch
from rungwise.models.losses.heads import OwnHead
from rungwise.models.losses.objectives import MLM, Objective, Origin, Part, PretrainingLogits
from rungwise.models.transformer.block import gather_positions
from rungwise.models.transformer.body import MaskedHead


class DenoisingModel(MaskedHead):
    """A body that writes, with the head for tokens."""

    def __init__(self, family: Any, body: Any, mlm: Any) -> None:
        super().__init__(family, body, mlm)
        body.writes = True

    def forward(self, rows: MaskedBatch[Tensor]) -> PretrainingLogits:
        """Return the logits (B, M, V) of the written tokens."""
        states_BTD = self.body.encode_layers(rows.ids, rows.segments, rows.lengths)[-1]
        return self.heads(gather_positions(states_BTD, rows.masked_positions))

    fill = forward

    def blanks(self) -> None:
        """A single [MASK] stands for any number of tokens, so there is no blank of one."""


SPAN_DENOISING: Objective = dataclasses.replace(
    MLM,
    name="span_denoising",
    tokens=Part("written", "denoising", "Tokens of spans written correctly", "written token"),
    reads=("denoised_spans",),
    head=OwnHead(make=DenoisingModel),
    origin=Origin(2020, "after Raffel et al.", "writes the spans that were taken out of a text"),
)
