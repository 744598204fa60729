"""Objectives of sentence encoders: what the vector of a sentence must tell.

    quick_thoughts         which sentences of a run are its neighbours (Logeswaran & Lee 2018, "An
                           efficient framework for learning sentence representations",
                           arXiv:1803.02893)
    skip_thoughts          the words of its neighbours (Kiros et al. 2015, "Skip-Thought Vectors",
                           arXiv:1506.06726)
    sentence_autoencoder   its own words, after Dai & Le 2015, arXiv:1511.01432
    sentence_translation   those of its translation, or of any text that is aligned with it, such as
                           its linearised parse (Subramanian et al. 2018, arXiv:1804.00079: GenSen)
    inference              how it is related to another one, a label of pairs (Conneau et al. 2017,
                           "Supervised Learning of Universal Sentence Representations from Natural
                           Language Inference Data", arXiv:1705.02364: InferSent)

Neighbours are those of a document: no target crosses its end, and a sentence without one has no
loss.

**Quick-thoughts.** S_ij scores sentence j of a run as a neighbour of sentence i; the target of row
i is uniform over the sentences before and behind it. A sentence is no neighbour of itself, so S_ii
is masked; the released code (lajanugen/S2V) sets it to 0 instead. The candidates are the sentences
of a run, so `instances.sentences` is part of the objective, and neither workers nor micro-batches
are.

**Skip-thoughts.** The loss is the sum over the words of both neighbours, each given those before it
and the vector. Rows hold no symbol for the end of a sentence, so it is not predicted.

Shapes: B runs or pairs, R sentences of a run, N = B·R, L tokens of a sentence, C labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.instances.batch import LabelledPairs, SentenceRuns, TextPairs
from rungwise.models.losses.cross_entropy import (
    MOST_LOGITS,
    TokenSums,
    at_least_float32,
    token_sums,
)
from rungwise.models.losses.objectives import (
    BatchShapes,
    Loss,
    Losses,
    Meaning,
    ModelHead,
    Objective,
    Origin,
    Part,
)
from rungwise.models.transformer.block import real_places

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
    # Layers of its own: their name in the model, and what builds them from the config.
    layers: tuple[tuple[str, Callable[[Any], nn.Module]], ...] = ()


def sentence_vectors(
    encoder: nn.Module, rows: SentenceRuns[Tensor] | LabelledPairs[Tensor]
) -> Tensor:
    """Return the vectors (B, R, D) of the sentences of rows; a pair is two."""
    vectors_ND = encoder(rows.ids.flatten(0, 1), rows.lengths.flatten())
    return vectors_ND.unflatten(0, rows.lengths.shape)


def mark_paired(document_BR: Tensor, offset: int) -> Tensor:
    """Mark the sentences (B, R - |offset|) that have another of their document at `offset` places;
    a `document_BR` of 0 is no sentence."""
    last = document_BR.shape[1] - abs(offset)
    first_BR, second_BR = document_BR[:, :last], document_BR[:, abs(offset) :]
    return (first_BR == second_BR) & (first_BR > 0)


def neighbours(document_BR: Tensor) -> Tensor:
    """Mark which sentences are neighbours in their document, (B, R, R)."""
    after_BRR = torch.diag_embed(mark_paired(document_BR, 1), offset=1)
    return after_BRR | after_BRR.transpose(1, 2)


def mask_diagonal(scores_BRR: Tensor) -> Tensor:
    """Replace the score of each sentence with itself by -inf."""
    own_RR = torch.eye(scores_BRR.shape[-1], dtype=torch.bool, device=scores_BRR.device)
    return scores_BRR.masked_fill(own_RR, -torch.inf)


def _neighbour_counts(batch: SentenceRuns[Tensor]) -> Tensor:
    return neighbours(batch.document).any(2).sum()[None].float()  # () -> (1,)


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
    loss=Loss(_neighbour_counts, lambda model, batch: model(batch, _choose), _neighbour_losses),
    meaning=Meaning.ANSWERS,
    shapes=BatchShapes.UNKNOWN,
    origin=Origin(
        2018, "Logeswaran & Lee", "reads a sentence and picks its neighbour among others"
    ),
    head=SentenceHead(page_name="Quick-thoughts model", encoders=2),
)


def _words_written(offsets: tuple[int, ...]) -> Callable[[SentenceRuns[Tensor]], Tensor]:
    def counts(batch: SentenceRuns[Tensor]) -> Tensor:
        sums = []
        for offset in offsets:
            lengths_BR = targets(batch.lengths, offset)
            sums.append((lengths_BR * mark_paired(batch.document, offset)).sum())
        return torch.stack(sums).sum()[None].float()  # () -> (1,)

    return counts


def targets(values_BR: Tensor, offset: int) -> Tensor:
    """Return the values of what is written: those of sentences that follow one at `offset`."""
    return values_BR[:, max(0, offset) : values_BR.shape[1] + min(0, offset)]


def _make_losses(write: Callable[[Any, Any], TokenSums]) -> Callable[[Any, Any], Losses]:
    def outputs(model: Any, batch: Any) -> Losses:
        total, correct = model(batch, write)
        return Losses(total[None], correct[None])

    return outputs


def _write_sentences(offsets: tuple[int, ...]) -> Callable[[Any, SentenceRuns[Tensor]], TokenSums]:
    def write(model: Any, rows: SentenceRuns[Tensor]) -> TokenSums:
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

    return write


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
    return token_sums(
        states_XD,
        model.output.weight,
        model.output_bias,
        words_X,
        torch.ones_like(words_X, dtype=states_XD.dtype),
        model.body.vocab_size,
        MOST_LOGITS,
    )


SKIP_THOUGHTS = replace(
    QUICK_THOUGHTS,
    name="skip_thoughts",
    tokens=Part(
        "neighbour_words", "neighbours' words", "Words of neighbours written correctly", "token"
    ),
    loss=Loss(_words_written(_NEAR), _make_losses(_write_sentences(_NEAR))),
    meaning=Meaning.TOKENS,
    origin=Origin(2015, "Kiros et al.", "reads a sentence and writes the ones around it"),
    head=SentenceHead(page_name="Skip-thoughts model", writes=_NEAR),
)
SENTENCE_AUTOENCODER = replace(
    SKIP_THOUGHTS,
    name="sentence_autoencoder",
    tokens=Part("own_words", "own words", "Words written again correctly", "token"),
    loss=Loss(_words_written(_OWN), _make_losses(_write_sentences(_OWN))),
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
        _make_losses(_write_second),
    ),
    origin=Origin(2017, "after McCann et al.", "reads a sentence and writes its translation"),
    head=SentenceHead(writes=(_PAIRED,)),
)


def _judge(model: Any, pairs: LabelledPairs[Tensor]) -> Tensor:
    """Return the logits (B, C) of the labels of pairs."""
    u_BD, v_BD = sentence_vectors(model.body, pairs).unbind(1)
    return model.classifier(torch.cat([u_BD, v_BD, (u_BD - v_BD).abs(), u_BD * v_BD], dim=1))


def _classifier(config: Any) -> nn.Module:
    D, C = config.hidden_size, config.classifier_size
    return nn.Sequential(nn.Linear(4 * D, C), nn.Linear(C, C), nn.Linear(C, config.num_labels))


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
    head=SentenceHead(layers=(("classifier", _classifier),)),
)
SENTENCES = (QUICK_THOUGHTS, SKIP_THOUGHTS, SENTENCE_AUTOENCODER, SENTENCE_TRANSLATION, INFERENCE)
