"""TSDAE: a vector from which a decoder can rewrite the text (Wang et al. 2021, "TSDAE: Using
Transformer-based Sequential Denoising Auto-Encoder for Unsupervised Sentence Embedding Learning",
arXiv:2104.06979).

    row without the tokens chosen for masking ──> encoder ──> mean (D,) ──┐
    original row ────────────────────────────────> embedded ── + ─────────┴──> decoder ──> next

The tokens that masked instances select are deleted instead, so `instances.masking.rate: 0.6` is the
paper's share, and the choice does not depend on workers. In the paper every decoder layer attends
to the vector. Attention to a single key is a linear map of it for any query, so here one such map
is added to the decoder's input. Encoder and decoder share the token table, in and out.

Shapes: B batch, T sequence, D hidden.

Denoising as a sequence-to-sequence objective: the spans of T5 (Raffel et al. 2020,
arXiv:1910.10683) for one stack that reads one text and writes another, as in UniLM (Dong et al.
2019, arXiv:1905.03197).

    text with spans taken out ──> read both ways ──┐
    the spans, one after the other ──> written from left to right, seeing both ──> next token

It is what fine-tuning on tasks of generation does, on rows of instances/texts.py; T5 and
BART have a stack for each text instead. The head is that of masked tokens.

Shapes: B batch, T sequence, D hidden, V vocabulary, M tokens that a row writes.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from rungwise.instances.batch import MaskedBatch
from rungwise.models.family import TransformerFamily
from rungwise.models.losses.cross_entropy import MOST_LOGITS, TokenSums, token_sums
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
)
from rungwise.models.losses.sentences import CONTRASTIVE, SentenceEncoder, VectorHead, unmasked
from rungwise.models.transformer.block import Transformer, gather_positions, initialise
from rungwise.models.transformer.body import Body, MaskedHead


class SentenceAutoencoder(SentenceEncoder):
    """A sentence encoder, and a decoder that writes the text from its vector alone."""

    def __init__(self, config: TransformerFamily, body: Body) -> None:
        super().__init__(body)
        self.decoder = Transformer(config.blocks(), causal=True)
        self.from_vector = nn.Linear(config.hidden_size, config.hidden_size)
        initialise(self.decoder, config.initializer_range)
        initialise(self.from_vector, config.initializer_range)

    def forward(
        self,
        ids_BT: Tensor,
        lengths_B: Tensor,
        whole_BT: Tensor | None = None,
        whole_lengths_B: Tensor | None = None,
    ) -> Any:
        """Return the vectors (B, D), or, given whole rows, the loss sums over all of their tokens
        but the first."""
        vectors_BD = super().forward(ids_BT, lengths_B)
        if whole_BT is None or whole_lengths_B is None:
            return vectors_BD
        return self._sums(vectors_BD, whole_BT, whole_lengths_B)

    def _sums(self, vectors_BD: Tensor, whole_BT: Tensor, lengths_B: Tensor) -> TokenSums:
        body: Any = self.body
        begun_BTD = body.embed(whole_BT) + self.from_vector(vectors_BD)[:, None]
        states_BTD = self.decoder(begun_BTD)[:, :-1]
        return token_sums(
            states_BTD.flatten(0, 1),  # (B, T - 1, D) -> (B·(T - 1), D)
            body.token_embedding.weight,
            None,
            whole_BT[:, 1:].flatten(),
            _mark_predicted(whole_BT, lengths_B).flatten().to(states_BTD.dtype),
            body.vocab_size,
            MOST_LOGITS,
        )


def without_masked(batch: MaskedBatch[Tensor]) -> tuple[Tensor, Tensor]:
    """Delete the tokens chosen for masking: the ids (B, T), closed up, and their number (B,)."""
    B, T = batch.ids.shape
    place_BT = torch.arange(T, device=batch.ids.device).expand(B, T)
    gone_BT = torch.zeros(B, T, device=batch.ids.device)
    # The filling has position 0 and weight 0.
    gone_BT = gone_BT.scatter_add(1, batch.masked_positions, batch.masked_weights.float()) > 0
    if batch.lengths is not None:
        gone_BT = gone_BT | (place_BT >= batch.lengths[:, None])
    order_BT = torch.where(gone_BT, place_BT + T, place_BT).argsort(dim=1)
    return batch.ids.gather(1, order_BT), T - gone_BT.sum(1)


def _mark_predicted(whole_BT: Tensor, lengths_B: Tensor) -> Tensor:
    """Mark the real tokens after the first, (B, T - 1)."""
    place_T = torch.arange(1, whole_BT.shape[1], device=whole_BT.device)
    return place_T < lengths_B[:, None]


def _outputs(model: nn.Module, batch: MaskedBatch[Tensor]) -> Losses:
    total, correct = model(*without_masked(batch), *unmasked(batch))
    return Losses(total[None], correct[None])


def _counts(batch: MaskedBatch[Tensor]) -> Tensor:
    return _mark_predicted(*unmasked(batch)).sum()[None].to(batch.masked_weights.dtype)


def _decoder_flops(family: TransformerFamily, V: int, T: int, M: float) -> float:
    """Count the decoder and its output; the encoder counts as reading full rows."""
    D = family.hidden_size
    return family.stack_flops(T, True) + 6 * D * (D + V)


TSDAE = dataclasses.replace(
    MLM,
    name="tsdae",
    tokens=Part(
        "reconstruction",
        "reconstruction",
        "Next tokens predicted correctly, given the vector",
        "token",
    ),
    reads=("masked_blocks",),
    loss=Loss(_counts, _outputs),
    shapes=BatchShapes.UNKNOWN,
    head=VectorHead(make=SentenceAutoencoder, more_flops=_decoder_flops),
)
SENTENCE_OBJECTIVES: tuple[Objective, ...] = (*CONTRASTIVE, TSDAE)


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
