"""Two Transformers, one left to right and one right to left, with concatenated states: ELMo's
design (Peters et al. 2018, arXiv:1802.05365) with Transformers, an alternative to BERT.

    stream         x0   x1   x2  ...  xT        ids = x0 .. xT-1, targets = x1 .. xT
    left to right  f_t reads  ids[0 .. t]      = x0 .. xt
    right to left  b_t reads  targets[t .. T)  = xt+1 .. xT, from the end
    predicts       targets[t] from f_t and b_{t+1}: everything but xt+1 itself

The directions share only the token embedding, which is also the output. The last token of a
document has nothing on its right: its b is zero. Rows are reversed within their real tokens, so
that padding stays at the end and a causal kernel needs no mask for it.

Shapes: B batch, T sequence, D hidden, V vocabulary.
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from rungwise.core.tokens import SpecialIds
from rungwise.instances.batch import CausalBatch
from rungwise.models.families.bert import MlmHead
from rungwise.models.family import TransformerFamily
from rungwise.models.losses.cross_entropy import TokenSums
from rungwise.models.losses.objectives import BIDIRECTIONAL, Objective
from rungwise.models.trained.language_models import TwoDirectionModel
from rungwise.models.transformer.block import (
    WHOLE,
    Boundaries,
    Transformer,
    gather_positions,
    initialise,
    look_up_positions,
)
from rungwise.models.transformer.body import Body, TokenOutput, blocks_by_layer, boundaries


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

    def encode_layers(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, lengths_B: Tensor | None = None
    ) -> list[Tensor]:
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
        self.head = MlmHead(config.hidden_size, vocab_size, input_size=2 * config.hidden_size)
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
