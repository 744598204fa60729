"""Networks that read a window of words: the n - 1 words before one to predict it, or the words on
both sides of it to rank it.

**Neural probabilistic language model** (Bengio et al. 2003, "A Neural Probabilistic Language
Model", JMLR 3), with one hidden layer:

    the n - 1 words before ──> C, a vector each ──> x, concatenated, the nearest first
        ──> o = tanh(d + H x)
        ──> y = b + W x + U o,  one for each word; softmax

[W U] is one output matrix over [x; o]; with `direct` false there is no W.

**Log-bilinear language model** (Mnih & Hinton 2007, "Three new graphical models for statistical
language modelling", ICML): a linear map of the words before predicts the vector of the next.

    the n - 1 words before ──> r_1 ... r_n-1, a vector each ──> r = sum of C_i r_i
        ──> r · r_w + b_w,  one for each word; softmax

The words' rows of the output are their input vectors unless `tied` is false (Mnih & Teh 2012,
arXiv:1206.6426). With a tree as output it is HLBL (Mnih & Hinton 2008), there with diagonal C_i.

**Neural bigram model** (Xu & Rudnicky 2000, "Can artificial neural networks learn language
models?", ICSLP): p(j | i) = softmax over j of W[i, j] + b[j]. Its optimum is the relative frequency
of each pair, so the training loss falls to the conditional entropy of the text and never below.

**SENNA's ranking model** (Collobert & Weston 2008, "A unified architecture for natural language
processing", ICML; Collobert et al. 2011, "Natural language processing (almost) from scratch", JMLR
12): a network scores windows of text above the same windows with another word in the middle.

    the N words around ──> a vector each, joined ──> x ──> HardTanh(d + H x) ──> score f(x)
    loss of a window: max(0, 1 - f(x) + f(x with a random middle word))

A score is no probability, so there is no perplexity; Turian et al. 2010 follow the training by how
many words score higher in a window than its own. The random word (instances/texts.py) may be the
word itself, as in the paper. As an encoder it gives each token its window's hidden layer, as the
paper's taggers have it. The half that learns tasks at the same time is left out.

All read the packed blocks of GPT. But for the bigram model, a context does not cross the beginning
of its document or block: a learnt vector stands for each missing word.

Shapes: B batch, T sequence, N order or window, M size of a word vector, D hidden, U distinct words,
V vocabulary, X tokens.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.arrays import Floats
from rungwise.core.tokens import SpecialIds
from rungwise.instances.batch import CausalBatch
from rungwise.models.family import Family, LayeredFamily, Steps
from rungwise.models.losses.cross_entropy import TokenSums, at_least_float32
from rungwise.models.losses.objectives import CAUSAL, BatchShapes, Meaning, Objective, Part
from rungwise.models.losses.output_layer import OutputConfig, SoftmaxOutput
from rungwise.models.trained.capabilities import Texts
from rungwise.models.trained.language_models import CausalModel, TrainedModule
from rungwise.models.transformer.block import Boundaries, draw_uniform, real_places
from rungwise.models.transformer.body import Body, NextWordModel, OnBody

_MOST_UNITS = 1 << 24  # of hidden layers held at a time


class ContextFamily(LayeredFamily):
    """The keys of models that read the n - 1 words before."""

    suggested_steps: ClassVar[Steps | None] = Steps(3e-3)
    objectives: ClassVar = (CAUSAL,)

    order: int = Field(default=5, ge=2)  # n: it reads the n - 1 words before
    embedding_size: int = Field(default=60, ge=1)
    # on the words' vectors and the hidden layer; the paper has none and stops early
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    # weights are drawn uniformly from minus to plus this
    initializer_range: float = Field(default=0.1, gt=0.0)
    output: OutputConfig = SoftmaxOutput()

    @property
    def compiles(self) -> bool:
        return self.output.kind == "softmax"

    @property
    def starts_evenly(self) -> bool:
        return self.output.kind == "softmax"

    @property
    def offsets(self) -> range:
        """The places of the words that it reads, from the last one, the nearest first."""
        return range(0, 1 - self.order, -1)

    @property
    def context_size(self) -> int:
        """The size (N-1)·M of x."""
        return (self.order - 1) * self.embedding_size

    def trained(self, model: Any, objective: Objective, special: SpecialIds) -> CausalModel:
        (end,) = special.require("end")
        # A position reads n - 1 words: itself and the n - 2 before it.
        return CausalModel(model, self.max_length, end, reach=self.order - 2)


class NnlmConfig(ContextFamily):
    """The shape of a neural n-gram model; the defaults are MLP1 of the paper's table 1."""

    year: ClassVar[int] = 2003
    paper: ClassVar[str] = "Bengio et al."
    idea: ClassVar[str] = "a network that guesses the next word from the few before it"
    page: ClassVar[str] = "NNLM"

    kind: Literal["nnlm"] = "nnlm"
    hidden_size: int = Field(default=50, ge=1)
    direct: bool = True  # also connect the words with the output directly, past the hidden layer

    @property
    def output_size(self) -> int:
        """The columns of the output matrix: of [W U], or of U alone."""
        return self.hidden_size + (self.context_size if self.direct else 0)

    def describe(self) -> str:
        past = "with" if self.direct else "without"
        return (
            f"order {self.order}, vectors of {self.embedding_size}, hidden size "
            f"{self.hidden_size}, {past} direct connections{self.output.describe()}"
        )

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        body = Nnlm(self, vocab_size)
        return NextWordModel(body, self.output, self.output_size, self.initializer_range)

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return Nnlm(self, vocab_size)

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count H and the output matrix: 6·((n-1)·M·D + V·((n-1)·M + D)), or V·D without W."""
        hidden = self.context_size * self.hidden_size
        return float(6 * (hidden + self.output.rows(V) * self.output_size))


class ContextBody(Body):
    """The vectors of the words at `offsets` from each, joined; a learnt one where none is."""

    def __init__(
        self, vocab_size: int, embedding_size: int, dropout: float, offsets: Sequence[int]
    ) -> None:
        super().__init__(vocab_size, embedding_size, dropout)
        self.offsets = tuple(offsets)
        self.missing_embedding = nn.Embedding(1, embedding_size)

    def context(self, ids_BT: Tensor, document_BT: Tensor | None = None) -> Tensor:
        """Return x (B, T, O·M) at each token: the vectors at the offsets in its document."""
        B, T = ids_BT.shape
        vector_BTM = self.token_embedding(ids_BT)
        missing_M = self.missing_embedding.weight[0].to(vector_BTM.dtype)
        # Pad the block by as many vectors as its first and last token lack.
        before, after = max(0, -min(self.offsets)), max(0, *self.offsets)
        ends = [missing_M.expand(B, count, -1) for count in (before, after)]
        padded = torch.cat((ends[0], vector_BTM, ends[1]), dim=1)
        parts: list[Tensor] = []
        for offset in self.offsets:
            begin = before + offset
            part_BTM = padded[:, begin : begin + T]
            if document_BT is not None and offset:
                shifted_BU = functional.pad(document_BT, (before, after), value=-1)
                same_BT = shifted_BU[:, begin : begin + T] == document_BT
                part_BTM = torch.where(same_BT[:, :, None], part_BTM, missing_M)
            parts.append(part_BTM)
        return self.dropout(torch.cat(parts, dim=-1))

    def same_width(self, *layers_BTX: Tensor) -> list[Tensor]:
        """Pad layers with zeros to the width of a state."""
        return [functional.pad(each, (0, self.width - each.shape[-1])) for each in layers_BTX]


class Nnlm(ContextBody):
    """C and H. Layers are padded with zeros to the wider one, because mixing layers adds them."""

    name: ClassVar[str] = "nnlm"

    def __init__(self, config: NnlmConfig, vocab_size: int) -> None:
        M, D, bound = config.embedding_size, config.hidden_size, config.initializer_range
        super().__init__(vocab_size, M, config.dropout, config.offsets)
        self.hidden_size, self.width = D, max(M, D)
        self.direct = config.direct
        self.hidden = nn.Linear(config.context_size, D)
        draw_uniform(self, bound)
        nn.init.zeros_(self.hidden.bias)

    def activate(self, x_BTX: Tensor) -> Tensor:
        """Return o (B, T, D) of x."""
        return self.dropout(torch.tanh(self.hidden(x_BTX)))

    def encode(self, ids_BT: Tensor, _: None, __: None, where: Boundaries) -> Tensor:
        """Return what the output matrix multiplies: [x; o], or o alone without `direct`."""
        x_BTX = self.context(ids_BT, where.document)
        o_BTD = self.activate(x_BTX)
        return torch.cat((x_BTX, o_BTD.to(x_BTX.dtype)), dim=-1) if self.direct else o_BTD

    def read_layers(self, ids_BT: Tensor, lengths_B: Tensor | None) -> list[Tensor]:
        return self.same_width(self.token_embedding(ids_BT), self.activate(self.context(ids_BT)))

    def levels(self) -> list[list[nn.Module]]:
        return [[self.token_embedding, self.missing_embedding], [self.hidden]]


class LogBilinearConfig(ContextFamily):
    """The shape of a log-bilinear model; the defaults are the paper's."""

    year: ClassVar[int] = 2007
    paper: ClassVar[str] = "Mnih & Hinton"
    idea: ClassVar[str] = "adds up the words before it, each by its place, to guess the next"
    page: ClassVar[str] = "log-bilinear model"

    kind: Literal["log_bilinear"] = "log_bilinear"
    order: int = Field(default=6, ge=2)  # n: it reads the n - 1 words before
    embedding_size: int = Field(default=100, ge=1)
    tied: bool = True  # use the input vectors as the output matrix; a tree has none

    @property
    def width(self) -> int:
        return self.embedding_size

    def describe(self) -> str:
        tied = "" if self.tied else ", output not tied"
        return f"order {self.order}, vectors of {self.embedding_size}{self.output.describe()}{tied}"

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        body = LogBilinear(self, vocab_size)
        sizes = self.embedding_size, self.initializer_range
        return NextWordModel(body, self.output, *sizes, self.tied)

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return LogBilinear(self, vocab_size)

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count the maps and the output: 6·((n-1)·M² + V·M)."""
        return float(6 * self.embedding_size * (self.context_size + self.output.rows(V)))


class LogBilinear(ContextBody):
    """The vectors of words and the maps C_i."""

    name: ClassVar[str] = "log_bilinear"

    def __init__(self, config: LogBilinearConfig, vocab_size: int) -> None:
        super().__init__(vocab_size, config.embedding_size, config.dropout, config.offsets)
        self.maps = nn.Linear(config.context_size, config.embedding_size, bias=False)
        draw_uniform(self, config.initializer_range)

    def predict(self, ids_BT: Tensor, document_BT: Tensor | None = None) -> Tensor:
        """Return r (B, T, M) at each token."""
        return self.maps(self.context(ids_BT, document_BT))

    def encode(self, ids_BT: Tensor, _: None, __: None, where: Boundaries) -> Tensor:
        return self.predict(ids_BT, where.document)

    def read_layers(self, ids_BT: Tensor, lengths_B: Tensor | None) -> list[Tensor]:
        return [self.token_embedding(ids_BT), self.predict(ids_BT)]

    def levels(self) -> list[list[nn.Module]]:
        return [[self.token_embedding, self.missing_embedding], [self.maps]]


class BigramConfig(Family):
    """A neural bigram model; it has no sizes but the vocabulary's."""

    objectives: ClassVar = (CAUSAL,)
    year: ClassVar[int] = 2000
    paper: ClassVar[str] = "Xu & Rudnicky"
    idea: ClassVar[str] = "a network that guesses the next word from the one before"
    page: ClassVar[str] = "neural bigram model"

    kind: Literal["bigram"] = "bigram"

    @property
    def compiles(self) -> bool:
        return False  # the number of distinct words differs

    def describe(self) -> str:
        return "order 2, 1 weight for each pair of words"

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        return Bigram(vocab_size)

    def trained(self, model: Any, objective: Objective, special: SpecialIds) -> "BigramModel":
        return BigramModel(model, *special.require("end"))

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count one product by each weight of a row, which is looked up: 6·V."""
        return float(6 * V)


class Bigram(nn.Module):
    """The weights W and b; W is zeros at the start."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.pairs = nn.Embedding(vocab_size, vocab_size)
        nn.init.zeros_(self.pairs.weight)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, rows: CausalBatch[Tensor]) -> TokenSums:
        words_U, place_X = rows.ids.flatten().unique(return_inverse=True)
        targets_X, weights_X = rows.targets.flatten(), rows.weights.flatten()
        logits_UV = at_least_float32(self.logits(words_U))
        losses_X = logits_UV.logsumexp(1)[place_X] - logits_UV[place_X, targets_X]
        right_X = logits_UV.argmax(1)[place_X] == targets_X
        return TokenSums((losses_X * weights_X).sum(), (right_X * weights_X).sum())

    @torch.no_grad()
    def set_word_shares(self, shares_V: Tensor) -> bool:
        self.bias.copy_(shares_V.log())
        return True

    def logits(self, ids: Tensor) -> Tensor:
        """Return the logits (..., V) of the token that follows each one."""
        return functional.embedding(ids, self.pairs.weight) + self.bias


@dataclass(frozen=True)
class BigramModel:
    """A trained model as `LanguageModel`; it has no word vectors. `end` opens a document."""

    module: Bigram
    end: int

    is_exact: ClassVar[bool] = True

    @property
    def vocab_size(self) -> int:
        return len(self.module.bias)

    @torch.no_grad()
    def log_probabilities(self, texts: Sequence[Sequence[int]]) -> list[Floats]:
        scores = []
        for text in texts:
            ids = torch.tensor([self.end, *text], device=self.module.bias.device)
            words_U, place_N = ids[:-1].unique(return_inverse=True)
            log_UV = self.module.logits(words_U).float().log_softmax(1)
            scores.append(log_UV[place_N, ids[1:]].double().cpu().numpy())
        return scores

    def next_logits(self, ids_BT: Tensor) -> Tensor:
        return self.module.logits(ids_BT)


RANKING = dataclasses.replace(
    CAUSAL,
    name="ranking",
    shapes=BatchShapes.UNKNOWN,
    tokens=Part("ranking", "ranking", "Windows scored above their corruption", "window"),
    reads=("corrupted_words",),
    meaning=Meaning.ANSWERS,
)


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

    def read_layers(self, ids_BT: Tensor, lengths_B: Tensor | None) -> list[Tensor]:
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
    def ranks(self, texts: Texts, places: Sequence[Sequence[int]]) -> Iterator[Floats]:
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
