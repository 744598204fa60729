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
loss. Each works with every encoder of families/sentence_encoder.py.

**Quick-thoughts.** S_ij scores sentence j of a run as a neighbour of sentence i; the target of row
i is uniform over the sentences before and behind it. A sentence is no neighbour of itself, so S_ii
is masked. The released code (lajanugen/S2V) sets it to 0 instead, which leaves it among the
candidates: `own_score: zero`. Its batches of 400 sentences run across books. The candidates are the
sentences of a run, so `instances.sentences` is part of the objective, and neither workers nor
micro-batches are.

**Skip-thoughts.** The loss is the sum over the words of both neighbours, each given those before it
and the vector. Rows hold no symbol for the end of a sentence, so it is not predicted.

Shapes: B runs or pairs, R sentences of a run, N = B·R, L tokens of a sentence, C labels.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rungwise.instances.batch import LabelledPairs, SentenceRuns
from rungwise.models.losses.cross_entropy import at_least_float32
from rungwise.models.losses.objectives import Losses, Objective, Origin, Part

PAIRED = "paired"  # the place of the second text of a pair
# The places of what is written, in sentences behind the one that is read.
_NEAR, _OWN = (-1, 1), (0,)
WRITES = {"skip_thoughts": _NEAR, "sentence_autoencoder": _OWN, "sentence_translation": (PAIRED,)}


def paired(document_BR: Tensor, offset: int) -> Tensor:
    """Mark the sentences (B, R - |offset|) that have another of their document at `offset` places;
    a `document_BR` of 0 is no sentence."""
    last = document_BR.shape[1] - abs(offset)
    first_BR, second_BR = document_BR[:, :last], document_BR[:, abs(offset) :]
    return (first_BR == second_BR) & (first_BR > 0)


def neighbours(document_BR: Tensor) -> Tensor:
    """Mark which sentences are neighbours in their document, (B, R, R)."""
    after_BRR = torch.diag_embed(paired(document_BR, 1), offset=1)
    return after_BRR | after_BRR.transpose(1, 2)


def own_scores(scores_BRR: Tensor, masked: bool) -> Tensor:
    """Replace the score of each sentence with itself: -inf if `masked`, else 0."""
    own_RR = torch.eye(scores_BRR.shape[-1], dtype=torch.bool, device=scores_BRR.device)
    return scores_BRR.masked_fill(own_RR, -torch.inf if masked else 0.0)


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


QUICK_THOUGHTS = Objective(
    "quick_thoughts",
    Part("neighbour", "neighbour", "Neighbours found among the sentences of a run", "sentence"),
    reads=("sentence_runs",),
    masks=False,
    counts=_neighbour_counts,
    outputs=lambda model, batch: model(batch, "choose"),
    losses=_neighbour_losses,
    predicts_text=False,
    sentences=True,
    origin=Origin(
        2018, "Logeswaran & Lee", "reads a sentence and picks its neighbour among others"
    ),
)


def _words_written(offsets: tuple[int, ...]) -> Callable[[SentenceRuns[Tensor]], Tensor]:
    def counts(batch: SentenceRuns[Tensor]) -> Tensor:
        sums = []
        for offset in offsets:
            lengths_BR = targets(batch.lengths, offset)
            sums.append((lengths_BR * paired(batch.document, offset)).sum())
        return torch.stack(sums).sum()[None].float()  # () -> (1,)

    return counts


def targets(values_BR: Tensor, offset: int) -> Tensor:
    """Return the values of what is written: those of sentences that follow one at `offset`."""
    return values_BR[:, max(0, offset) : values_BR.shape[1] + min(0, offset)]


def _written(task: str, *arguments: Any) -> Callable[[Any, Any], Losses]:
    def outputs(model: Any, batch: Any) -> Losses:
        total, correct = model(batch, task, *arguments)
        return Losses(total[None], correct[None])

    return outputs


SKIP_THOUGHTS = replace(
    QUICK_THOUGHTS,
    name="skip_thoughts",
    tokens=Part(
        "neighbour_words", "neighbours' words", "Words of neighbours written correctly", "token"
    ),
    counts=_words_written(_NEAR),
    outputs=_written("write", _NEAR),
    losses=lambda sums, batch: sums,
    predicts_text=True,
    origin=Origin(2015, "Kiros et al.", "reads a sentence and writes the ones around it"),
)
SENTENCE_AUTOENCODER = replace(
    SKIP_THOUGHTS,
    name="sentence_autoencoder",
    tokens=Part("own_words", "own words", "Words written again correctly", "token"),
    counts=_words_written(_OWN),
    outputs=_written("write", _OWN),
    origin=Origin(2015, "after Dai & Le", "reads a sentence and writes it again"),
)


SENTENCE_TRANSLATION = replace(
    SKIP_THOUGHTS,
    name="sentence_translation",
    tokens=Part(
        "aligned_words", "aligned words", "Words of aligned texts written correctly", "token"
    ),
    reads=("aligned_lines",),
    counts=lambda batch: batch.lengths[:, 1].sum()[None].float(),  # () -> (1,)
    outputs=_written("translate"),
    origin=Origin(2017, "after McCann et al.", "reads a sentence and writes its translation"),
)


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
    counts=lambda batch: torch.tensor([float(len(batch.label))], device=batch.label.device),
    outputs=lambda model, batch: model(batch, "judge"),
    losses=_pair_losses,
    origin=Origin(2017, "Conneau et al.", "learns which sentences follow from which others"),
)
SENTENCES = (QUICK_THOUGHTS, SKIP_THOUGHTS, SENTENCE_AUTOENCODER, SENTENCE_TRANSLATION, INFERENCE)
