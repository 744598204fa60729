"""ELMo's bidirectional language model, of LSTMs or of Transformers (Peters et al. 2018, "Deep
contextualized word representations", arXiv:1802.05365).

**Two Transformers**, one left to right and one right to left, with concatenated states, are an
alternative to BERT:

    stream         x0   x1   x2  ...  xT        ids = x0 .. xT-1, targets = x1 .. xT
    left to right  f_t reads  ids[0 .. t]      = x0 .. xt
    right to left  b_t reads  targets[t .. T)  = xt+1 .. xT, from the end
    predicts       targets[t] from f_t and b_{t+1}: everything but xt+1 itself

The directions share only the token embedding, which is also the output. The last token of a
document has nothing on its right: its b is zero. Rows are reversed within their real tokens, so
that padding stays at the end and a causal kernel needs no mask for it.

**ELMo** is after the release of its authors, allenai/bilm-tf. Its layers are LSTMs with projected
output (Sak et al. 2014, arXiv:1402.1128) and clipped values.

    bytes of a token ──> embedding (N, C, K) ──> the filters of each width, max over positions
        ──> ReLU ──> (N, F) ──> highways ──> projection ──> x

    x ──┬──> LSTM ──> LSTM + input ──> logits of the next token
        └──> LSTM ──> LSTM + input ──> logits of the token before

A token is spelt in 261 symbols, the 256 bytes and the five below: a mark, its bytes, a mark, and
padding to C, which the CNN reads like any other symbol (Kim et al. 2016, arXiv:1508.06615). The
spelling is a buffer beside the weights, filled before training, so using them needs no tokenizer.

The directions share only the token vectors and the output. The loss is the mean of both over all
tokens, as in the release; the paper sums them. Fine-tuning reads the paper's 2·L + 1 vectors as L +
1 layers, where layer 0 is the token's vector twice.

The left-to-right state is carried from block to block (training/state.py). The release also carries
the other one, but where blocks overlap by a token, that has read what it predicts; here it starts
from zero in each block. The release samples 8,192 words per batch for the softmax; here all count.

Shapes: B batch, T sequence, D hidden (one direction), H cell, G = 4·H gates, L layers, S = D + H, V
vocabulary, N tokens, C symbols of a token, K size of a symbol, F filters.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.errors import BlockError, format_count
from rungwise.core.tokens import SpecialIds
from rungwise.instances.batch import CausalBatch
from rungwise.models.families.bert import BertConfig, MlmHead
from rungwise.models.family import StatefulFamily, Steps, TransformerFamily
from rungwise.models.losses.cross_entropy import TokenSums, at_least_float32
from rungwise.models.losses.objectives import BIDIRECTIONAL, BILM, Objective
from rungwise.models.trained.encoders import LayeredEncoder
from rungwise.models.trained.language_models import TwoDirectionModel
from rungwise.models.transformer.block import (
    WHOLE,
    Boundaries,
    Transformer,
    gather_positions,
    initialise,
    look_up_positions,
)
from rungwise.models.transformer.body import (
    Body,
    NextTokenModel,
    TokenOutput,
    blocks_by_layer,
    boundaries,
)

NUM_SYMBOLS = 261


class BidirectionalConfig(TransformerFamily):
    """Two Transformers, one per direction; the defaults have BERT base's 12 blocks in all."""

    year: ClassVar[int] = 2018
    paper: ClassVar[str] = "after Peters et al."
    idea: ClassVar[str] = "two Transformers, one per direction, joined at the end"
    page: ClassVar[str] = "two-direction Transformer"
    objectives: ClassVar = (BIDIRECTIONAL,)

    kind: Literal["bidirectional"] = "bidirectional"
    num_layers: int = Field(default=6, ge=1)  # of one direction

    @property
    def depth(self) -> int:
        return 2 * self.num_layers

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        return BidirectionalForPretraining(self, vocab_size)

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return Bidirectional(self, vocab_size)

    def trained(self, model: Any, objective: Objective, special: SpecialIds) -> TwoDirectionModel:
        return TwoDirectionModel(model, self.max_length, *special.require("end"))

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Both causal stacks and the head: 2·stack_flops + 6·(2·D² + D·V)."""
        D = self.hidden_size
        return float(2 * self.stack_flops(T, causal=True) + 6 * (2 * D * D + D * V))


class Direction(nn.Module):
    """One direction: its own positions and causal stack over the shared token vectors."""

    graphs: ClassVar = ("_embed",)  # see parallel.py

    def __init__(self, config: BidirectionalConfig) -> None:
        super().__init__()
        self.position_embedding = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = Transformer(config.blocks(), causal=True)

    def forward(self, tokens_BTD: Tensor, where: Boundaries) -> Tensor:
        return self.transformer(self._embed(tokens_BTD, where.positions), None, where)

    def layers(self, tokens_BTD: Tensor, positions_BT: Tensor | None) -> list[Tensor]:
        """Return the embeddings and each layer's states; every row holds one document."""
        return self.transformer.layers(self._embed(tokens_BTD, positions_BT))

    def _embed(self, tokens_BTD: Tensor, positions_BT: Tensor | None) -> Tensor:
        position_BTD = look_up_positions(self.position_embedding, tokens_BTD.shape[1], positions_BT)
        return self.dropout(tokens_BTD + position_BTD)


class Bidirectional(Body):
    """Both directions with their states concatenated; a level holds the same part of each."""

    name: ClassVar[str] = "bidirectional"
    causal = False

    def __init__(self, config: BidirectionalConfig, vocab_size: int) -> None:
        super().__init__(vocab_size, config.hidden_size, config.dropout)
        self.width = 2 * config.hidden_size
        self.left_to_right = Direction(config)
        self.right_to_left = Direction(config)
        initialise(self, config.initializer_range, truncated=False)
        if config.norm == "pre":
            self.left_to_right.transformer.scale_residuals()
            self.right_to_left.transformer.scale_residuals()

    def encode(
        self, ids_BT: Tensor, targets_BT: Tensor, lengths_B: Tensor, where: Boundaries = WHOLE
    ) -> Tensor:
        """Return the states (B, T, 2D) from which each target is predicted: left, then right.
        `lengths_B` counts the real targets of a row; `where` describes the ids."""
        left_BTD = self.left_to_right(self.token_embedding(ids_BT), where)
        T = ids_BT.shape[1]
        place_T = torch.arange(T, device=ids_BT.device)
        turned_BT = reverse_places(T, lengths_B)
        document_BT, positions_BT, starts_S, _ = where
        places_BT = place_T.expand_as(ids_BT) if positions_BT is None else positions_BT
        right_BTD = self.right_to_left(
            self.token_embedding(targets_BT.gather(1, turned_BT)),
            Boundaries(
                None if document_BT is None else document_BT.gather(1, turned_BT),
                places_BT.gather(1, turned_BT),
                None if starts_S is None else reverse_starts(T, lengths_B, starts_S),
            ),
        )
        next_BT = (lengths_B[:, None] - 2 - place_T) % T  # where t + 1 went
        has_next_BT = place_T + 1 < lengths_B[:, None]
        if document_BT is not None:
            has_next_BT = has_next_BT & (document_BT == document_BT.roll(-1, dims=1))
        right_BTD = gather_positions(right_BTD, next_BT)
        right_BTD = torch.where(has_next_BT[:, :, None], right_BTD, right_BTD.new_zeros(()))
        return torch.cat((left_BTD, right_BTD), dim=-1)

    def read_layers(self, ids_BT: Tensor, lengths_B: Tensor | None) -> list[Tensor]:
        """Return num_layers + 1 tensors (B, T, 2D), embeddings first. No token is left out, as in
        ELMo: at t the left half has read ids[0 .. t] and the right half ids[t ..]."""
        B, T = ids_BT.shape
        tokens_BTD = self.token_embedding(ids_BT)
        left = self.left_to_right.layers(tokens_BTD, None)

        turned_BT = reverse_places(T, ids_BT.new_full((B,), T) if lengths_B is None else lengths_B)
        # In pretraining the right-to-left stack reads targets, so token j of a document has
        # position j on the left and j - 1 on the right. The first mark of a row stands for the
        # symbol that opens a document, position 0 on the left. From the right pretraining never
        # reads that symbol; here it shares position 0 with the next token.
        places_BT = (turned_BT - 1).clamp(min=0)
        right = self.right_to_left.layers(gather_positions(tokens_BTD, turned_BT), places_BT)
        return [
            torch.cat((left_BTD, gather_positions(right_BTD, turned_BT)), dim=-1)
            for left_BTD, right_BTD in zip(left, right, strict=True)
        ]

    def levels(self) -> list[list[nn.Module]]:
        both = (self.left_to_right, self.right_to_left)
        positions = [direction.position_embedding for direction in both]
        blocks = blocks_by_layer([direction.transformer for direction in both])
        return [[self.token_embedding, *positions], *blocks]


def row_lengths(rows: CausalBatch[Tensor]) -> Tensor:
    """Return the lengths (B,) of rows, which end at their last weight above 0."""
    place_T = torch.arange(1, rows.ids.shape[1] + 1, device=rows.ids.device)
    return (place_T * (rows.weights > 0)).amax(dim=1)


def reverse_places(sequence_length: int, lengths_B: Tensor) -> Tensor:
    """Return the position (B, T) of each token in its reversed row; it is its own inverse."""
    place_T = torch.arange(sequence_length, device=lengths_B.device)
    place_BT = lengths_B[:, None] - 1 - place_T
    # Not `%`: its ONNX export cannot take a length known only at run time.
    return torch.where(place_BT < 0, place_BT + sequence_length, place_BT)


def reverse_starts(sequence_length: int, lengths_B: Tensor, starts_S: Tensor) -> Tensor:
    """Return the document starts of reversed rows: the ends of documents, counted from the right.
    Padding counts as a document, so the end of a row's last document is among `starts_S`."""
    T = sequence_length
    row = starts_S[:-1] // T
    starts = (lengths_B[row] - starts_S[:-1] % T) % T + row * T
    return torch.cat((starts.sort().values.to(starts_S.dtype), starts_S[-1:]))


class BidirectionalForPretraining(TokenOutput):
    """Both directions under one head: dense, GELU, LayerNorm, the token embedding and a bias."""

    bidirectional: Bidirectional

    def __init__(self, config: BidirectionalConfig, vocab_size: int) -> None:
        super().__init__(Bidirectional(config, vocab_size))
        like_bert = replace(config.layer(0), epsilon=BertConfig.layer_norm_epsilon)
        self.head = MlmHead(like_bert, vocab_size, input_size=2 * config.hidden_size)
        initialise(self.head, config.initializer_range, truncated=False)

    def forward(self, rows: CausalBatch[Tensor]) -> TokenSums:
        """Sum the cross entropy of the targets."""
        lengths_B = row_lengths(rows)
        states_BTE = self.bidirectional.encode(rows.ids, rows.targets, lengths_B, boundaries(rows))
        return self.sums(self.head.transform(states_BTE), rows.targets, rows.weights)

    def logits(
        self, ids_BT: Tensor, targets_BT: Tensor, lengths_B: Tensor, where: Boundaries = WHOLE
    ) -> Tensor:
        """Return the logits (B, T, V) of each target, given the rest of its document."""
        states_BTE = self.bidirectional.encode(ids_BT, targets_BT, lengths_B, where)
        return self.to_logits(self.head.transform(states_BTE))

    def word_bias(self) -> Tensor:
        return self.head.bias


BEGIN_TEXT, END_TEXT, BEGIN_WORD, END_WORD, PADDING = range(256, 261)

# The delimiter of two texts ends one and begins the next.
_BETWEEN = (END_TEXT, BEGIN_TEXT)
_MARKS = ((BEGIN_TEXT,), _BETWEEN, (END_TEXT,))  # start, delimiter, extract (encoders.py)


Filter = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]


class ElmoConfig(StatefulFamily):
    """The shape of an ELMo; the defaults are the paper's, 93.6 M parameters without the output."""

    suggested_steps: ClassVar[Steps | None] = Steps(3e-3)
    objectives: ClassVar = (BILM,)
    year: ClassVar[int] = 2018
    paper: ClassVar[str] = "Peters et al."
    idea: ClassVar[str] = (
        "reads forwards and backwards, word by word; a word's numbers depend on its sentence"
    )
    page: ClassVar[str] = "ELMo"

    kind: Literal["elmo"] = "elmo"
    num_layers: int = Field(default=2, ge=1)
    hidden_size: int = Field(default=512, ge=1)  # output per token, of one direction
    cell_size: int = Field(default=4096, ge=1)  # of the LSTM's memory, of one direction
    cell_clip: float = Field(default=3.0, gt=0)  # bound on the values of a cell
    projection_clip: float = Field(default=3.0, gt=0)  # bound on the values of an output
    # pairs of a width in characters (bytes) and a number of filters
    filters: list[Filter] = Field(
        default=[(1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)], min_length=1
    )
    character_size: int = Field(default=16, ge=1)
    max_characters: int = Field(default=50, ge=3)  # bytes of a token, with a mark at each end
    num_highways: int = Field(default=2, ge=0)  # highway layers after the filters
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)  # 0.1 in the paper; see kind `bert`

    @model_validator(mode="after")
    def _fit_into_a_token(self) -> Self:
        if (widest := max(width for width, _ in self.filters)) > self.max_characters:
            raise BlockError(
                f"filters have a width of {widest}, but max_characters is {self.max_characters}",
                {"max_characters": widest},
            )
        return self

    @property
    def depth(self) -> int:
        return 2 * self.num_layers

    @property
    def width(self) -> int:
        return self.cell_size

    @property
    def num_filters(self) -> int:
        return sum(number for _, number in self.filters)

    def describe(self) -> str:
        layers = format_count(self.num_layers, "layer")
        return f"{layers} a direction, hidden size {self.hidden_size}, cell size {self.cell_size}"

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        return ElmoForPretraining(self, vocab_size)

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return Elmo(self, vocab_size)

    def encoder(
        self, objective: Objective, vocab_size: int, dropout: float, new_tokens: int = 0
    ) -> LayeredEncoder:
        encoder = super().encoder(objective, vocab_size, dropout, new_tokens)
        encoder.body.token_embedding.spell_marks(new_tokens)
        return encoder

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count the character CNN, for every token, and in both directions gates, projections and
        the output: 6·cnn + 2·6·(L·(4·H·2·D + H·D) + D·V)."""
        L, D, H, F = self.num_layers, self.hidden_size, self.cell_size, self.num_filters
        K, C = self.character_size, self.max_characters
        cnn = sum(width * K * number * (C - width + 1) for width, number in self.filters)
        cnn += self.num_highways * 2 * F * F + F * D
        return float(6 * cnn + 12 * (L * 9 * H * D + D * V))


class CharacterEncoder(nn.Module):
    """Replaces a token embedding; `characters` (V, C) is padding until `spell`."""

    def __init__(self, config: ElmoConfig, vocab_size: int) -> None:
        super().__init__()
        K, F = config.character_size, config.num_filters
        # int32, because gloo cannot send 16 bits.
        table_VC = torch.full((vocab_size, config.max_characters), PADDING, dtype=torch.int32)
        self.register_buffer("characters", table_VC)
        self.embedding = nn.Embedding(NUM_SYMBOLS, K)
        convolutions = [nn.Conv1d(K, number, width) for width, number in config.filters]
        self.convolutions = nn.ModuleList(convolutions)
        # The first half is the new value, the second its gate.
        highways = [nn.Linear(F, 2 * F) for _ in range(config.num_highways)]
        self.highways = nn.ModuleList(highways)
        self.projection = nn.Linear(F, config.hidden_size)
        nn.init.uniform_(self.embedding.weight, -1.0, 1.0)
        for convolution in convolutions:
            nn.init.uniform_(convolution.weight, -0.05, 0.05)
            assert convolution.bias is not None
            nn.init.zeros_(convolution.bias)
        for linear in (*highways, self.projection):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(F))
            nn.init.zeros_(linear.bias)
        for highway in highways:
            nn.init.constant_(highway.bias[F:], -2.0)  # gates begin almost closed

    characters: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        distinct_N, place = ids.unique(return_inverse=True)
        return functional.embedding(place, self.vectors(self.characters[distinct_N]))

    def vectors(self, characters_NC: Tensor) -> Tensor:
        """Return the vectors (N, P) of tokens with this spelling."""
        x_NKC = self.embedding(characters_NC).transpose(1, 2)  # (N, C, K) -> (N, K, C)
        most = [convolution(x_NKC).amax(dim=2) for convolution in self.convolutions]
        x_NF = torch.cat(most, dim=1).relu()
        for highway in self.highways:
            new_NF, gate_NF = highway(x_NF).chunk(2, dim=1)
            x_NF = torch.lerp(x_NF, new_NF.relu(), gate_NF.sigmoid())
        return self.projection(x_NF)

    def spell(self, tokens: Sequence[bytes], end: int) -> None:
        """Store the bytes of each token; `end` is the token between documents."""
        rows = [_BETWEEN if index == end else tuple(token) for index, token in enumerate(tokens)]
        self._write(0, rows)

    def spell_marks(self, count: int) -> None:
        """Spell the last `count` (0 or 3) tokens: the marks that begin, separate and end texts."""
        if count:
            self._write(len(self.characters) - count, _MARKS[:count])

    @torch.no_grad()
    def _write(self, first: int, rows: Sequence[Sequence[int]]) -> None:
        C = self.characters.shape[1]
        words = [(BEGIN_WORD, *row[: C - 2], END_WORD) for row in rows]
        filled = [(*row, *[PADDING] * (C - len(row))) for row in words]
        self.characters[first : first + len(rows)] = torch.tensor(filled, dtype=torch.int32)


class ProjectedLstm(nn.Module):
    """One left-to-right layer, TensorFlow's LSTMCell with num_proj, cell_clip and proj_clip, P
    output, H cell; initialised as there: biases 0, that of the forget gate 1. PyTorch's LSTM does
    not clip.

        [x_t, h_t-1] ──> gates i, f, o, g
        c_t = clip(f · c_t-1 + i · g)           (B, H)      cell
        h_t = clip(W_p (o · tanh c_t))          (B, P)      output, H > P

    No gradient flows where a clip was active, nor into the initial state: backpropagation ends at
    the beginning of a block (training/state.py)."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        P, H = config.hidden_size, config.cell_size
        self.hidden_size, self.cell_size = P, H
        self.cell_clip, self.projection_clip = config.cell_clip, config.projection_clip
        # Order of the gates: input, forget, output, cell.
        self.input_weight = nn.Parameter(torch.empty(4 * H, P))
        self.state_weight = nn.Parameter(torch.empty(4 * H, P))
        self.bias = nn.Parameter(torch.zeros(4 * H))
        self.projection = nn.Parameter(torch.empty(P, H))
        bound = math.sqrt(6 / (P + P + 4 * H))
        nn.init.uniform_(self.input_weight, -bound, bound)
        nn.init.uniform_(self.state_weight, -bound, bound)
        nn.init.xavier_uniform_(self.projection)
        with torch.no_grad():
            self.bias[H : 2 * H] = 1.0

    def forward(self, x_BTD: Tensor, state_BS: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs (B, T, P) and the last state (B, P + H); None stands for zeros."""
        P, H = self.hidden_size, self.cell_size
        gates_BTG = functional.linear(x_BTD, self.input_weight, self.bias)
        gates_BTG = at_least_float32(gates_BTG)
        if state_BS is None:
            state_BS = gates_BTG.new_zeros(len(x_BTD), P + H)
        h_BP, c_BH = state_BS.detach().to(gates_BTG.dtype).split((P, H), dim=1)
        outputs = []
        # In 16 bits rounding errors would accumulate from token to token.
        with torch.autocast(x_BTD.device.type, enabled=False):
            for gates_BG in gates_BTG.unbind(1):
                gates_BG = torch.addmm(gates_BG, h_BP, self.state_weight.T)
                into, keep, out = gates_BG[:, : 3 * H].sigmoid().chunk(3, dim=1)
                c_BH = torch.addcmul(keep * c_BH, into, gates_BG[:, 3 * H :].tanh())
                c_BH = c_BH.clamp(-self.cell_clip, self.cell_clip)
                h_BP = (c_BH.tanh() * out) @ self.projection.T
                h_BP = h_BP.clamp(-self.projection_clip, self.projection_clip)
                outputs.append(h_BP)
        return torch.stack(outputs, dim=1), torch.cat((h_BP, c_BH), dim=1).detach()


class Elmo(Body):
    """Both directions without the output. It ignores segments: marks separate texts."""

    name: ClassVar[str] = "elmo"
    causal = False
    token_embedding: CharacterEncoder

    def __init__(self, config: ElmoConfig, vocab_size: int) -> None:
        D, characters = config.hidden_size, CharacterEncoder(config, vocab_size)
        super().__init__(vocab_size, D, config.dropout, characters)
        self.width = 2 * D
        self.left_to_right, self.right_to_left = (
            nn.ModuleList(ProjectedLstm(config) for _ in range(config.num_layers)) for _ in range(2)
        )

    def spell(self, tokens: Sequence[bytes], end: int) -> None:
        self.token_embedding.spell(tokens, end)

    def word_table(self) -> Tensor:
        return self.token_embedding.characters

    def read_left(
        self, tokens_BTD: Tensor, state_BLS: Tensor | None
    ) -> tuple[list[Tensor], Tensor]:
        """Read from the left: return `tokens_BTD` and each layer's output, (B, T, D) each, and the
        state (B, L, S) after the last token. A state of None stands for zeros."""
        return self._read(self.left_to_right, tokens_BTD, state_BLS)

    def read_right(self, tokens_BTD: Tensor, lengths_B: Tensor | None) -> list[Tensor]:
        """Read from the last real token of each row to the left; return the same tensors."""
        B, T, _ = tokens_BTD.shape
        if lengths_B is None:
            lengths_B = torch.full((B,), T, device=tokens_BTD.device)
        turned_BT = reverse_places(T, lengths_B)
        layers, _ = self._read(self.right_to_left, gather_positions(tokens_BTD, turned_BT), None)
        return [gather_positions(layer_BTD, turned_BT) for layer_BTD in layers]

    def _read(
        self, layers: Iterable[nn.Module], tokens_BTD: Tensor, state_BLS: Tensor | None
    ) -> tuple[list[Tensor], Tensor]:
        outputs, after = [tokens_BTD], []
        for number, layer in enumerate(layers):
            input_BTD = self.dropout(outputs[-1])
            output_BTD, end_BS = layer(
                input_BTD, None if state_BLS is None else state_BLS[:, number]
            )
            outputs.append(output_BTD + input_BTD if number else output_BTD)
            after.append(end_BS)
        return outputs, torch.stack(after, dim=1)

    def read_layers(self, ids_BT: Tensor, lengths_B: Tensor | None) -> list[Tensor]:
        tokens_BTD = self.token_embedding(ids_BT)
        left, _ = self.read_left(tokens_BTD, None)
        right = self.read_right(tokens_BTD, lengths_B)
        return [torch.cat(both, dim=-1) for both in zip(left, right, strict=True)]

    def levels(self) -> list[list[nn.Module]]:
        layers = zip(self.left_to_right, self.right_to_left, strict=True)
        return [[self.token_embedding], *([*both] for both in layers)]


class ElmoForPretraining(NextTokenModel):
    """Both directions under one output matrix and bias; there is no embedding to tie it to."""

    elmo: Elmo

    def __init__(self, config: ElmoConfig, vocab_size: int) -> None:
        super().__init__(Elmo(config, vocab_size))
        D = config.hidden_size
        self.output: Any = nn.Parameter(torch.empty(vocab_size, D))
        nn.init.normal_(self.output, std=1 / math.sqrt(D))
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        # Per row, left to right: output and cell of each layer.
        self.state_shape = (config.num_layers, D + config.cell_size)

    def forward(self, rows: CausalBatch[Tensor]) -> Any:
        """Return the summed loss and correct predictions, of the targets from the left and the ids
        from the right, and the next state."""
        # T + 1 tokens: ids are all but the last, targets all but the first.
        tokens_BUD = self.elmo.token_embedding(torch.cat((rows.ids[:, :1], rows.targets), dim=1))
        left, after_BLS = self.elmo.read_left(tokens_BUD[:, :-1], rows.state)
        right = self.elmo.read_right(tokens_BUD[:, 1:], row_lengths(rows))
        states = torch.cat((left[-1], right[-1]))  # two of (B, T, D) -> (2·B, T, D)
        total, correct = self.sums(
            self.elmo.dropout(states),
            torch.cat((rows.targets, rows.ids)),
            torch.cat((rows.weights, rows.weights)),
        )
        return total, correct, after_BLS

    def states(self, ids_BT: Tensor, where: Boundaries = WHOLE) -> Tensor:
        """Left to right from a zero state; boundaries and positions are ignored."""
        return self.read_block(ids_BT, None)[0]

    def read_block(self, ids_BT: Tensor, state_BLS: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the left-to-right input (B, T, D) of the output matrix and the next state."""
        layers, after_BLS = self.elmo.read_left(self.elmo.token_embedding(ids_BT), state_BLS)
        return self.elmo.dropout(layers[-1]), after_BLS

    def output_table(self) -> Tensor:
        return self.output
