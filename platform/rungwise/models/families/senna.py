"""SENNA's ranking model (Collobert & Weston 2008, "A unified architecture for natural language
processing", ICML; Collobert et al. 2011, "Natural language processing (almost) from scratch",
JMLR 12): a network scores windows of text above the same windows with another word in the middle.

    the N words around ──> a vector each, joined ──> x ──> HardTanh(d + H x) ──> score f(x)
    loss of a window: max(0, 1 - f(x) + f(x with a random middle word))

A score is no probability, so there is no perplexity; Turian et al. 2010 follow the training by how
many words score higher in a window than its own. The random word (instances/causal.py) may be the
word itself, as in the paper. As an encoder it gives each token its window's hidden layer, as the
paper's taggers have it. The half that learns tasks at the same time is left out.

Shapes: B batch, T sequence, N window, M size of a word vector, D hidden, V vocabulary, X tokens.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.tokens import SpecialIds
from rungwise.instances.batch import CausalBatch
from rungwise.models.families.nnlm import ContextBody
from rungwise.models.family import LayeredFamily
from rungwise.models.losses.cross_entropy import TokenSums, at_least_float32
from rungwise.models.losses.objectives import CAUSAL, BatchShapes, Meaning, Objective, Part
from rungwise.models.trained.capabilities import Texts
from rungwise.models.trained.language_models import TrainedModule
from rungwise.models.transformer.block import real_places
from rungwise.models.transformer.body import Body, OnBody

RANKING = dataclasses.replace(
    CAUSAL,
    name="ranking",
    shapes=BatchShapes.UNKNOWN,
    tokens=Part("ranking", "ranking", "Windows scored above their corruption", "window"),
    reads=("corrupted_words",),
    meaning=Meaning.ANSWERS,
)
_MOST_UNITS = 1 << 24  # of hidden layers held at a time


class SennaConfig(LayeredFamily):
    """The shape of a ranking model; the defaults are the paper's."""

    objectives: ClassVar = (RANKING,)
    rates_texts: ClassVar[bool] = False

    year: ClassVar[int] = 2008
    paper: ClassVar[str] = "Collobert & Weston"
    idea: ClassVar[str] = "tells real stretches of text from ones with a wrong word in the middle"
    page: ClassVar[str] = "SENNA"

    kind: Literal["senna"] = "senna"
    window: int = Field(default=11, ge=1)  # words it reads, the middle one included; odd
    embedding_size: int = Field(default=50, ge=1)
    hidden_size: int = Field(default=100, ge=1)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)

    @field_validator("window")
    @classmethod
    def _has_a_middle(cls, window: int) -> int:
        if window % 2 == 0:
            raise ValueError(f"expected an odd number, with a word in the middle; found {window}")
        return window

    def describe(self) -> str:
        return (
            f"windows of {self.window}, vectors of {self.embedding_size}, hidden size "
            f"{self.hidden_size}"
        )

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        return SennaForPretraining(Senna(self, vocab_size))

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return Senna(self, vocab_size)

    def trained(self, model: Any, objective: Objective, special: SpecialIds) -> "SennaModel":
        return SennaModel(model, self.max_length, *special.require("end"))

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count the hidden layer, the other word's part, both scores: 6·(N·M·D + M·D + 2·D)."""
        D = self.hidden_size
        return float(6 * D * ((self.window + 1) * self.embedding_size + 2))


class Senna(ContextBody):
    """Word vectors and the hidden layer, drawn with the variance of 1 / fan-in."""

    name: ClassVar[str] = "senna"
    causal = False

    def __init__(self, config: SennaConfig, vocab_size: int) -> None:
        M, D, N = config.embedding_size, config.hidden_size, config.window
        reach = N // 2
        offsets = range(-reach, reach + 1)
        super().__init__(vocab_size, M, config.dropout, offsets)
        self.hidden_size, self.width = D, max(M, D)
        self.hidden = nn.Linear(N * M, D)
        for weight in (self.token_embedding.weight, self.missing_embedding.weight):
            nn.init.normal_(weight, std=M**-0.5)
        nn.init.normal_(self.hidden.weight, std=(N * M) ** -0.5)
        nn.init.zeros_(self.hidden.bias)

    def middle(self, vectors: Tensor) -> Tensor:
        """Return what vectors (..., M) in the middle contribute to the hidden layer, (..., D)."""
        M = vectors.shape[-1]
        begin = len(self.offsets) // 2 * M
        return functional.linear(vectors, self.hidden.weight[:, begin : begin + M])

    def encode_layers(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, lengths_B: Tensor | None = None
    ) -> list[Tensor]:
        real_BT = None if lengths_B is None else real_places(ids_BT.shape[1], lengths_B).long()
        hidden_BTD = functional.hardtanh(self.hidden(self.context(ids_BT, real_BT)))
        return self.same_width(self.token_embedding(ids_BT), hidden_BTD)

    def levels(self) -> list[list[nn.Module]]:
        return [[self.token_embedding, self.missing_embedding], [self.hidden]]


class SennaForPretraining(OnBody):
    """The network with its score."""

    senna: Senna
    graphs: ClassVar = ("hidden", "scores")  # see parallel.py

    def __init__(self, body: Senna) -> None:
        super().__init__(body)
        self.score = nn.Linear(body.hidden_size, 1)
        nn.init.normal_(self.score.weight, std=body.hidden_size**-0.5)
        nn.init.zeros_(self.score.bias)

    def hidden(self, ids_BT: Tensor, document_BT: Tensor) -> Tensor:
        """Return d + H x of the windows in their documents, (B, T, D)."""
        return self.senna.hidden(self.senna.context(ids_BT, document_BT))

    def scores(self, hidden: Tensor) -> Tensor:
        """Return f (...) of d + H x (..., D)."""
        return self.score(functional.hardtanh(hidden))[..., 0]

    def forward(self, rows: CausalBatch[Tensor]) -> TokenSums:
        real_BT = (rows.weights > 0).long()
        document_BT = real_BT if rows.document is None else (rows.document + 1) * real_BT
        text_BTD = self.hidden(rows.ids, document_BT)
        table = self.senna.token_embedding
        noise_BTD = text_BTD + self.senna.middle(table(rows.targets) - table(rows.ids))
        margin_BT = at_least_float32(self.scores(text_BTD) - self.scores(noise_BTD))
        losses_BT = (1 - margin_BT).clamp(min=0)
        right_BT = margin_BT.detach() > 0
        return TokenSums((losses_BT * rows.weights).sum(), (right_BT * rows.weights).sum())


@dataclass(frozen=True)
class SennaModel(TrainedModule):
    """A trained model as `WordVectors` and `RanksWords`. `end` opens a document."""

    end: int

    @torch.no_grad()
    def ranks(self, texts: Texts, places: Sequence[Sequence[int]]) -> Iterator[NDArray[np.float64]]:
        senna = self.module.senna
        every_VD = senna.middle(senna.token_embedding.weight)
        at_once = max(1, _MOST_UNITS // every_VD.numel())
        for text, positions in zip(texts, places, strict=True):
            ids_1T = torch.tensor([[self.end, *text]], device=every_VD.device)
            place_X = torch.tensor(list(positions), device=every_VD.device, dtype=torch.int64) + 1
            hidden_TD = self.module.hidden(ids_1T, (ids_1T == self.end).cumsum(1))[0]
            ranks = [np.zeros(0)]
            for part_X in place_X.split(at_once):
                words_X = ids_1T[0, part_X]
                rest_XD = hidden_TD[part_X] - every_VD[words_X]
                scores_XV = self.module.scores(rest_XD[:, None] + every_VD)
                own_X1 = scores_XV.gather(1, words_X[:, None])
                higher_X = (scores_XV > own_X1).sum(1)
                ties_X = (scores_XV == own_X1).sum(1) - 1
                ranks.append((1 + higher_X + ties_X / 2).double().cpu().numpy())
            yield np.concatenate(ranks)
