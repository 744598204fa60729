"""LSTM language model: reads from left to right with a state of fixed size (Hochreiter &
Schmidhuber 1997; Sundermeyer et al. 2012, "LSTM Neural Networks for Language Modeling").

    ids ──> embedding ──> dropout ──> LSTM ──> dropout ──> ... LSTM ──> dropout ──> logits, tied

Dropout lies between the layers and never on the way from token to token (Zaremba et al. 2014,
arXiv:1409.2329). The output matrix is the embedding, with a bias (Press & Wolf 2017,
arXiv:1608.05859; Inan et al. 2017, arXiv:1611.01462), so both have the hidden size. The state at
the end of a block is where the next block of the text begins: truncated backpropagation through
time, as long as a block. It is carried over the ends of documents too, which the text marks.

Shapes: B batch, T sequence, D hidden, L layers, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from rungwise.models.cross_entropy import MOST_LOGITS, output_logits, token_sums
from rungwise.models.encoders import LayeredEncoder
from rungwise.models.family import Family
from rungwise.models.language_models import CausalModel
from rungwise.models.objectives import CAUSAL, Objective
from rungwise.models.transformer import padded_size

if TYPE_CHECKING:  # a bare machine with PyTorch has no tokenizers
    from rungwise.tokenizer.special import SpecialIds


class LstmConfig(Family):
    """The shape of an LSTM language model; the defaults are the medium one of Zaremba et al. 2014.

    `dropout` is 0 unless asked for, where the paper has 0.5: see BertConfig. Small corpora, which
    are read many times, need it.
    """

    objectives: ClassVar = (CAUSAL,)
    carries_state: ClassVar[bool] = True

    kind: Literal["lstm"] = "lstm"
    num_layers: int = Field(default=2, ge=1)
    hidden_size: int = Field(default=650, ge=1)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    initializer_range: float = Field(default=0.05, gt=0.0)  # of a uniform draw, to both sides of 0

    @property
    def depth(self) -> int:
        return self.num_layers

    @property
    def width(self) -> int:
        return self.hidden_size

    def describe(self) -> str:
        return f"{self.num_layers} layers, hidden size {self.hidden_size}"

    def page_name(self, objective: Objective) -> str:
        return "LSTM"

    def build(
        self, vocab_size: int, objective: Objective, pad_vocab_to_multiple_of: int = 1
    ) -> LstmForPretraining:
        return LstmForPretraining(
            self, vocab_size, pad_vocab_to_multiple_of=pad_vocab_to_multiple_of
        )

    def encoder(
        self, objective: Objective, vocab_size: int, dropout: float, new_tokens: int = 0
    ) -> LstmEncoder:
        config = self.model_copy(update={"dropout": dropout})
        return LstmEncoder(config, vocab_size, new_tokens)

    def trained(self, model: nn.Module, objective: Objective, special: SpecialIds) -> CausalModel:
        assert isinstance(model, LstmForPretraining)
        (end,) = special.require("end")
        table, vocab_size = model.lstm.token_embedding.weight, model.lstm.vocab_size
        return CausalModel(model, table, vocab_size, self.max_length, end)

    def flops_per_token(
        self,
        vocab_size: int,
        sequence_length: int,
        objective: Objective,
        masked_per_sequence: float = 0.0,
    ) -> float:
        """6 for each weight of a matrix that multiplies the token: four gates of each layer, from
        its input and from its state, and the output:

            6·L·8·D² + 6·D·V

        Not counted: look-ups, biases, what the gates do element by element, the optimizer.
        """
        L, D = self.num_layers, self.hidden_size
        return float(6 * L * 8 * D * D + 6 * D * vocab_size)


class Lstm(nn.Module):
    """The layers without the output. `pad_vocab_to_multiple_of`: see `Bert`."""

    def __init__(
        self, config: LstmConfig, vocab_size: int, *, pad_vocab_to_multiple_of: int = 1
    ) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        D = config.hidden_size
        self.token_embedding = nn.Embedding(padded_size(vocab_size, pad_vocab_to_multiple_of), D)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            nn.LSTM(D, D, batch_first=True) for _ in range(config.num_layers)
        )
        self.initialise()

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew, from `generator` or else from PyTorch's own."""
        bound = self.config.initializer_range
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
        self.token_embedding.weight[self.vocab_size :].zero_()

    def encode(self, ids_BT: Tensor, state_BL2D: Tensor | None) -> tuple[list[Tensor], Tensor]:
        """The embeddings and the output of each layer, (B, T, D) each, and the state after the last
        token. None for the state stands for zeros: a text begins."""
        outputs = [self.token_embedding(ids_BT)]
        after = []
        for number, layer in enumerate(self.layers):
            before = None
            if state_BL2D is not None:
                # (B, L, 2, D) -> two of (1, B, D), as PyTorch has them
                before = tuple(
                    part_BD[None].contiguous() for part_BD in state_BL2D[:, number].unbind(1)
                )
            x_BTD, state = layer(self.dropout(outputs[-1]), before)
            outputs.append(x_BTD)
            after.append(torch.cat(state).transpose(0, 1))  # two of (1, B, D) -> (B, 2, D)
        return outputs, torch.stack(after, dim=1)


class LstmForPretraining(nn.Module):
    """The LSTM with its output: the token embedding and a bias.

    `most_logits` may be set: how many logits are held at a time, see cross_entropy.py.
    """

    def __init__(
        self, config: LstmConfig, vocab_size: int, *, pad_vocab_to_multiple_of: int = 1
    ) -> None:
        super().__init__()
        self.most_logits = MOST_LOGITS
        self.lstm = Lstm(config, vocab_size, pad_vocab_to_multiple_of=pad_vocab_to_multiple_of)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        # Of one row: the output and the cell of each layer.
        self.state_shape = (config.num_layers, 2, config.hidden_size)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew, from `generator` or else from PyTorch's own."""
        self.lstm.initialise(generator)
        nn.init.zeros_(self.bias)

    def forward(
        self,
        ids_BT: Tensor,
        targets_BT: Tensor,
        weights_BT: Tensor,
        state_BL2D: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Cross entropy of the next tokens and right guesses, summed, and the state to go on."""
        outputs, after_BL2D = self.lstm.encode(ids_BT, state_BL2D)
        total, correct = token_sums(
            self.lstm.dropout(outputs[-1]).flatten(0, 1),  # (B, T, D) -> (B·T, D)
            self.lstm.token_embedding.weight,
            self.bias,
            targets_BT.flatten(),
            weights_BT.flatten(),
            self.lstm.vocab_size,
            self.most_logits,
        )
        return total, correct, after_BL2D

    def logits(
        self,
        ids_BT: Tensor,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of the token that follows each position, from a state of zeros.

        Boundaries and positions say nothing to it: the end symbol in the text does.
        """
        outputs, _ = self.lstm.encode(ids_BT, None)
        weight = self.lstm.token_embedding.weight
        return output_logits(outputs[-1], weight, self.bias, self.lstm.vocab_size)


class LstmEncoder(LayeredEncoder):
    """The LSTM without its output. Segments are not for it: the delimiter ends a text."""

    def __init__(self, config: LstmConfig, vocab_size: int, new_tokens: int = 0) -> None:
        super().__init__()
        self.lstm = Lstm(config, vocab_size + new_tokens)
        self.width = config.hidden_size
        self.causal = True
        self.max_length = config.max_length
        self.new_tokens = new_tokens

    def layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        return self.lstm.encode(ids_BT, None)[0]

    def levels(self) -> list[list[nn.Module]]:
        return [[self.lstm.token_embedding], *([layer] for layer in self.lstm.layers)]

    def word_table(self) -> Tensor:
        return self.lstm.token_embedding.weight
