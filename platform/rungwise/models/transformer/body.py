"""The body of a model and its outputs in pretraining: the parts that families share.

    ids ──> body: table of tokens, layers ──> states (B, T, E) ──> heads of the objective

Pretraining and fine-tuning keep the body under the same name in the state dict, so weights load
unchanged.

Shapes: B batch, T sequence, D hidden, E width of a state, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rungwise.instances.batch import CausalBatch, MaskedBatch
from rungwise.models.losses.cross_entropy import (
    TokenSums,
    at_least_float32,
    output_logits,
    sum_weighted_losses,
    token_sums,
)
from rungwise.models.losses.objectives import PretrainingLogits
from rungwise.models.losses.output_layer import OutputConfig, Text, WordClasses, WordTree
from rungwise.models.transformer.block import (
    WHOLE,
    Boundaries,
    Transformer,
    initialise,
    keys_to_write,
    look_up_positions,
)


class Body(nn.Module, ABC):
    """A token embedding and the layers above it. `hidden_size` is D, that of one direction; `width`
    is E, that of a state. With `causal`, a state depends only on its token and those before it.
    A module may replace the `table` of tokens."""

    name: ClassVar[str]
    causal: bool = True
    pools: ClassVar[bool] = False  # whether pretraining may put a layer on the first state
    widths: Sequence[int] = ()  # of the embeddings and each layer, if they differ

    def __init__(
        self, vocab_size: int, hidden_size: int, dropout: float, table: Any = None
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.hidden_size = self.width = hidden_size
        self.token_embedding: Any = table or nn.Embedding(vocab_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def own_output(self, width: int, bound: float) -> nn.Linear:
        """Return an untied output matrix (V, `width`), uniform from -`bound` to `bound`."""
        output = nn.Linear(width, self.vocab_size, bias=False)
        nn.init.uniform_(output.weight, -bound, bound)
        return output

    def word_table(self) -> Tensor:
        """Return the tensor with a row per token: a parameter, or the fixed spelling table."""
        return self.token_embedding.weight

    def encode_layers(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, lengths_B: Tensor | None = None
    ) -> list[Tensor]:
        """Return the embeddings and each layer's states, (B, T, E) each; see `Encoder`."""
        return self.read_layers(ids_BT, lengths_B)

    def read_layers(self, ids_BT: Tensor, lengths_B: Tensor | None) -> list[Tensor]:
        """Return the same, of a body that ignores segments."""
        raise NotImplementedError

    def levels(self) -> list[list[nn.Module]]:
        """Return the modules with parameters, lowest first: the embeddings, then each layer."""
        return [[self.token_embedding], *([layer] for layer in getattr(self, "layers", ()))]


class TransformerBody(Body):
    """One stack of blocks over a row of embedded tokens; a family may have tables of segments and
    positions, and a norm of their sum."""

    graphs: ClassVar = ("embed",)  # see parallel.py
    segment_embedding: nn.Embedding | None
    position_embedding: nn.Embedding | None
    embedding_norm: nn.Module | None
    transformer: Transformer
    writes = False  # if set, attention in the second text is causal (`keys_to_write`)

    def __init__(self, config: Any, vocab_size: int) -> None:
        super().__init__(vocab_size, config.hidden_size, config.dropout)
        self.segment_embedding = self.position_embedding = self.embedding_norm = None

    def embed(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, positions_BT: Tensor | None = None
    ) -> Tensor:
        """Return the input of the stack (B, T, D). Segments default to 0, positions to 0, 1, 2,
        ...; a family may ignore both."""
        sum_BTD = self.token_embedding(ids_BT)
        if (table := self.segment_embedding) is not None:
            sum_BTD = sum_BTD + (table.weight[0] if segments_BT is None else table(segments_BT))
        if (position_BTD := self.position_vectors(ids_BT.shape[1], positions_BT)) is not None:
            sum_BTD = sum_BTD + position_BTD
        return self.dropout(
            sum_BTD if self.embedding_norm is None else self.embedding_norm(sum_BTD)
        )

    def position_vectors(self, length: int, positions_BT: Tensor | None = None) -> Tensor | None:
        """Return the position vectors, (T, D) or (B, T, D), if they are added to tokens."""
        table = self.position_embedding
        return None if table is None else look_up_positions(table, length, positions_BT)

    def embeddings(self) -> list[nn.Module]:
        """Return the modules with parameters below the stack."""
        tables = (self.token_embedding, self.segment_embedding, self.position_embedding)
        return [each for each in (*tables, self.embedding_norm) if each is not None]

    def encode(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
        where: Boundaries = WHOLE,
        chosen_BM: Tensor | None = None,
    ) -> Tensor:
        """Return the last layer's states: (B, T, D), or (B, M, D) of the chosen positions only.
        `lengths_B` counts the real tokens of each row; it is None without padding, in packed rows,
        where padding is a document, and for a causal body. States at padding are meaningless."""
        embedded_BTD = self.embed(ids_BT, segments_BT, where.positions)
        return self.transformer(embedded_BTD, lengths_B, where, chosen_BM)

    def encode_layers(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, lengths_B: Tensor | None = None
    ) -> list[Tensor]:
        embedded_BTD = self.embed(ids_BT, segments_BT)
        if self.writes and segments_BT is not None:  # else there is one text, read both ways
            visible = keys_to_write(segments_BT, lengths_B)
            return self.transformer.layers(embedded_BTD, visible=visible)
        return self.transformer.layers(embedded_BTD, None if self.causal else lengths_B)

    def levels(self) -> list[list[nn.Module]]:
        return [self.embeddings(), *blocks_by_layer([self.transformer])]


class OnBody(nn.Module):
    """A module with a body, registered under the body's name. `purpose` is what it is for, by which
    counterpart.py finds a class of transformers; None if there is none."""

    purpose: Any = None

    def __init__(self, body: Body) -> None:
        super().__init__()
        self._body = body.name
        self.add_module(body.name, body)

    @property
    def body(self) -> Any:  # its family's
        return getattr(self, self._body)

    def word_bias(self) -> Tensor | None:
        """Return the output bias (V,), or None."""
        return None

    @torch.no_grad()
    def set_word_shares(self, shares_V: Tensor) -> bool:
        """Let the output predict these shares (V,) before training; False without a bias."""
        if (bias_V := self.word_bias()) is not None:
            bias_V.copy_(shares_V.log())
        return bias_V is not None


class MaskedHead(OnBody, ABC):
    """An encoder family's body with its head for tokens. With `fills_gaps`, [MASK] is a token."""

    fills_gaps: ClassVar[bool] = True
    graphs: ClassVar[tuple[str, ...]] = ("heads",)  # see parallel.py

    def __init__(self, family: Any, body: Any, mlm: Any) -> None:
        super().__init__(body)
        self.mlm = mlm
        initialise(self.mlm, family.initializer_range)

    @abstractmethod
    def fill(self, rows: MaskedBatch[Tensor]) -> PretrainingLogits:
        """Return the logits (B, M, V) of the masked tokens."""

    def heads(self, states_BMD: Tensor) -> PretrainingLogits:
        return PretrainingLogits(self.mlm(states_BMD, self.body.word_table()), None)

    def word_bias(self) -> Tensor:
        return self.mlm.bias


class TokenOutput(OnBody):
    """Predicts a token at every position, by the token embedding or an `output` of its own, with a
    bias if it has one. `factors` replaces the softmax, see output_layer.py."""

    graphs: ClassVar[tuple[str, ...]] = ("sums",)  # see parallel.py

    def __init__(self, body: Body) -> None:
        super().__init__(body)
        self.output: nn.Linear | None = None
        self.bias: nn.Parameter | None = None
        self.factors: WordClasses | WordTree | None = None
        # log-probabilities (X, V) of the next tokens by another model, to which logits are added
        self.beside: Callable[[Tensor], Tensor] | None = None

    def read_text(self, text: Text) -> None:
        """Read the training text, in which the end symbol opens documents, before training."""
        if self.factors is not None:
            self.factors.arrange(text, self)

    def output_table(self) -> Tensor:
        """Return the output matrix (V, D): the token embedding unless it is untied."""
        table = self.body.token_embedding if self.output is None else self.output
        return table.weight

    def word_bias(self) -> Tensor | None:
        return self.bias

    def set_word_shares(self, shares_V: Tensor) -> bool:
        if self.factors is None:
            return super().set_word_shares(shares_V)
        self.factors.set_word_shares(shares_V, self.word_bias())
        return True

    def sums(self, states_BTD: Tensor, targets_BT: Tensor, weights_BT: Tensor) -> TokenSums:
        """Sum the cross entropy of the targets, given the input of the output matrix."""
        states_XD = states_BTD.flatten(0, 1)  # (B, T, D) -> (B·T, D)
        words, targets = (self.output_table(), self.word_bias()), targets_BT.flatten()
        if self.factors is not None:
            return self.factors.sums(states_XD, words, targets, weights_BT.flatten())
        return token_sums(states_XD, *words, targets, weights_BT.flatten())

    def to_logits(self, states_BTD: Tensor) -> Tensor:
        """Return the logits (B, T, V), given the input of the output matrix."""
        words = self.output_table(), self.word_bias()
        if self.factors is not None:
            log_XV = self.factors.log_probabilities(states_BTD.flatten(0, -2), words)
            return log_XV.unflatten(0, states_BTD.shape[:-1])
        return output_logits(states_BTD, *words)


class NextTokenModel(TokenOutput):
    """Predicts the next token in packed blocks."""

    purpose = "next"

    def states(self, ids_BT: Tensor, where: Boundaries = WHOLE) -> Tensor:
        """Return the input (B, T, D) of the output matrix: by default the last layer's states."""
        return self.body.encode(ids_BT, None, None, where)

    def forward(self, rows: CausalBatch[Tensor]) -> TokenSums:
        if self.beside is not None:
            logits_XV = self.logits(rows.ids, boundaries(rows)).flatten(0, 1)
            return sum_weighted_losses(logits_XV, rows.targets.flatten(), rows.weights.flatten())
        states_BTD = self.states(rows.ids, boundaries(rows))
        return self.sums(states_BTD, rows.targets, rows.weights)

    def logits(self, ids_BT: Tensor, where: Boundaries = WHOLE) -> Tensor:
        """Return the logits (B, T, V) of the token that follows each position."""
        logits_BTV = self.to_logits(self.states(ids_BT, where))
        if self.beside is None:
            return logits_BTV
        return at_least_float32(logits_BTV) + self.beside(ids_BT).view(logits_BTV.shape)


class NextWordModel(NextTokenModel):
    """Predicts the next token by an output layer that is a value of the recipe (output_layer.py),
    with a bias; the words' rows are the token table if `tied`."""

    graphs: ClassVar[tuple[str, ...]] = ("states", "sums")  # see parallel.py

    def __init__(
        self, body: Body, output: OutputConfig, width: int, bound: float, tied: bool = False
    ) -> None:
        super().__init__(body)
        has_rows = output.kind != "tree"
        if has_rows and not tied:
            self.output = body.own_output(width, bound)
        if has_rows:
            self.bias = nn.Parameter(torch.zeros(body.vocab_size))
        self.factors = output.build(body.vocab_size, width, bound)


def boundaries(rows: CausalBatch[Tensor] | MaskedBatch[Tensor]) -> Boundaries:
    """Return where documents lie in rows of a batch."""
    return Boundaries(rows.document, rows.positions, rows.starts)


def blocks_by_layer(stacks: Sequence[Transformer]) -> list[list[nn.Module]]:
    """Group the blocks of parallel stacks by layer; the final norms go to the highest."""
    layers = [list(blocks) for blocks in zip(*(stack.blocks for stack in stacks), strict=True)]
    layers[-1] += [stack.final_norm for stack in stacks]
    return layers
