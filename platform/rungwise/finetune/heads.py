"""Heads for an encoder, one for each kind of task, and encoder and head as one model.

    ids ──> encoder ──> states (R, T, E) ──> top ──> head ──> logits

    head      of                            logits
    sequence  labels, regression            (B, C), C = 1 for a number
    token     tagging, generation           (W, C), one for each word of the batch; in generation
                                            for each place of a target, C the vocabulary
    span      questions                     (B, T, 2), start and end of the answer
    choice    multiple choice               (B, O), O the most options; -inf where an item has fewer

The heads are those of Devlin et al. 2019 (arXiv:1810.04805, section 4): one linear layer after
dropout, in the sequence and the choice head over one vector a row. That is the state of the first
token, [CLS], the mean, or the state of the last token, what Radford et al. 2018 call extract. A
pooler, a layer and tanh on [CLS], is BERT's, and pretraining with sentence pairs trains one.

An item may have several rows. The vectors of the two orders of a pair are added before the linear
layer (Radford et al. 2018, figure 1), so that their order does not matter; of a choice each option
is a row and has a score.

Shapes: R rows, B items, T sequence, E width of a state, C classes, W words, O options.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from rungwise.finetune.bilstm import BiLstm
from rungwise.finetune.mixing import ScalarMix
from rungwise.models.encoders import LayeredEncoder
from rungwise.models.transformer import initialise

Pooling = Literal["cls", "mean", "last"]
INITIALIZER_RANGE = 0.02  # of the weights of a head, whatever the encoder's: BERT's and GPT's own


@dataclass(frozen=True)
class Rows:
    """How rows make up items, and where in them words stand."""

    lengths: Tensor | None  # (R,) int64 real tokens; None: no row is padded
    item: Tensor  # (R,) int64 which item a row is of; rows of one are neighbours, in their order
    count: int  # B
    word_row: Tensor | None = None  # (W,) int64, for tagging and generation alone
    word_place: Tensor | None = None  # (W,) int64, the token that stands for the word

    def to(self, device: torch.device) -> Self:
        """The same on `device`."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(
            self, **{n: v.to(device) for n, v in values.items() if isinstance(v, torch.Tensor)}
        )


class Pool(nn.Module):
    """One vector for a row, through BERT's pooler if there is one."""

    def __init__(self, width: int, pooling: Pooling, pooler: bool) -> None:
        super().__init__()
        assert pooling == "cls" or not pooler, "a pooler is trained on [CLS]"
        self.pooling: Pooling = pooling
        self.dense = nn.Linear(width, width) if pooler else None

    def forward(self, states_RTE: Tensor, lengths_R: Tensor | None) -> Tensor:
        """(R, E)."""
        match self.pooling:
            case "cls":
                pooled_RE = states_RTE[:, 0]
            case "mean":
                pooled_RE = mean_over_tokens(states_RTE, lengths_R)
            case "last":
                pooled_RE = last_token(states_RTE, lengths_R)
        return pooled_RE if self.dense is None else torch.tanh(self.dense(pooled_RE))


class SequenceHead(nn.Module):
    """One answer for a text or for a pair of them."""

    def __init__(
        self, width: int, num_outputs: int, pooling: Pooling, dropout: float, pooler: bool = False
    ) -> None:
        super().__init__()
        self.pool = Pool(width, pooling, pooler)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, num_outputs)
        initialise(self, INITIALIZER_RANGE)

    def forward(self, states_RTE: Tensor, rows: Rows) -> Tensor:
        """Logits (B, C)."""
        pooled_RE = self.pool(states_RTE, rows.lengths)
        if len(pooled_RE) != rows.count:
            zeros_BE = pooled_RE.new_zeros(rows.count, pooled_RE.shape[1])
            pooled_RE = zeros_BE.index_add(0, rows.item, pooled_RE)  # (R, E) -> (B, E)
        return self.linear(self.dropout(pooled_RE))


class ChoiceHead(nn.Module):
    """One score for each option."""

    def __init__(self, width: int, pooling: Pooling, dropout: float, pooler: bool = False) -> None:
        super().__init__()
        self.pool = Pool(width, pooling, pooler)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, 1)
        initialise(self, INITIALIZER_RANGE)

    def forward(self, states_RTE: Tensor, rows: Rows) -> Tensor:
        """Logits (B, O), -inf where an item has no such option."""
        score_R = self.linear(self.dropout(self.pool(states_RTE, rows.lengths))).squeeze(-1)
        none_B = rows.item.new_zeros(rows.count)
        options_B = none_B.index_add(0, rows.item, torch.ones_like(rows.item))  # how many each has
        first_B = options_B.cumsum(0) - options_B
        option_R = torch.arange(len(score_R), device=score_R.device) - first_B[rows.item]
        empty_BO = score_R.new_full((rows.count, int(options_B.max())), -math.inf)
        return empty_BO.index_put((rows.item, option_R), score_R)


class TokenHead(nn.Module):
    """One tag for each word, from the state of the token that stands for it, or the token to write
    behind each."""

    def __init__(self, width: int, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, num_outputs)
        initialise(self, INITIALIZER_RANGE)

    def forward(self, states_RTE: Tensor, rows: Rows) -> Tensor:
        """Logits (W, C)."""
        assert rows.word_row is not None
        assert rows.word_place is not None
        return self.linear(self.dropout(states_RTE[rows.word_row, rows.word_place]))


class SpanHead(nn.Module):
    """Where an answer begins and ends: a start vector and an end vector, as in Devlin et al. 2019,
    section 4.2. No dropout, as in run_squad.py of google-research/bert."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2)
        initialise(self, INITIALIZER_RANGE)

    def forward(self, states_RTE: Tensor, rows: Rows) -> Tensor:
        """Logits (B, T, 2), -inf at padding: no probability is spent there."""
        logits_BT2 = self.linear(states_RTE)
        if rows.lengths is None:
            return logits_BT2
        place_T = torch.arange(states_RTE.shape[1], device=states_RTE.device)
        padding_BT = place_T >= rows.lengths[:, None]
        return logits_BT2.masked_fill(padding_BT[:, :, None], -math.inf)


Head = SequenceHead | ChoiceHead | TokenHead | SpanHead


class HeadedEncoder(nn.Module):
    """An encoder, what may stand between, and a head.

    With `fixed` the encoder stays as it is: no gradient reaches it, and it never drops anything.
    `mixed` are the layers that `mix` weighs, 0 the embeddings; without a mix the last is read.
    """

    def __init__(
        self,
        encoder: LayeredEncoder,
        head: Head,
        *,
        top: BiLstm | None = None,
        mix: ScalarMix | None = None,
        mixed: Sequence[int] = (),
        fixed: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.mix = mix
        self.mixed = tuple(mixed)
        self.top = top
        self.head = head
        self.fixed = fixed
        encoder.requires_grad_(not fixed)

    def forward(self, ids_RT: Tensor, segments_RT: Tensor | None, rows: Rows) -> Tensor:
        """The logits of the head."""
        return self.read(self.states(ids_RT, segments_RT, rows.lengths), rows)

    def read(self, states_RTE: Tensor, rows: Rows) -> Tensor:
        """The logits of the head, from the states of the encoder."""
        if self.top is not None:
            states_RTE = self.top(states_RTE, rows.lengths)
        return self.head(states_RTE, rows)

    def states(
        self, ids_RT: Tensor, segments_RT: Tensor | None, lengths_R: Tensor | None
    ) -> Tensor:
        """The states (R, T, E) of the encoder, mixed if layers are."""
        with torch.no_grad() if self.fixed else contextlib.nullcontext():
            layers = self.encoder.layers(ids_RT, segments_RT, lengths_R)
        if self.mix is None:
            return layers[-1]
        return self.mix([layers[index] for index in self.mixed])

    def train(self, mode: bool = True) -> Self:
        """As in PyTorch, but a fixed encoder is never in training."""
        super().train(mode)
        if self.fixed:
            self.encoder.eval()
        return self


def mean_over_tokens(states_RTE: Tensor, lengths_R: Tensor | None) -> Tensor:
    """The mean (R, E) of the real tokens of each row; the marks take part."""
    if lengths_R is None:
        return states_RTE.mean(dim=1)
    position_T = torch.arange(states_RTE.shape[1], device=states_RTE.device)
    real_RT1 = (position_T < lengths_R[:, None])[:, :, None]  # (R, T) -> (R, T, 1)
    # A choice and not a product, for whatever stands at padding, even NaN, must not count.
    kept_RTE = torch.where(real_RT1, states_RTE, states_RTE.new_zeros(()))
    return kept_RTE.sum(dim=1) / lengths_R[:, None].to(states_RTE.dtype)


def last_token(states_RTE: Tensor, lengths_R: Tensor | None) -> Tensor:
    """The state (R, E) of the last real token of each row."""
    if lengths_R is None:
        return states_RTE[:, -1]
    return states_RTE[torch.arange(len(states_RTE), device=states_RTE.device), lengths_R - 1]
