"""Objectives of encoders that give a whole text one vector, the mean of the last states of its row.

    simcse          two passes over a row that differ only in dropout (Gao et al. 2021,
                    arXiv:2104.08821, unsupervised)
    sentence_pairs  the two halves of a row, framed separately: sentences that annotators called
                    similar (same paper, supervised) or that follow one another (Logeswaran & Lee
                    2018, arXiv:1803.02893)
    tsdae           a decoder that rewrites a text from its vector (Wang et al. 2021, "TSDAE: Using
                    Transformer-based Sequential Denoising Auto-Encoder for Unsupervised Sentence
                    Embedding Learning", arXiv:2104.06979)

The first two are contrastive: cross entropy of finding a text's other view among all texts of the
global batch, with cosines divided by the temperature 0.05 as logits. A loss depends on rows of
other micro-batches and workers. So a step first computes all vectors without a graph, then each
micro-batch again with its graph, replacing its own vectors (GradCache, Gao et al. 2021,
arXiv:2101.06983). The gradient does not depend on how the batch is split.

    row without the tokens chosen for masking ──> encoder ──> mean (D,) ──┐
    original row ────────────────────────────────> embedded ── + ─────────┴──> decoder ──> next

In TSDAE, `instances.masking.rate: 0.6` is the paper's share of deleted tokens. There every decoder
layer attends to the vector; attention to a single key is a linear map of it for any query, so here
one such map is added to the decoder's input. Encoder and decoder share the token table, in and out.

Shapes: B batch, T sequence, D hidden, N rows of the global batch; 2 views.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.instances.batch import MaskedBatch
from rungwise.models.losses.cross_entropy import (
    MOST_LOGITS,
    TokenSums,
    at_least_float32,
    token_sums,
)
from rungwise.models.losses.objectives import (
    MLM,
    BatchShapes,
    EncoderHead,
    Loss,
    Losses,
    Meaning,
    MoreFlops,
    Objective,
    Part,
)
from rungwise.models.transformer.block import Pooling, Transformer, initialise, pool
from rungwise.models.transformer.body import Body, OnBody

_TEMPERATURE = 0.05


class SentenceEncoder(OnBody):
    """Returns one vector per row, (B, D): the mean of its last states."""

    purpose = "vectors"
    pooling: Pooling = "mean"

    def forward(self, ids_BT: Tensor, lengths_B: Tensor) -> Tensor:
        body: Any = self.body
        return pool(body.encode(ids_BT, None, lengths_B), lengths_B, self.pooling)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorHead(EncoderHead):
    """A model that reads the vector of each text from the body."""

    gives_sentences: ClassVar[bool] = True
    make: Callable[[Any, Any], nn.Module]  # takes the family and its body
    more_flops: MoreFlops = lambda *_: 0.0

    def build(self, family: Any, vocab_size: int, vocab_multiple: int) -> nn.Module:
        family = family.model_copy(update={"dropout": family.dropout or self.dropout})
        return self.make(family, family.stack(vocab_size, causal=False))

    def flops(self, family: Any, V: int, T: int, M: float) -> float:
        return family.stack_flops(T, False) + self.more_flops(family, V, T, M)


def _same_row_twice(batch: MaskedBatch[Tensor]) -> tuple[Tensor, Tensor]:
    ids_BT, lengths_B = unmasked(batch)
    return ids_BT.repeat(2, 1), lengths_B.repeat(2)


def _both_halves(batch: MaskedBatch[Tensor]) -> tuple[Tensor, Tensor]:
    """Split [CLS] A [SEP] B [SEP] into [CLS] A [SEP] and [CLS] B [SEP]."""
    ids_BT, lengths_B = unmasked(batch)
    T = ids_BT.shape[1]
    place_T = torch.arange(T, device=ids_BT.device)
    first_B = ((batch.segments == 0) & (place_T < lengths_B[:, None])).sum(1)
    moved_BT = (first_B[:, None] - 1 + place_T).clamp(max=T - 1)
    second_BT = ids_BT.gather(1, moved_BT)
    second_BT = torch.cat((ids_BT[:, :1], second_BT[:, 1:]), dim=1)
    return torch.cat((ids_BT, second_BT)), torch.cat((first_B, lengths_B - first_B + 1))


def unmasked(batch: MaskedBatch[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the original ids (B, T) and the lengths (B,)."""
    B, T = batch.ids.shape
    there_BM = batch.ids.gather(1, batch.masked_positions)
    original_BM = torch.where(batch.masked_weights > 0, batch.masked_ids, there_BM)
    ids_BT = batch.ids.scatter(1, batch.masked_positions, original_BM)
    lengths_B = batch.lengths
    return ids_BT, torch.full((B,), T, device=ids_BT.device) if lengths_B is None else lengths_B


def _make_outputs(views: Any) -> Any:
    def outputs(model: nn.Module, batch: MaskedBatch[Tensor]) -> Tensor:
        """Return unit vectors (2, B, D)."""
        vectors = functional.normalize(at_least_float32(model(*views(batch))), dim=-1)
        return vectors.unflatten(0, (2, -1))

    return outputs


def _text_counts(batch: MaskedBatch[Tensor]) -> Tensor:
    return batch.masked_weights.new_full((1,), len(batch.ids))


def _contrastive_losses(own_2BD: Tensor, batch: MaskedBatch[Tensor]) -> Losses:
    place_B = torch.arange(own_2BD.shape[1], device=own_2BD.device)
    whole_2ND = own_2BD
    if batch.vectors is not None and batch.place is not None:
        place_B = batch.place
        whole_2ND = batch.vectors.index_copy(1, place_B, own_2BD)
    logits_NN = whole_2ND[0] @ whole_2ND[1].T / _TEMPERATURE
    target_N = torch.arange(len(logits_NN), device=logits_NN.device)
    loss_N = functional.cross_entropy(logits_NN, target_N, reduction="none")
    # The gradient includes the effect of these rows on the losses of others; the sum does not.
    total = loss_N[place_B].detach().sum() + (loss_N.sum() - loss_N.detach().sum())
    correct = (logits_NN.argmax(dim=-1) == target_N)[place_B].sum()
    return Losses(total[None], correct[None].to(total.dtype))


SIMCSE = dataclasses.replace(
    MLM,
    name="simcse",
    tokens=Part("contrastive", "contrastive", "Other views found among all texts", "text"),
    reads=("masked_blocks",),
    loss=Loss(_text_counts, _make_outputs(_same_row_twice), _contrastive_losses),
    meaning=Meaning.ANSWERS,
    needs_whole_batch=True,
    shapes=BatchShapes.UNKNOWN,
    head=VectorHead(
        make=lambda family, body: SentenceEncoder(body),
        dropout=0.1,
        more_flops=lambda family, V, T, M: family.stack_flops(T, False),  # the second view
    ),
)
SENTENCE_PAIRS = dataclasses.replace(
    SIMCSE,
    name="sentence_pairs",
    reads=("sentence_order",),
    loss=Loss(_text_counts, _make_outputs(_both_halves), _contrastive_losses),
    head=VectorHead(make=lambda family, body: SentenceEncoder(body)),
)


class SentenceAutoencoder(SentenceEncoder):
    """A sentence encoder, and a decoder that writes the text from its vector alone."""

    def __init__(self, config: Any, body: Body) -> None:
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


def _reconstruct(model: nn.Module, batch: MaskedBatch[Tensor]) -> Losses:
    total, correct = model(*without_masked(batch), *unmasked(batch))
    return Losses(total[None], correct[None])


def _predicted_counts(batch: MaskedBatch[Tensor]) -> Tensor:
    return _mark_predicted(*unmasked(batch)).sum()[None].to(batch.masked_weights.dtype)


def _decoder_flops(family: Any, V: int, T: int, M: float) -> float:
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
    loss=Loss(_predicted_counts, _reconstruct),
    shapes=BatchShapes.UNKNOWN,
    head=VectorHead(make=SentenceAutoencoder, more_flops=_decoder_flops),
)
TEXT_VECTORS: tuple[Objective, ...] = (SIMCSE, SENTENCE_PAIRS, TSDAE)
