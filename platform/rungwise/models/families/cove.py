"""CoVe: word vectors in context from the encoder of a translator (McCann et al. 2017, "Learned in
Translation: Contextualized Word Vectors", arXiv:1708.00107).

    source ──> word vectors ──> BiLSTM ──> BiLSTM ──> states (B, S, E) ───────────┐ attention
    target ──> vectors of the words before ──> LSTM ──> state ──> [mix of states; state] ──> word

The decoder begins with the last states of the encoder's highest layer, and reads the word before
and its own last output. Attention is the general score of Luong et al. 2015, arXiv:1508.04025:

    shares = softmax(states W_1 h)    output = tanh(W_2 [shares · states; h])

A step of word vectors before it gives the encoder fixed vectors, as GloVe's in the paper; a token
without one has zeros there. The languages share a tokenizer, and the decoder has its own vectors.

Shapes: B batch, S source, T target, M embedding size, D hidden of one direction, E = 2·D.
"""

import dataclasses
import itertools
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.tokens import SpecialIds
from rungwise.core.wording import format_count
from rungwise.instances.batch import TextPairs
from rungwise.models.family import LayeredFamily
from rungwise.models.losses.cross_entropy import TokenSums
from rungwise.models.losses.objectives import CAUSAL, BatchShapes, Meaning, Objective, Part
from rungwise.models.trained.encoders import MeanOfStates
from rungwise.models.transformer.block import draw_uniform, real_places, run_cells
from rungwise.models.transformer.body import Body, TokenOutput

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
    loss=CAUSAL.loss._replace(
        counts=lambda batch: batch.lengths[:, 1].sum()[None].float()  # () -> (1,)
    ),
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
