"""Objectives of the vectors of texts: what the vector of a sentence must tell.

Of encoders of sentences, whose targets stay within a document or pair:

    quick_thoughts         which sentences of a run are its neighbours (Logeswaran & Lee 2018,
                           arXiv:1803.02893)
    skip_thoughts          the words of both neighbours (Kiros et al. 2015, arXiv:1506.06726)
    sentence_autoencoder   its own words (after Dai & Le 2015, arXiv:1511.01432)
    sentence_translation   those of a text aligned with it, such as its translation or linearised
                           parse (Subramanian et al. 2018, arXiv:1804.00079: GenSen)
    inference              how it is related to another one, a label of pairs (Conneau et al. 2017,
                           arXiv:1705.02364: InferSent)

Of encoders that mask, where the vector is the mean of a row's last states:

    simcse                 two passes over a row that differ only in dropout (Gao et al. 2021,
                           arXiv:2104.08821, unsupervised)
    sentence_pairs         the two halves of a row, framed separately (same paper, supervised)
    tsdae                  a decoder that rewrites a text from its vector (Wang et al. 2021,
                           arXiv:2104.06979)

simcse and sentence_pairs compare the whole global batch: a step computes all vectors without a
graph, then those of each micro-batch with it (GradCache, Gao et al. 2021, arXiv:2101.06983), so the
gradient does not depend on how the batch is split.

Shapes: B runs, pairs or rows, R sentences of a run, N = B·R, or rows of the global batch, L and T
tokens, D hidden, C labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.instances.batch import LabelledPairs, MaskedBatch, SentenceRuns, TextPairs
from rungwise.models.losses.cross_entropy import TokenSums, at_least_float32, token_sums
from rungwise.models.losses.objectives import (
    MLM,
    BatchShapes,
    EncoderHead,
    Loss,
    Losses,
    Meaning,
    ModelHead,
    MoreFlops,
    Objective,
    Origin,
    Part,
)
from rungwise.models.transformer.block import Pooling, Transformer, initialise, pool, real_places
from rungwise.models.transformer.body import Body, OnBody

_PAIRED = "paired"  # the place of the second text of a pair
# The places of what is written, in sentences behind the one that is read.
_NEAR, _OWN = (-1, 1), (0,)


@dataclass(frozen=True, kw_only=True)
class SentenceHead(ModelHead):
    """The parts beside the encoder that an objective of sentence vectors needs."""

    gives_sentences: ClassVar[bool] = True
    page_name: str = "sentence encoder"
    encoders: int = 1  # 2: a second one without shared weights, `other` of the model
    writes: tuple[int | str, ...] = ()  # a GRU for each of these texts to write, in `writers`
    classifies: bool = False  # layers for the labels of pairs, `classifier` of the model


def sentence_vectors(
    encoder: nn.Module, rows: SentenceRuns[Tensor] | LabelledPairs[Tensor]
) -> Tensor:
    """Return the vectors (B, R, D) of the sentences of rows; a pair is two."""
    vectors_ND = encoder(rows.ids.flatten(0, 1), rows.lengths.flatten())
    return vectors_ND.unflatten(0, rows.lengths.shape)


def mark_paired(document_BR: Tensor, offset: int) -> Tensor:
    """Mark the sentences (B, R - |offset|) with another of their document at `offset`."""
    last = document_BR.shape[1] - abs(offset)
    first_BR, second_BR = document_BR[:, :last], document_BR[:, abs(offset) :]
    return (first_BR == second_BR) & (first_BR > 0)


def neighbours(document_BR: Tensor) -> Tensor:
    """Mark which sentences are neighbours in their document, (B, R, R)."""
    after_BRR = torch.diag_embed(mark_paired(document_BR, 1), offset=1)
    return after_BRR | after_BRR.transpose(1, 2)


def mask_diagonal(scores_BRR: Tensor) -> Tensor:
    """Replace the scores of sentences with themselves by -inf; the code of lajanugen/S2V has 0."""
    own_RR = torch.eye(scores_BRR.shape[-1], dtype=torch.bool, device=scores_BRR.device)
    return scores_BRR.masked_fill(own_RR, -torch.inf)


def _neighbour_losses(scores_BRR: Tensor, batch: SentenceRuns[Tensor]) -> Losses:
    near_BRR = neighbours(batch.document)
    # -inf for what is no candidate would make rows of no sentence NaN, in the gradient too.
    real_BR = batch.document > 0
    scores_BRR = scores_BRR.masked_fill(~real_BR[:, None] & real_BR[:, :, None], -torch.inf)
    log_BRR = at_least_float32(scores_BRR).log_softmax(dim=2)
    count_BR = near_BRR.sum(2)
    log_BR = log_BRR.masked_fill(~near_BRR, 0.0).sum(2) / count_BR.clamp(min=1)
    best_BR1 = scores_BRR.argmax(2, keepdim=True)
    correct_BR = near_BRR.gather(2, best_BR1)[:, :, 0]
    return Losses(-log_BR.sum()[None], correct_BR.sum()[None].to(log_BR.dtype))


def _choose(model: Any, rows: SentenceRuns[Tensor]) -> Tensor:
    """Return the scores (B, R, R) of sentence j as a neighbour of sentence i."""
    f_BRD, g_BRD = (sentence_vectors(each, rows) for each in (model.body, model.other))
    return mask_diagonal(f_BRD @ g_BRD.transpose(1, 2))


QUICK_THOUGHTS = Objective(
    "quick_thoughts",
    Part("neighbour", "neighbour", "Neighbours found among the sentences of a run", "sentence"),
    reads=("sentence_runs",),
    masks=False,
    loss=Loss(
        lambda batch: neighbours(batch.document).any(2).sum()[None].float(),  # () -> (1,)
        lambda model, batch: model(batch, _choose),
        _neighbour_losses,
    ),
    meaning=Meaning.ANSWERS,
    shapes=BatchShapes.UNKNOWN,
    origin=Origin(
        2018, "Logeswaran & Lee", "reads a sentence and picks its neighbour among others"
    ),
    head=SentenceHead(page_name="Quick-thoughts model", encoders=2),
)


def _count_written(offsets: tuple[int, ...], batch: SentenceRuns[Tensor]) -> Tensor:
    sums = []
    for offset in offsets:
        lengths_BR = targets(batch.lengths, offset)
        sums.append((lengths_BR * mark_paired(batch.document, offset)).sum())
    return torch.stack(sums).sum()[None].float()  # () -> (1,)


def targets(values_BR: Tensor, offset: int) -> Tensor:
    """Return the values of what is written: those of sentences that follow one at `offset`."""
    return values_BR[:, max(0, offset) : values_BR.shape[1] + min(0, offset)]


def _sum_written(write: Callable[[Any, Any], TokenSums], model: nn.Module, batch: Any) -> Losses:
    total, correct = model(batch, write)
    return Losses(total[None], correct[None])


def _write_sentences(offsets: tuple[int, ...], model: Any, rows: SentenceRuns[Tensor]) -> TokenSums:
    """Sum the losses of the words of the sentences at each offset of every sentence."""
    vectors_BRD = sentence_vectors(model.body, rows)
    pieces = []
    for offset in offsets:
        chosen_BR = mark_paired(rows.document, offset)
        places = ((vectors_BRD, -offset), (rows.ids, offset), (rows.lengths, offset))
        parts = [targets(values, place)[chosen_BR] for values, place in places]
        if len(parts[0]):
            pieces.append(_states_and_words(model, str(offset), *parts))
    if not pieces:  # no sentence has a neighbour
        return TokenSums(0 * vectors_BRD.sum(), vectors_BRD.new_zeros(()))
    return _word_sums(model, pieces)


def _make_loss(offsets: tuple[int, ...]) -> Loss:
    write = partial(_write_sentences, offsets)
    return Loss(partial(_count_written, offsets), partial(_sum_written, write))


def _write_second(model: Any, pairs: TextPairs[Tensor]) -> TokenSums:
    """Sum the losses of the words of the second text of pairs, given the first."""
    vectors_BD = model.body(pairs.ids[:, 0], pairs.lengths[:, 0])
    second = pairs.ids[:, 1], pairs.lengths[:, 1]
    return _word_sums(model, [_states_and_words(model, _PAIRED, vectors_BD, *second)])


def _states_and_words(
    model: Any, writer: str, from_ND: Tensor, ids_NL: Tensor, lengths_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the states (X, D) before each word of texts, and the words (X,)."""
    real_NL = real_places(ids_NL.shape[1], lengths_N)
    states_NLD = model.writers[writer](model.body.token_embedding(ids_NL), from_ND)
    return states_NLD[real_NL], ids_NL[real_NL]


def _word_sums(model: Any, pieces: Sequence[tuple[Tensor, Tensor]]) -> TokenSums:
    states_XD, words_X = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    weights_X = torch.ones_like(words_X, dtype=states_XD.dtype)
    return token_sums(states_XD, model.output.weight, model.output_bias, words_X, weights_X)


SKIP_THOUGHTS = replace(
    QUICK_THOUGHTS,
    name="skip_thoughts",
    tokens=Part(
        "neighbour_words", "neighbours' words", "Words of neighbours written correctly", "token"
    ),
    loss=_make_loss(_NEAR),
    meaning=Meaning.TOKENS,
    origin=Origin(2015, "Kiros et al.", "reads a sentence and writes the ones around it"),
    head=SentenceHead(page_name="Skip-thoughts model", writes=_NEAR),
)
SENTENCE_AUTOENCODER = replace(
    SKIP_THOUGHTS,
    name="sentence_autoencoder",
    tokens=Part("own_words", "own words", "Words written again correctly", "token"),
    loss=_make_loss(_OWN),
    origin=Origin(2015, "after Dai & Le", "reads a sentence and writes it again"),
    head=SentenceHead(writes=_OWN),
)


SENTENCE_TRANSLATION = replace(
    SKIP_THOUGHTS,
    name="sentence_translation",
    tokens=Part(
        "aligned_words", "aligned words", "Words of aligned texts written correctly", "token"
    ),
    reads=("aligned_lines",),
    loss=Loss(
        lambda batch: batch.lengths[:, 1].sum()[None].float(),  # () -> (1,)
        partial(_sum_written, _write_second),
    ),
    origin=Origin(2017, "after McCann et al.", "reads a sentence and writes its translation"),
    head=SentenceHead(writes=(_PAIRED,)),
)


def _judge(model: Any, pairs: LabelledPairs[Tensor]) -> Tensor:
    """Return the logits (B, C) of the labels of pairs."""
    u_BD, v_BD = sentence_vectors(model.body, pairs).unbind(1)
    return model.classifier(torch.cat([u_BD, v_BD, (u_BD - v_BD).abs(), u_BD * v_BD], dim=1))


def _pair_losses(logits_BC: Tensor, batch: LabelledPairs[Tensor]) -> Losses:
    logits_BC = at_least_float32(logits_BC)
    total = functional.cross_entropy(logits_BC, batch.label, reduction="sum")
    correct = (logits_BC.argmax(dim=1) == batch.label).sum()
    return Losses(total[None], correct[None].to(logits_BC.dtype))


INFERENCE = replace(
    QUICK_THOUGHTS,
    name="inference",
    tokens=Part("relation", "relation", "Pairs of sentences labelled correctly", "pair", 3),
    reads=("labelled_pairs",),
    loss=Loss(
        lambda batch: torch.tensor([float(len(batch.label))], device=batch.label.device),
        lambda model, batch: model(batch, _judge),
        _pair_losses,
    ),
    origin=Origin(2017, "Conneau et al.", "learns which sentences follow from which others"),
    head=SentenceHead(classifies=True),
)
SENTENCES = (QUICK_THOUGHTS, SKIP_THOUGHTS, SENTENCE_AUTOENCODER, SENTENCE_TRANSLATION, INFERENCE)


_TEMPERATURE = 0.05


class SentenceEncoder(OnBody):
    """Returns one vector per row, (B, D): the mean of its last states."""

    purpose = "vectors"
    pooling: Pooling = "mean"

    def forward(self, ids_BT: Tensor, lengths_B: Tensor) -> Tensor:
        body: Any = self.body
        return pool(body.encode(ids_BT, None, lengths_B), lengths_B, self.pooling)


@dataclass(frozen=True, kw_only=True)
class VectorHead(EncoderHead):
    """A model that reads the vector of each text from the body."""

    gives_sentences: ClassVar[bool] = True
    make: Callable[[Any, Any], nn.Module]  # takes the family and its body
    more_flops: MoreFlops = lambda *_: 0.0

    def build(self, family: Any, vocab_size: int) -> nn.Module:
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
    first_B = ((batch.segments == 0) & real_places(T, lengths_B)).sum(1)
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


def _encode_views(views: Any, model: nn.Module, batch: MaskedBatch[Tensor]) -> Tensor:
    """Return unit vectors (2, B, D)."""
    vectors = functional.normalize(at_least_float32(model(*views(batch))), dim=-1)
    return vectors.unflatten(0, (2, -1))


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


SIMCSE = replace(
    MLM,
    name="simcse",
    tokens=Part("contrastive", "contrastive", "Other views found among all texts", "text"),
    reads=("masked_blocks",),
    loss=Loss(_text_counts, partial(_encode_views, _same_row_twice), _contrastive_losses),
    meaning=Meaning.ANSWERS,
    needs_whole_batch=True,
    shapes=BatchShapes.UNKNOWN,
    head=VectorHead(
        make=lambda family, body: SentenceEncoder(body),
        dropout=0.1,
        more_flops=lambda family, V, T, M: family.stack_flops(T, False),  # the second view
    ),
)
SENTENCE_PAIRS = replace(
    SIMCSE,
    name="sentence_pairs",
    reads=("sentence_order",),
    loss=Loss(_text_counts, partial(_encode_views, _both_halves), _contrastive_losses),
    head=VectorHead(make=lambda family, body: SentenceEncoder(body)),
)


class SentenceAutoencoder(SentenceEncoder):
    """A sentence encoder, and a decoder that writes the text from its vector alone. The paper's
    attends to the vector in each layer, which is a linear map of it; here one is added to the
    input. Its share of deleted tokens is `instances.masking.rate: 0.6`."""

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
        """Return the vectors (B, D), or the loss sums of whole rows but for their first token."""
        vectors_BD = super().forward(ids_BT, lengths_B)
        if whole_BT is None or whole_lengths_B is None:
            return vectors_BD
        body: Any = self.body
        begun_BTD = body.embed(whole_BT) + self.from_vector(vectors_BD)[:, None]
        states_BTD = self.decoder(begun_BTD)[:, :-1]
        return token_sums(
            states_BTD.flatten(0, 1),  # (B, T - 1, D) -> (B·(T - 1), D)
            body.token_embedding.weight,
            None,
            whole_BT[:, 1:].flatten(),
            real_places(whole_BT.shape[1], whole_lengths_B)[:, 1:].flatten().to(states_BTD.dtype),
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


def _reconstruct(model: nn.Module, batch: MaskedBatch[Tensor]) -> Losses:
    total, correct = model(*without_masked(batch), *unmasked(batch))
    return Losses(total[None], correct[None])


def _predicted_counts(batch: MaskedBatch[Tensor]) -> Tensor:
    ids_BT, lengths_B = unmasked(batch)
    real_BT = real_places(ids_BT.shape[1], lengths_B)
    return real_BT[:, 1:].sum()[None].to(batch.masked_weights.dtype)


def _decoder_flops(family: Any, V: int, T: int, M: float) -> float:
    """Count the decoder and its output; the encoder counts as reading full rows."""
    D = family.hidden_size
    return family.stack_flops(T, True) + 6 * D * (D + V)


TSDAE = replace(
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
