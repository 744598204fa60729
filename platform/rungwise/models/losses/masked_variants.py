"""Objectives of encoders that mask, other than the tokens masked.

Of tokens, with a model of their own:

replaced_tokens     ELECTRA (Clark et al. 2020, arXiv:2003.10555): a generator, a quarter as wide,
                    guesses the masked tokens; the body tells of every token whether it was replaced
causal_and_masked   GPT-BERT (Charpentier & Samuel 2024, arXiv:2410.24159): rows of one sort read
                    from the left, those of the other both ways; each state predicts the token after
permuted            XLNet (Yang et al. 2019, arXiv:1906.08237): the masked tokens one by one in a
                    random order. A query begins as the token that masking put in its place: give it
                    `mask_share: 1`, or some see what they predict
span_denoising      the spans of T5 (Raffel et al. 2020, arXiv:1910.10683) written by one stack that
                    reads both ways and writes to the right, as UniLM (arXiv:1905.03197)

Guesses and orders are drawn by numbers that hash a row and its masks: new with every mask, and the
same whatever the batch or the workers.

Of the vectors of texts, the means of a row's last states:

simcse              two passes over a row that differ only in dropout (Gao et al. 2021,
                    arXiv:2104.08821, unsupervised)
sentence_pairs      the two halves of a row, framed separately (same paper, supervised)
tsdae               a decoder that rewrites a text from its vector (Wang et al. 2021,
                    arXiv:2104.06979)

simcse and sentence_pairs compare the whole global batch: a step computes all vectors without a
graph, then those of each micro-batch with it (GradCache, Gao et al. 2021, arXiv:2101.06983), so the
gradient does not depend on how the batch is split.

Shapes: B batch, T sequence, D hidden, G hidden of the generator, V vocabulary, M masked or written
positions, N rows of the global batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.instances.batch import CausalAndMaskedBatch, MaskedBatch
from rungwise.models.losses.cross_entropy import TokenSums, at_least_float32, token_sums
from rungwise.models.losses.objectives import (
    MLM,
    BatchShapes,
    EncoderHead,
    Loss,
    Losses,
    Meaning,
    MoreFlops,
    Objective,
    Origin,
    OwnHead,
    Part,
    PretrainingLogits,
    add_part,
    masked_losses,
    only_part,
)
from rungwise.models.transformer.block import (
    Pooling,
    Transformer,
    gather_positions,
    initialise,
    pool,
    real_places,
)
from rungwise.models.transformer.body import Body, MaskedHead, OnBody, TokenOutput, boundaries

_WEIGHT = 50.0  # of the detector's loss, the paper's lambda; what is reported is without it
_NARROWER = 4  # times: the generator
_MIX = (-7046029254386353131, -4658895280553007687, -7723592293110705685)  # SplitMix64's, signed
_TEMPERATURE = 0.05  # of the scores between texts


class Detected(NamedTuple):
    """The generator's logits, and whether each token of the row was replaced."""

    mlm: Tensor  # (B, M, V)
    logits: Tensor  # (B, T) of having been replaced
    replaced: Tensor  # (B, T) bool


def shrink_family(family: Any) -> Any:
    """Return the family a quarter as wide, with whole heads of the same size."""
    heads = max(1, family.num_heads // _NARROWER)
    hidden = heads * family.hidden_size // family.num_heads
    inner = max(1, family.intermediate_size * hidden // family.hidden_size)
    sizes = {"num_heads": heads, "hidden_size": hidden, "intermediate_size": inner}
    return family.model_copy(update=sizes)


class Generator(nn.Module):
    """Layers between the token vectors and the head for tokens, both of the body's width."""

    graphs: ClassVar = ("forward",)  # see parallel.py

    def __init__(self, family: Any) -> None:
        super().__init__()
        small = shrink_family(family)
        self.narrow = nn.Linear(family.hidden_size, small.hidden_size)
        self.layers = Transformer(small.blocks(), causal=False)
        self.widen = nn.Linear(small.hidden_size, family.hidden_size)
        initialise(self, family.initializer_range)

    def forward(self, embedded_BTD: Tensor, rows: MaskedBatch[Tensor]) -> Tensor:
        """Return the vectors (B, M, D) of the masked positions."""
        narrow_BTG, where = self.narrow(embedded_BTD), boundaries(rows)
        return self.widen(self.layers(narrow_BTG, rows.lengths, where, rows.masked_positions))


class Detector(nn.Module):
    """Two layers that tell replaced tokens from the states."""

    graphs: ClassVar = ("forward",)  # see parallel.py

    def __init__(self, family: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(family.hidden_size, family.hidden_size)
        self.output = nn.Linear(family.hidden_size, 1)
        initialise(self, family.initializer_range)

    def forward(self, states_BTD: Tensor) -> Tensor:
        """Return the logits (B, T)."""
        return self.output(functional.gelu(self.dense(states_BTD)))[..., 0]


class ReplacedTokensModel(MaskedHead):
    """A body with the detector on it, and the generator with its head beside it."""

    graphs: ClassVar = ("heads", "replace")  # see parallel.py
    purpose = "detector"

    def __init__(self, family: Any, body: Any, mlm: Any) -> None:
        super().__init__(family, body, mlm)
        self.generator, self.detector = Generator(family), Detector(family)

    def forward(self, rows: MaskedBatch[Tensor]) -> Detected:
        guesses_BMV = self.fill(rows).mlm
        ids_BT = self.replace(guesses_BMV.detach(), rows)
        states_BTD = self.body.encode(ids_BT, rows.segments, rows.lengths, boundaries(rows))
        return Detected(guesses_BMV, self.detector(states_BTD), ids_BT != unmasked(rows)[0])

    def replace(self, guesses_BMV: Tensor, rows: MaskedBatch[Tensor]) -> Tensor:
        """Return the ids (B, T) with a draw of the guesses in place of the masks."""
        there_BM = rows.ids.gather(1, rows.masked_positions)
        guess_BM = _draw(guesses_BMV, row_numbers(rows))
        guess_BM = torch.where(rows.masked_weights > 0, guess_BM, there_BM)
        return rows.ids.scatter(1, rows.masked_positions, guess_BM)

    def fill(self, rows: MaskedBatch[Tensor]) -> PretrainingLogits:
        embedded_BTD = self.body.embed(rows.ids, rows.segments, rows.positions)
        return self.heads(self.generator(embedded_BTD, rows))


def _draw(logits_BMV: Tensor, uniform_BM: Tensor) -> Tensor:
    """Draw tokens (B, M) by inverting the cumulative distribution, in float64."""
    below_BMV = logits_BMV.double().softmax(dim=-1).cumsum(dim=-1)
    token_BM = torch.searchsorted(below_BMV, uniform_BM[..., None], right=True)[..., 0]
    return token_BM.clamp(max=logits_BMV.shape[-1] - 1)


def row_numbers(rows: MaskedBatch[Tensor]) -> Tensor:
    """Hash a row's tokens, which are masked, and each of these: numbers (B, M) in [0, 1)."""
    place_BM, used_BM = rows.masked_positions, (rows.masked_weights > 0).long()
    place_T = torch.arange(rows.ids.shape[1], device=rows.ids.device)
    tokens_BT = _mix(unmasked(rows)[0] * _MIX[0] + place_T) * real_tokens(rows)
    key_B = tokens_BT.sum(1) + (_mix(place_BM + _MIX[0]) * used_BM).sum(1)
    number_BM = _mix(key_B[:, None] + place_BM * _MIX[0])
    return ((number_BM >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    """Scramble the bits of int64 numbers, whose products wrap around."""
    for factor in (*_MIX[1:], 1):
        x = (x ^ (x >> 29 & (1 << 35) - 1)) * factor  # a shift that brings in zeros
    return x


def real_tokens(rows: MaskedBatch[Tensor]) -> Tensor:
    """Mark the tokens that are not padding, (B, T)."""
    if rows.document is not None:
        return rows.document > 0
    if rows.lengths is None:
        return torch.ones_like(rows.ids, dtype=torch.bool)
    return real_places(rows.ids.shape[1], rows.lengths)


def _detection_losses(outputs: Detected, batch: MaskedBatch[Tensor]) -> Losses:
    masked = masked_losses(PretrainingLogits(outputs.mlm, None), batch)
    logits_BT, real_BT = at_least_float32(outputs.logits), real_tokens(batch)
    losses_BT = functional.binary_cross_entropy_with_logits(
        logits_BT, outputs.replaced.to(logits_BT.dtype), reduction="none"
    )
    total = (losses_BT * real_BT).sum()
    total = total.detach() + _WEIGHT * (total - total.detach())  # the factor is the gradient's
    correct = (((logits_BT > 0) == outputs.replaced) & real_BT).sum()
    return add_part(masked, total, correct)


def _detection_counts(batch: MaskedBatch[Tensor]) -> Tensor:
    real = real_tokens(batch).sum().to(batch.masked_weights.dtype)
    return torch.stack((batch.masked_weights.sum(), real))


def _detection_flops(family: Any, V: int, T: int, M: float) -> float:
    """The generator and its way in and out, and the detector; the head counts as in `mlm`."""
    small, D = shrink_family(family), family.hidden_size
    way = 6 * D * small.hidden_size * (1 + M / T)
    return small.stack_flops(T, False) + way + 6 * (D * D + D)


REPLACED_TOKENS: Objective = replace(
    MLM,
    name="replaced_tokens",
    pair=Part(
        "detection", "replaced-token", "Tokens told to be replaced or original", "token", 2, 0.15
    ),
    loss=Loss(_detection_counts, sums=_detection_losses),
    origin=Origin(2020, "Clark et al.", "finds the words that a smaller model has replaced"),
    head=OwnHead(make=ReplacedTokensModel, more_flops=_detection_flops),
)


class HybridModel(MaskedHead, TokenOutput):
    """A body built to read both ways, with the head that predicts the token after a state."""

    graphs: ClassVar[tuple[str, ...]] = ("sums", "masked_sums")  # see parallel.py

    def forward(self, rows: CausalAndMaskedBatch[Tensor]) -> Losses:
        """Return the sums over the predicted tokens of both sorts of rows, (1,) each."""
        parts: list[tuple[Tensor, Tensor]] = []
        if rows.causal is not None:
            where = boundaries(rows.causal)._replace(causal=True)
            states_BTD = self.mlm.transform(self.body.encode(rows.causal.ids, None, None, where))
            parts.append(self.sums(states_BTD, rows.causal.targets, rows.causal.weights))
        if rows.masked is not None:
            masked = self.masked_sums(self.before(rows.masked), rows.masked)
            parts.append((masked.total[0], masked.correct[0]))
        total, correct = (torch.stack(each).sum()[None] for each in zip(*parts, strict=True))
        return Losses(total, correct)

    def before(self, rows: MaskedBatch[Tensor]) -> Tensor:
        """Return the states (B, M, D) before the masked tokens; the first token of a row has no
        state before it, and is never masked."""
        inputs, before_BM = (rows.ids, rows.segments, rows.lengths), rows.masked_positions - 1
        return self.body.encode(*inputs, boundaries(rows), before_BM.clamp(min=0))

    def fill(self, rows: MaskedBatch[Tensor]) -> PretrainingLogits:
        return self.heads(self.before(rows))

    def masked_sums(self, before_BMD: Tensor, rows: MaskedBatch[Tensor]) -> Losses:
        return masked_losses(self.heads(before_BMD), rows)


def _hybrid_counts(batch: CausalAndMaskedBatch[Tensor]) -> Tensor:
    weights = [
        *([] if batch.causal is None else [batch.causal.weights]),
        *([] if batch.masked is None else [batch.masked.masked_weights]),
    ]
    return torch.stack([each.sum() for each in weights]).sum()[None]


HYBRID: Objective = replace(
    MLM,
    name="causal_and_masked",
    tokens=Part(
        "causal_and_masked",
        "causal and masked",
        "Masked and next tokens predicted correctly",
        "masked or next token",
    ),
    reads=("causal_and_masked",),
    loss=Loss(_hybrid_counts),
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
        place_BM = rows.masked_positions
        ids_BM, segments_BM = rows.ids.gather(1, place_BM), rows.segments.gather(1, place_BM)
        positions_BM = place_BM if rows.positions is None else rows.positions.gather(1, place_BM)
        body = self.body
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
    return functional.pad(seen_BXT, (0, text_BX.shape[1] - T))[:, None]


def _query_flops(family: Any, V: int, T: int, M: float) -> float:
    """The queries of a row, and what all its attention costs beside that of T tokens."""
    both = T + round(M)
    return family.stack_flops(both, False) * both / T - family.stack_flops(T, False)


PERMUTED: Objective = replace(
    MLM,
    name="permuted",
    tokens=Part("permuted", "permuted", "Tokens predicted correctly in a random order", "token"),
    head=OwnHead(make=PermutedModel, more_flops=_query_flops),
    origin=Origin(2019, "after Yang et al.", "guesses words in a random order, one after another"),
)


class DenoisingModel(MaskedHead):
    """A body that writes, with the head for tokens. A [MASK] stands for any number of tokens."""

    fills_gaps: ClassVar[bool] = False

    def __init__(self, family: Any, body: Any, mlm: Any) -> None:
        super().__init__(family, body, mlm)
        body.writes = True

    def forward(self, rows: MaskedBatch[Tensor]) -> PretrainingLogits:
        """Return the logits (B, M, V) of the written tokens."""
        states_BTD = self.body.encode_layers(rows.ids, rows.segments, rows.lengths)[-1]
        return self.heads(gather_positions(states_BTD, rows.masked_positions))

    fill = forward


SPAN_DENOISING: Objective = replace(
    MLM,
    name="span_denoising",
    tokens=Part("written", "denoising", "Tokens of spans written correctly", "written token"),
    reads=("denoised_spans",),
    head=OwnHead(make=DenoisingModel),
    origin=Origin(2020, "after Raffel et al.", "writes the spans that were taken out of a text"),
)


class SentenceEncoder(OnBody):
    """Returns one vector per row, (B, D): the mean of its last states."""

    purpose = "vectors"
    pooling: Pooling = "mean"

    def forward(self, ids_BT: Tensor, lengths_B: Tensor) -> Tensor:
        return pool(self.body.encode(ids_BT, None, lengths_B), lengths_B, self.pooling)


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
    return only_part((total, correct))


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

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, rows: MaskedBatch[Tensor]
    ) -> TokenSums:
        """Return the loss sums of whole rows but for their first token."""
        vectors_BD = super().forward(*without_masked(rows))
        whole_BT, lengths_B = unmasked(rows)
        begun_BTD = self.body.embed(whole_BT) + self.from_vector(vectors_BD)[:, None]
        states_BTD = self.decoder(begun_BTD)[:, :-1]
        return token_sums(
            states_BTD.flatten(0, 1),  # (B, T - 1, D) -> (B·(T - 1), D)
            self.body.token_embedding.weight,
            None,
            whole_BT[:, 1:].flatten(),
            real_places(whole_BT.shape[1], lengths_B)[:, 1:].flatten().to(states_BTD.dtype),
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
    loss=Loss(_predicted_counts, lambda model, batch: only_part(model(batch))),
    shapes=BatchShapes.UNKNOWN,
    head=VectorHead(make=SentenceAutoencoder, more_flops=_decoder_flops),
)
TEXT_VECTORS: tuple[Objective, ...] = (SIMCSE, SENTENCE_PAIRS, TSDAE)
