"""Quick-thoughts: vectors of sentences from telling their neighbours (Logeswaran & Lee 2018, "An
efficient framework for learning sentence representations", arXiv:1803.02893).

    run of sentences ──> encoder f ──> F (R, D) ──┐
                    └──> encoder g ──> G (R, D) ──┴── S = F G^T ── softmax over j ──> p(j | i)

Two encoders without shared weights read the same run of consecutive sentences. S_ij scores sentence
j as a neighbour of sentence i; the target of row i is uniform over the sentences before and behind
it in its document. Rows without a neighbour have no loss. The vector of a sentence is [f; g], each
of length 1.

A sentence is no neighbour of itself, so S_ii is masked. The released code (lajanugen/S2V) sets it
to 0 instead, which leaves it among the candidates: `own_score: zero`. Its batches of 400 sentences
run across books; here targets end where a document does. The candidates are the sentences of a
run, so `instances.sentences` is part of the objective, and neither workers nor micro-batches are.

The last state of a GRU is that of a sentence's last token, whatever the padding.

Shapes: B runs, R sentences of a run, L tokens of a sentence, N = B·R, M embedding size, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.errors import BlockError
from rungwise.models.family import Family
from rungwise.models.losses.cross_entropy import at_least_float32, padded_size
from rungwise.models.losses.objectives import Losses, Objective, Part

if TYPE_CHECKING:  # a bare machine with PyTorch has no tokenizers
    from rungwise.instances.sentence_runs import SentenceRuns
    from rungwise.tokenizer.special import SpecialIds

_SENTENCES_AT_ONCE = 256


def neighbours(document_BR: Tensor) -> Tensor:
    """Mark which sentences are neighbours in their document, (B, R, R). A `document_BR` of 0 is no
    sentence."""
    follows_BR = (document_BR[:, 1:] == document_BR[:, :-1]) & (document_BR[:, 1:] > 0)
    after_BRR = torch.diag_embed(follows_BR, offset=1)
    return after_BRR | after_BRR.transpose(1, 2)


def _counts(batch: SentenceRuns[Tensor]) -> Tensor:
    return neighbours(batch.document).any(2).sum()[None].float()  # () -> (1,)


def _losses(scores_BRR: Tensor, batch: SentenceRuns[Tensor]) -> Losses:
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
    counts=_counts,
    outputs=lambda model, batch: model(batch),
    losses=_losses,
    predicts_text=False,
    sentences=True,
)


class QuickThoughtsConfig(Family):
    """Two sentence encoders; the defaults are the paper's, of a vector of 2,400."""

    year: ClassVar[int] = 2018
    paper: ClassVar[str] = "Logeswaran & Lee"
    idea: ClassVar[str] = "reads a sentence and picks its neighbour among others"
    objectives: ClassVar = (QUICK_THOUGHTS,)

    kind: Literal["quick_thoughts"] = "quick_thoughts"
    # a GRU in one direction or two, or the sum of the word vectors
    network: Literal["gru", "two_grus", "sum"] = "two_grus"
    embedding_size: int = Field(default=620, ge=1)
    hidden_size: int = Field(default=1200, ge=1)  # of the vector of an encoder
    # a sentence's score as its own neighbour: left out, or 0 as in the released code
    own_score: Literal["masked", "zero"] = "masked"
    # weights are drawn uniformly from minus to plus this
    initializer_range: float = Field(default=0.1, gt=0.0)

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.network == "two_grus" and self.hidden_size % 2:
            raise BlockError(
                "hidden_size is divided between two directions and must be even, found "
                f"{self.hidden_size}; network gru has one direction",
                {"hidden_size": self.hidden_size + 1},
            )
        if self.network == "sum" and self.hidden_size != self.embedding_size:
            raise BlockError(
                f"network sum has vectors of embedding_size {self.embedding_size}, found "
                f"hidden_size {self.hidden_size}",
                {"hidden_size": self.embedding_size},
            )
        return self

    @property
    def depth(self) -> int:
        return 2

    @property
    def width(self) -> int:
        return self.hidden_size

    def describe(self) -> str:
        words = {"gru": "a GRU", "two_grus": "GRUs in both directions", "sum": "sums of words"}
        return f"2 encoders, {words[self.network]}, hidden size {self.hidden_size}"

    def page_name(self, objective: Objective) -> str:
        return "Quick-thoughts model"

    def build(self, vocab_size: int, objective: Objective, vocab_multiple: int = 1) -> nn.Module:
        return QuickThoughts(self, vocab_size, vocab_multiple)

    def trained(self, model: Any, objective: Objective, special: SpecialIds) -> QuickThoughtsModel:
        return QuickThoughtsModel(model)

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count the gates of both encoders, of d directions: 2·6·3·(M·D + D²/d). The scores, R·D
        per sentence, are not counted."""
        if self.network == "sum":
            return 0.0
        D, directions = self.hidden_size, 2 if self.network == "two_grus" else 1
        return float(2 * 6 * 3 * (self.embedding_size * D + D * D // directions))


class SentenceEncoder(nn.Module):
    """Word vectors, and a GRU in one direction or two, or their sum."""

    def __init__(self, config: QuickThoughtsConfig, vocab_size: int, vocab_multiple: int) -> None:
        super().__init__()
        M, D = config.embedding_size, config.hidden_size
        self.embedding = nn.Embedding(padded_size(vocab_size, vocab_multiple), M)
        directions = {"gru": 1, "two_grus": 2, "sum": 0}[config.network]
        self.directions = nn.ModuleList(
            nn.GRU(M, D // directions, batch_first=True) for _ in range(directions)
        )
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -config.initializer_range, config.initializer_range)

    def forward(self, ids_NL: Tensor, lengths_N: Tensor) -> Tensor:
        """Return the vectors (N, D); that of a sentence of no tokens means nothing."""
        place_L = torch.arange(ids_NL.shape[1], device=ids_NL.device)
        if not self.directions:
            real_NL1 = (place_L < lengths_N[:, None])[:, :, None]
            return (self.embedding(ids_NL) * real_NL1).sum(1)
        last_N = (lengths_N - 1).clamp(min=0)
        turned_NL = (last_N[:, None] - place_L).clamp(min=0)
        vectors = []
        for gru, read_NL in zip(
            self.directions, (ids_NL, ids_NL.gather(1, turned_NL)), strict=False
        ):
            states_NLD, _ = gru(self.embedding(read_NL))
            vectors.append(states_NLD[torch.arange(len(ids_NL), device=ids_NL.device), last_N])
        return torch.cat(vectors, dim=1)


class QuickThoughts(nn.Module):
    """Both encoders, and the scores of the sentences of a run."""

    def __init__(self, config: QuickThoughtsConfig, vocab_size: int, vocab_multiple: int) -> None:
        super().__init__()
        self.masks_own = config.own_score == "masked"
        self.f = SentenceEncoder(config, vocab_size, vocab_multiple)
        self.g = SentenceEncoder(config, vocab_size, vocab_multiple)

    def forward(self, rows: SentenceRuns[Tensor]) -> Tensor:
        """Return the scores (B, R, R) of sentence j as a neighbour of sentence i."""
        ids_NL, lengths_N = rows.ids.flatten(0, 1), rows.lengths.flatten()
        f_BRD, g_BRD = (
            encoder(ids_NL, lengths_N).unflatten(0, rows.lengths.shape)
            for encoder in (self.f, self.g)
        )
        return own_scores(f_BRD @ g_BRD.transpose(1, 2), self.masks_own)


def own_scores(scores_BRR: Tensor, masked: bool) -> Tensor:
    """Replace the score of each sentence with itself: -inf if `masked`, else 0."""
    own_RR = torch.eye(scores_BRR.shape[-1], dtype=torch.bool, device=scores_BRR.device)
    return scores_BRR.masked_fill(own_RR, -torch.inf if masked else 0.0)


@dataclass(frozen=True)
class QuickThoughtsModel:
    """Trained encoders as `SentenceVectors`."""

    module: QuickThoughts

    @torch.no_grad()
    def sentence_vectors(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Return [f; g] (N, 2·D) of texts, each half of length 1; a text of no tokens is zeros."""
        vectors = np.zeros((len(texts), 2 * self._width), dtype=np.float32)
        device = next(self.module.parameters()).device
        by_length = sorted((n for n in range(len(texts)) if texts[n]), key=lambda n: len(texts[n]))
        for begin in range(0, len(by_length), _SENTENCES_AT_ONCE):
            part = by_length[begin : begin + _SENTENCES_AT_ONCE]
            lengths = [len(texts[n]) for n in part]
            ids_NL = torch.zeros(len(part), max(lengths), dtype=torch.int64)
            for row, n in enumerate(part):
                ids_NL[row, : lengths[row]] = torch.tensor(texts[n])
            halves = [
                functional.normalize(encoder(ids_NL.to(device), torch.tensor(lengths).to(device)))
                for encoder in (self.module.f, self.module.g)
            ]
            vectors[part] = torch.cat(halves, dim=1).float().cpu().numpy()
        return vectors

    @property
    def _width(self) -> int:
        gru = self.module.f.directions
        size = sum(each.hidden_size for each in gru)  # pyright: ignore
        return size or self.module.f.embedding.embedding_dim
