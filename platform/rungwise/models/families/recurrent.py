"""Recurrent language models, which read left to right with a state of fixed size; and CoVe, from a
recurrent translator.

    ids ──> embedding ──> dropout ──> cells ──> dropout ──> ... cells ──> dropout ──> logits

    rnn    h_t = tanh(W [x_t; h_t-1] + b)   Elman 1990; Mikolov et al. 2010, "Recurrent neural
                                            network based language model"
    lstm   three gates, an additive path    Hochreiter & Schmidhuber 1997; Sundermeyer et al. 2012,
                                            "LSTM Neural Networks for Language Modeling"

The output matrix is the embedding unless `tied` is false (Press & Wolf 2017, arXiv:1608.05859; Inan
et al. 2017, arXiv:1611.01462). The state at the end of a block starts the next one, across the ends
of documents: truncated backpropagation through time over one block. Each dropout is drawn once per
block and used at all positions (Gal & Ghahramani 2016, arXiv:1512.05287).

An LSTM may also learn as a sequence autoencoder (Dai & Le 2015, "Semi-supervised Sequence
Learning", arXiv:1511.01432): it reads a document, and writes it again from its last state with the
same weights, beginning with a vector of zeros.

**AWD-LSTM**, the language model of ULMFiT (Merity et al. 2018, "Regularizing and Optimizing LSTM
Language Models", arXiv:1708.02182; Howard & Ruder 2018, arXiv:1801.06146), ends with a layer of the
embedding's size and has a dropout for each place: `recurrent_dropout` is its weight drop,
`word_dropout` its embedding dropout. Two terms join the loss in training, but not its value:

    alpha · mean of h²                  activation regularisation, h the dropped output
    beta · mean of (h_t - h_t-1)²       temporal activation regularisation, h the whole output

Gradients go back about `gradient_length` tokens, drawn anew for each span: from N(length, 5), once
in twenty from N(length / 2, 5). The paper gives each span a step and scales its learning rate; here
a step is a block, cut into spans. Its averaged SGD is left out; Howard & Ruder take Adam.

In a state (B, L, S, D) the layers are as wide as the widest, with zeros behind the narrower.

**CoVe** is word vectors in context from the encoder of a translator (McCann et al. 2017, "Learned
in Translation: Contextualized Word Vectors", arXiv:1708.00107):

    source ──> word vectors ──> BiLSTM ──> BiLSTM ──> states (B, S, E) ───────────┐ attention
    target ──> vectors of the words before ──> LSTM ──> state ──> [mix of states; state] ──> word

The decoder begins with the last states of the encoder's highest layer, and reads the word before
and its own last output. Attention is the general score of Luong et al. 2015, arXiv:1508.04025:

    shares = softmax(states W_1 h)    output = tanh(W_2 [shares · states; h])

A step of word vectors before it gives the encoder fixed vectors, as GloVe's in the paper; a token
without one has zeros there. The languages share a tokenizer, and the decoder has its own vectors.

Shapes: B batch, T sequence or target, D hidden, of one direction, L layers, S parts of a state or
tokens of a source, V vocabulary, M embedding size, E = 2·D.
"""

import dataclasses
import itertools
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.errors import format_count
from rungwise.core.tokens import SpecialIds
from rungwise.instances.batch import CausalBatch, TextPairs
from rungwise.models.family import LayeredFamily, StatefulFamily, Steps
from rungwise.models.losses.cross_entropy import TokenSums
from rungwise.models.losses.objectives import CAUSAL, BatchShapes, Meaning, Objective, Origin, Part
from rungwise.models.losses.output_layer import OutputConfig, SoftmaxOutput
from rungwise.models.trained.encoders import MeanOfStates
from rungwise.models.transformer.block import (
    WHOLE,
    Boundaries,
    draw_uniform,
    real_places,
    run_cells,
)
from rungwise.models.transformer.body import Body, NextWordModel, TokenOutput

AUTOENCODER = dataclasses.replace(
    CAUSAL,
    name="autoencoder",
    tokens=Part(
        "rewriting", "rewriting", "Tokens written again correctly", "token of a known document"
    ),
    reads=("document_rows",),
    loss=CAUSAL.loss._replace(counts=lambda batch: batch.lengths.sum()[None].float()),
    meaning=Meaning.TOKENS,
    origin=Origin(2015, "Dai & Le", "reads a text, and writes it again from memory"),
)
_SPREAD, _HALVED = 5.0, 0.05  # of the lengths of spans; how often half the length is drawn


class RecurrentFamily(StatefulFamily):
    """The keys of both. Small corpora, which are read many times, need the dropouts."""

    suggested_steps: ClassVar[Steps | None] = Steps(6e-3)
    objectives: ClassVar = (CAUSAL,)
    cells: ClassVar[type[nn.LSTM | nn.RNN]] = nn.LSTM

    num_layers: int = Field(default=2, ge=1)
    hidden_size: int = Field(default=650, ge=1)
    tied: bool = True  # use the embedding as the output matrix; a tree has none
    output: OutputConfig = SoftmaxOutput()
    # share of units dropped, between layers and before the output
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    # share of words dropped, at all their places in a block
    word_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    # share of the weights from token to token dropped
    recurrent_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    # weights are drawn uniformly from minus to plus this
    initializer_range: float = Field(default=0.05, gt=0.0)

    @property
    def starts_evenly(self) -> bool:
        return self.output.kind == "softmax"

    @property
    def sizes(self) -> list[int]:
        """The width of the embeddings and of each layer's output."""
        return [self.hidden_size] * (self.num_layers + 1)

    def describe(self) -> str:
        output = self.output.describe() + ("" if self.tied else ", output not tied")
        return f"{format_count(self.num_layers, 'layer')}, hidden size {self.hidden_size}{output}"

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        module = Autoencoder if objective is AUTOENCODER else RecurrentForPretraining
        return module(self, self.layers(vocab_size))

    def body(self, vocab_size: int, objective: Objective) -> Body:
        # An encoder has only the dropout that fine-tuning sets.
        plain = self.model_copy(update={"word_dropout": 0.0, "recurrent_dropout": 0.0})
        return plain.layers(vocab_size)

    def layers(self, vocab_size: int) -> "Recurrent":
        """Build the token table and the cells above it."""
        return Recurrent(self, vocab_size)

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count the G gates of each layer over its input of A and its state of D units, and the
        output: 6·sum of G·D·(A + D), + 6·D·V. An autoencoder reads twice."""
        sizes, reads = self.sizes, 2 if objective is AUTOENCODER else 1
        gates = 4 if self.cells is nn.LSTM else 1
        cells = sum(D * (A + D) for A, D in itertools.pairwise(sizes))
        return float(6 * reads * gates * cells + 6 * sizes[-1] * self.output.rows(V))


class LstmConfig(RecurrentFamily):
    """An LSTM language model; the defaults are the medium one of Zaremba et al. 2014,
    arXiv:1409.2329, with its output tied."""

    objectives: ClassVar = (CAUSAL, AUTOENCODER)
    year: ClassVar[int] = 2012
    paper: ClassVar[str] = "Sundermeyer et al."
    idea: ClassVar[str] = "reads word by word with a memory that lasts"
    page: ClassVar[str] = "LSTM"

    kind: Literal["lstm"] = "lstm"


class RnnConfig(RecurrentFamily):
    """A simple recurrent network; the defaults are near Mikolov's, with its output tied."""

    cells: ClassVar[type[nn.LSTM | nn.RNN]] = nn.RNN
    year: ClassVar[int] = 2010
    paper: ClassVar[str] = "Mikolov et al."
    idea: ClassVar[str] = "reads word by word with a short memory"
    page: ClassVar[str] = "RNN"

    kind: Literal["rnn"] = "rnn"
    num_layers: int = Field(default=1, ge=1)
    hidden_size: int = Field(default=200, ge=1)


class RowDropout(nn.Dropout):
    """Dropout with one mask for all positions of a row."""

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and self.p):
            return input
        kept_B1D = functional.dropout(torch.ones_like(input[:, :1]), self.p)
        return input * kept_B1D


class Recurrent(Body):
    """The layers without the output. It ignores segments: the delimiter ends a text."""

    # Gradients go back so many tokens; None: to the beginning of the row.
    gradient_length: int | None = None

    def __init__(self, config: RecurrentFamily, vocab_size: int) -> None:
        sizes, bound = config.sizes, config.initializer_range
        super().__init__(vocab_size, sizes[0], config.dropout)
        self.name = config.kind  # pyright: ignore[reportAttributeAccessIssue]
        self.hidden_size, self.width, self.widths = config.hidden_size, sizes[-1], sizes
        self.parts = 2 if config.cells is nn.LSTM else 1  # of a state: the output, and the cell
        self.dropout = RowDropout(config.dropout)
        self.word_dropout = config.word_dropout
        self.recurrent_dropout = config.recurrent_dropout
        self.layers = nn.ModuleList(
            config.cells(before, after, batch_first=True)
            for before, after in itertools.pairwise(sizes)
        )
        draw_uniform(self, bound)

    def encode(self, ids_BT: Tensor, state_BLSD: Tensor | None) -> tuple[list[Tensor], Tensor]:
        """Return the embeddings and each layer's output, (B, T, D) each, and the last state."""
        vectors_BTD, spans, after_BLSD = self.embed(ids_BT), [], state_BLSD
        for span_BTD in vectors_BTD.split(self.span_lengths(ids_BT.shape[1]), dim=1):
            outputs, after_BLSD = self.read(span_BTD, after_BLSD)
            after_BLSD = after_BLSD.detach()
            spans.append(outputs)
        assert after_BLSD is not None
        if len(spans) == 1:
            return spans[0], after_BLSD
        return [torch.cat(layer, dim=1) for layer in zip(*spans, strict=True)], after_BLSD

    def span_lengths(self, sequence_length: int) -> list[int]:
        """Return the lengths of the spans of a row that gradients do not leave."""
        span = self.gradient_length
        if span is None or not torch.is_grad_enabled():
            return [sequence_length]
        return [min(span, sequence_length - at) for at in range(0, sequence_length, span)]

    def read(
        self, vectors_BTD: Tensor, state_BLSD: Tensor | None, lengths_B: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Return these vectors, each layer's output, and the state after `lengths_B` tokens."""
        outputs, after = [vectors_BTD], []
        widest = max(self.widths[1:])
        for number, layer in enumerate(self.layers):
            size = self.widths[number + 1]
            state = None if state_BLSD is None else self._unpacked(state_BLSD[:, number, :, :size])
            input_BTD, dropped = self.drop_input(outputs[-1], number), {}
            if self.training and self.recurrent_dropout:
                weight = layer.get_parameter("weight_hh_l0")
                dropped = {"weight_hh_l0": functional.dropout(weight, self.recurrent_dropout)}
            x_BTD, state = run_cells(layer, input_BTD, lengths_B, state, dropped)
            outputs.append(x_BTD)
            end_BSD = torch.cat(state if self.parts > 1 else (state,)).transpose(0, 1)
            after.append(functional.pad(end_BSD, (0, widest - size)))
        return outputs, torch.stack(after, dim=1)  # L of (B, S, D) -> (B, L, S, D)

    def drop_input(self, input_BTD: Tensor, number: int) -> Tensor:
        """Drop units of the input of layer `number`, counted from 0."""
        return self.dropout(input_BTD)

    def read_layers(self, ids_BT: Tensor, lengths_B: Tensor | None) -> list[Tensor]:
        return self.encode(ids_BT, None)[0]

    def embed(self, ids_BT: Tensor) -> Tensor:
        """Return the vectors (B, T, D) of tokens, without the words that are dropped."""
        vector_BTD = self.token_embedding(ids_BT)
        if not (self.training and self.word_dropout):
            return vector_BTD
        kept_V = functional.dropout(vector_BTD.new_ones(self.vocab_size), self.word_dropout)
        return vector_BTD * kept_V[ids_BT][:, :, None]

    def _unpacked(self, state_BSD: Tensor) -> Any:
        """Return a layer's state in PyTorch's form: a tensor (1, B, D), or a tuple of them."""
        parts = tuple(part_BD[None].contiguous() for part_BD in state_BSD.unbind(1))
        return parts if self.parts > 1 else parts[0]


class RecurrentForPretraining(NextWordModel):
    """The layers with their output, tied or not, and a bias. The terms of AWD-LSTM are in the
    gradient alone."""

    def __init__(self, config: RecurrentFamily, body: Recurrent) -> None:
        super().__init__(body, config.output, body.width, config.initializer_range, config.tied)
        self.state_shape = (config.num_layers, body.parts, max(body.widths[1:]))  # of one row

    def forward(self, rows: CausalBatch[Tensor]) -> Any:
        outputs, after_BLSD = self.body.encode(rows.ids, rows.state)
        dropped_BTD = self.body.dropout(outputs[-1])
        total, correct = self.sums(dropped_BTD, rows.targets, rows.weights)
        if self.training and isinstance(self.body, AwdLstm):
            penalty = self.body.penalty(outputs[-1], dropped_BTD, rows.weights)
            total = total + penalty - penalty.detach()
        return total, correct, after_BLSD

    def read_block(self, ids_BT: Tensor, state_BLSD: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the input (B, T, D) of the output matrix, and the next state."""
        outputs, after_BLSD = self.body.encode(ids_BT, state_BLSD)
        return self.body.dropout(outputs[-1]), after_BLSD

    def states(self, ids_BT: Tensor, where: Boundaries = WHOLE) -> Tensor:
        """Start from a zero state; boundaries and positions are ignored."""
        return self.read_block(ids_BT, None)[0]


class Autoencoder(RecurrentForPretraining):
    """Reads a document, and writes it from its last state."""

    def forward(self, rows: Any) -> TokenSums:
        """Return the sums over all tokens of `DocumentRows`, given those before each and the state
        behind them all."""
        body = self.body
        vectors_BTD = body.embed(rows.ids)
        _, whole_BLSD = body.read(vectors_BTD, None, rows.lengths)
        before_BTD = functional.pad(vectors_BTD[:, :-1], (0, 0, 1, 0))
        outputs, _ = body.read(before_BTD, whole_BLSD)
        weights_BT = real_places(rows.ids.shape[1], rows.lengths).to(vectors_BTD.dtype)
        return self.sums(body.dropout(outputs[-1]), rows.ids, weights_BT)


class AwdLstmConfig(RecurrentFamily):
    """An AWD-LSTM; the defaults are the paper's for the Penn Treebank, 24.2 M parameters."""

    year: ClassVar[int] = 2018
    paper: ClassVar[str] = "Merity et al.; Howard & Ruder"
    idea: ClassVar[str] = "an LSTM that forgets at random while it learns, so that it learns rules"
    page: ClassVar[str] = "AWD-LSTM"
    objectives: ClassVar = (CAUSAL,)

    kind: Literal["awd_lstm"] = "awd_lstm"
    num_layers: int = Field(default=3, ge=1)
    hidden_size: int = Field(default=1150, ge=1)  # of all layers but the last
    embedding_size: int = Field(default=400, ge=1)  # also of the last layer
    dropout: float = Field(default=0.4, ge=0.0, lt=1.0)  # share of units dropped from the output
    # share of units dropped between layers
    hidden_dropout: float = Field(default=0.25, ge=0.0, lt=1.0)
    # share of units dropped from the input
    input_dropout: float = Field(default=0.4, ge=0.0, lt=1.0)
    word_dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    recurrent_dropout: float = Field(default=0.5, ge=0.0, lt=1.0)
    alpha: float = Field(default=2.0, ge=0.0)  # weight of activation regularisation
    beta: float = Field(default=1.0, ge=0.0)  # weight of temporal activation regularisation
    # tokens that gradients go back, on average; null: to the beginning of the block
    gradient_length: int | None = Field(default=70, ge=1)
    initializer_range: float = Field(default=0.1, gt=0.0)

    @property
    def sizes(self) -> list[int]:
        outer = self.embedding_size
        return [outer, *[self.hidden_size] * (self.num_layers - 1), outer]

    def describe(self) -> str:
        return f"{super().describe()}, embedding size {self.embedding_size}"

    def body(self, vocab_size: int, objective: Objective) -> Body:
        """Fine-tuning keeps the dropouts inside; it has word dropout and truncation of its own."""
        config = self.model_copy(update={"word_dropout": 0.0, "gradient_length": None})
        return config.layers(vocab_size)

    def layers(self, vocab_size: int) -> Recurrent:
        return AwdLstm(self, vocab_size)


class AwdLstm(Recurrent):
    """The layers without the output."""

    def __init__(self, config: AwdLstmConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size)
        self.input_dropout = RowDropout(config.input_dropout)
        self.hidden_dropout = RowDropout(config.hidden_dropout)
        self.gradient_length = config.gradient_length
        self.alpha, self.beta = config.alpha, config.beta

    def drop_input(self, input_BTD: Tensor, number: int) -> Tensor:
        return (self.hidden_dropout if number else self.input_dropout)(input_BTD)

    def span_lengths(self, sequence_length: int) -> list[int]:
        if not self.training or self.gradient_length is None:
            return super().span_lengths(sequence_length)
        ends = [0]
        while ends[-1] < sequence_length:
            mean = self.gradient_length / (2 if torch.rand(()) < _HALVED else 1)
            span = max(1, round(mean + _SPREAD * torch.randn(()).item()))
            ends.append(min(ends[-1] + span, sequence_length))
        return [end - begin for begin, end in itertools.pairwise(ends)]

    def penalty(self, output_BTD: Tensor, dropped_BTD: Tensor, weights_BT: Tensor) -> Tensor:
        """Return the two terms () times the sum of weights, the count that a loss is divided by."""
        active = (dropped_BTD.square().mean(-1) * weights_BT).sum()
        changed_BT = (output_BTD[:, 1:] - output_BTD[:, :-1]).square().mean(-1)
        real_BT = weights_BT[:, 1:]
        changed = (changed_BT * real_BT).sum() / real_BT.sum().clamp(min=1) * weights_BT.sum()
        return self.alpha * active + self.beta * changed


TRANSLATION = dataclasses.replace(
    CAUSAL,
    name="translation",
    tokens=Part(
        "translation",
        "translation",
        "Tokens of translations predicted correctly",
        "token of a translation",
    ),
    reads=("aligned_lines",),
    shapes=BatchShapes.UNKNOWN,
    loss=CAUSAL.loss._replace(counts=lambda batch: batch.lengths[:, 1].sum()[None].float()),
    meaning=Meaning.TOKENS,
)


class CoveConfig(LayeredFamily):
    """The translator; the defaults are the paper's, with an encoder of 3,609,600 parameters."""

    year: ClassVar[int] = 2017
    paper: ClassVar[str] = "McCann et al."
    idea: ClassVar[str] = "learns to translate; what it knows of a sentence helps other tasks"
    page: ClassVar[str] = "CoVe"
    objectives: ClassVar = (TRANSLATION,)
    rates_texts: ClassVar[bool] = False

    kind: Literal["cove"] = "cove"
    embedding_size: int = Field(default=300, ge=1)
    hidden_size: int = Field(default=300, ge=1)  # of one direction of the encoder
    num_layers: int = Field(default=2, ge=1)  # of the encoder
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)  # 0.2 in the paper; see kind `bert`
    # weights are drawn uniformly from minus to plus this
    initializer_range: float = Field(default=0.08, gt=0.0)

    @property
    def sizes(self) -> list[int]:
        """The width of the embeddings and of each layer's states."""
        return [self.embedding_size, *[2 * self.hidden_size] * self.num_layers]

    @property
    def depth(self) -> int:
        return self.num_layers + 1

    def describe(self) -> str:
        layers, vectors = format_count(self.num_layers, "layer"), self.embedding_size
        return f"{layers} a direction, hidden size {self.hidden_size}, vectors of {vectors}"

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        return Translator(self, TranslatorBody(self, vocab_size))

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return TranslatorBody(self, vocab_size)

    def trained(self, model: Any, objective: Objective, special: SpecialIds) -> MeanOfStates:
        return MeanOfStates(model.body, None, *special.require("cls", "sep"))

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count both directions and the decoder, for half of the tokens each."""
        D, E = self.hidden_size, 2 * self.hidden_size
        encoder = sum(8 * D * (before + D) for before, _ in itertools.pairwise(self.sizes))
        decoder = 4 * E * (self.embedding_size + 2 * E) + 3 * E * E + E * V
        return float(6 * (encoder + decoder) / 2)


class TranslatorBody(Body):
    """The encoder. It ignores segments: marks separate texts."""

    name: ClassVar[str] = "cove"
    causal = False

    def __init__(self, config: CoveConfig, vocab_size: int) -> None:
        super().__init__(vocab_size, config.embedding_size, config.dropout)
        self.hidden_size, self.widths = config.hidden_size, config.sizes
        self.width = config.sizes[-1]
        self.layers = nn.ModuleList(
            nn.LSTM(before, config.hidden_size, batch_first=True, bidirectional=True)
            for before, _ in itertools.pairwise(config.sizes)
        )
        draw_uniform(self, config.initializer_range)

    def encode(
        self, ids_BT: Tensor, lengths_B: Tensor | None
    ) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
        """Return embeddings and states, and the last outputs and cells (B, E) of the top layer."""
        outputs, end = [self.token_embedding(ids_BT)], None
        for layer in self.layers:
            states_BTE, end = run_cells(layer, self.dropout(outputs[-1]), lengths_B)
            outputs.append(states_BTE)
        assert end is not None
        h_BE, c_BE = (part.transpose(0, 1).flatten(1) for part in end)  # (2, B, D) -> (B, E)
        return outputs, (h_BE, c_BE)

    def read_layers(self, ids_BT: Tensor, lengths_B: Tensor | None) -> list[Tensor]:
        return self.encode(ids_BT, lengths_B)[0]


class Decoder(nn.Module):
    """Writes a text from the states of another one, word by word."""

    def __init__(self, config: CoveConfig, vocab_size: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, config.embedding_size)
        self.cell = nn.LSTMCell(config.embedding_size + width, width)
        self.score = nn.Linear(width, width, bias=False)  # W_1
        self.joined = nn.Linear(2 * width, width, bias=False)  # W_2
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, ids_BT: Tensor, states_BSE: Tensor, lengths_B: Tensor, start: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs (B, T, E) from which each of `ids_BT` is predicted, and the shares (B,
        T, S) of the states, of which rows have `lengths_B`."""
        words_BTM = self.dropout(self.embedding(ids_BT))
        before_BTM = functional.pad(words_BTM[:, :-1], (0, 0, 1, 0))
        padding_BS = ~real_places(states_BSE.shape[1], lengths_B)
        (h_BE, c_BE), output_BE = start, torch.zeros_like(start[0])
        outputs, shares = [], []
        for before_BM in before_BTM.unbind(1):
            h_BE, c_BE = self.cell(torch.cat((before_BM, output_BE), dim=1), (h_BE, c_BE))
            asked_BE1 = self.score(h_BE)[:, :, None]
            scores_BS = (states_BSE @ asked_BE1)[:, :, 0].masked_fill(padding_BS, -torch.inf)
            shares.append(scores_BS.softmax(dim=1))
            mix_BE = (shares[-1][:, None] @ states_BSE)[:, 0]
            output_BE = self.joined(torch.cat((mix_BE, h_BE), dim=1)).tanh()
            outputs.append(output_BE)
        return torch.stack(outputs, dim=1), torch.stack(shares, dim=1)


class Translator(TokenOutput):
    """The encoder, the decoder, and an output matrix of their own."""

    def __init__(self, config: CoveConfig, body: TranslatorBody) -> None:
        super().__init__(body)
        self.decoder = Decoder(config, body.vocab_size, body.width)
        draw_uniform(self.decoder, config.initializer_range)
        self.output = body.own_output(body.width, config.initializer_range)
        self.bias = nn.Parameter(torch.zeros(body.vocab_size))

    def forward(self, rows: TextPairs[Tensor]) -> TokenSums:
        outputs_BTE, _ = self.read(rows)
        weights_BT = real_places(rows.ids.shape[2], rows.lengths[:, 1]).to(outputs_BTE.dtype)
        return self.sums(self.decoder.dropout(outputs_BTE), rows.ids[:, 1], weights_BT)

    def read(self, rows: TextPairs[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the outputs of the decoder and its shares; see `Decoder`."""
        lengths_B = rows.lengths[:, 0]
        layers, end = self.body.encode(rows.ids[:, 0], lengths_B)
        return self.decoder(rows.ids[:, 1], layers[-1], lengths_B, end)
