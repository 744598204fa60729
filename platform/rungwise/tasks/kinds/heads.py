"""The heads that kinds of tasks build: states (R, T, E) of an encoder become logits.

One linear layer after dropout (Devlin et al. 2019, arXiv:1810.04805, section 4). The vectors of
both orders of a pair are added before it (Radford et al. 2018, figure 1); of texts in rows of their
own it reads both, their distance and their product (Conneau et al. 2017, arXiv:1705.02364, figure
1). With `crf` (Lafferty et al. 2001; Lample et al. 2016, arXiv:1603.01360)

    score(y) = first[y_1] + sum of emission[t, y_t] + sum of follow[y_t-1, y_t] + last[y_n]
    loss     = log Z - score(gold)                    Z sums exp(score) over all sequences
    logits   = log P(y_t | row)                       the gradient of log Z by emission[t, y_t]

so that the likeliest tag of each word has the fewest wrong tags to be expected (Merialdo 1994).

Shapes: R rows, B items, T sequence, E width of a state, C classes, W words, O options, N words of
the longest row."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from rungwise.models.losses.cross_entropy import at_least_float32
from rungwise.models.transformer.block import Pooling as Way
from rungwise.models.transformer.block import initialise, pool, real_places
from rungwise.tasks.kinds.items import Pairs, Pooling

# What is pooled, side by side, and how where no row is padded; else the first token.
_WAYS: dict[Pooling, tuple[Way, ...]] = {
    "mean": ("mean",),
    "last": ("last",),
    "last_max_mean": ("last", "max", "mean"),
}
_POOLS: dict[Way, Callable[[Tensor], Tensor]] = {
    "mean": lambda states_RTE: states_RTE.mean(dim=1),
    "last": lambda states_RTE: states_RTE[:, -1],
    "max": lambda states_RTE: states_RTE.amax(dim=1),
}
INITIALIZER_RANGE = 0.02  # of the weights of a head, as in BERT and GPT, whatever the encoder's


@dataclass(frozen=True)
class Rows:
    """How rows make up items, and where words are in them."""

    lengths: Tensor | None  # (R,) int64 real tokens; None: no row is padded
    item: Tensor  # (R,) int64 index of the item; the rows of an item are neighbours, in order
    count: int  # B
    word_row: Tensor | None = None  # (W,) int64, only for tagging and generation
    word_place: Tensor | None = None  # (W,) int64, the token that stands for the word

    def to(self, device: torch.device) -> Self:
        tensors = {name: each for name, each in vars(self).items() if isinstance(each, Tensor)}
        return replace(self, **{name: each.to(device) for name, each in tensors.items()})


class Pool(nn.Module):
    """Reduces each row to one vector, optionally through BERT's pooler."""

    def __init__(self, width: int, pooling: Pooling, pooler: bool) -> None:
        super().__init__()
        assert pooling == "cls" or not pooler, "a pooler is trained on [CLS]"
        self.pooling: Pooling = pooling
        self.dense = nn.Linear(width, width) if pooler else None

    def forward(self, states_RTE: Tensor, lengths_R: Tensor | None) -> Tensor:
        """Return (R, E), or (R, 3 E) of three vectors side by side."""
        ways = _WAYS.get(self.pooling)
        if ways is None:
            pooled_RE = states_RTE[:, 0]
        elif lengths_R is None:
            pooled_RE = torch.cat([_POOLS[way](states_RTE) for way in ways], dim=1)
        else:
            pooled_RE = torch.cat([pool(states_RTE, lengths_R, way) for way in ways], dim=1)
        return pooled_RE if self.dense is None else torch.tanh(self.dense(pooled_RE))


class TaskHead(nn.Module):
    """A linear layer on the states. `purpose` is what it is for, by which models/counterpart.py
    finds a class of transformers, None if there is none; `outputs` names what ONNX returns."""

    purpose: ClassVar[str | None] = None
    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    linear: nn.Linear

    def project(self, states_RTE: Tensor, lengths_R: Tensor | None) -> Tensor:
        """Return the logits of each token, or of what is read of a row."""
        return self.linear(states_RTE)


class SequenceHead(TaskHead):
    """One prediction for a text or a pair of texts, by a linear layer that reads one vector of each
    row, or of each pair of rows. All items have one row, or all have two."""

    purpose = "sequence"

    def __init__(
        self,
        width: int,
        num_outputs: int,
        pooling: Pooling,
        dropout: float,
        pooler: bool = False,
        pairs: Pairs = "joined",
    ) -> None:
        super().__init__()
        self.pool = Pool(width, pooling, pooler)
        self.pairs: Pairs = pairs
        self.dropout = nn.Dropout(dropout)
        width *= (3 if pooling == "last_max_mean" else 1) * (4 if pairs == "apart" else 1)
        self.linear = nn.Linear(width, num_outputs)
        initialise(self, INITIALIZER_RANGE)

    def forward(self, states_RTE: Tensor, rows: Rows) -> Tensor:
        """Return logits (B, C)."""
        return self.linear(self.dropout(self.vectors(states_RTE, rows.lengths)))

    def project(self, states_RTE: Tensor, lengths_R: Tensor | None) -> Tensor:
        return self.linear(self.vectors(states_RTE, lengths_R))

    def vectors(self, states_RTE: Tensor, lengths_R: Tensor | None) -> Tensor:
        """Return what the linear layer reads, (B, E), or (B, 4 E) of texts apart."""
        pooled_RE = self.pool(states_RTE, lengths_R)
        match self.pairs:
            case "joined":
                return pooled_RE
            case "both_orders":
                return pooled_RE.unflatten(0, (-1, 2)).sum(dim=1)  # (R, E) -> (B, E)
            case "apart":
                first_BE, second_BE = pooled_RE.unflatten(0, (-1, 2)).unbind(dim=1)
                distance_BE, product_BE = (first_BE - second_BE).abs(), first_BE * second_BE
                return torch.cat([first_BE, second_BE, distance_BE, product_BE], dim=1)


class ChoiceHead(SequenceHead):
    """One output for each row, the score of an option."""

    purpose = "choice"

    def forward(self, states_RTE: Tensor, rows: Rows) -> Tensor:
        """Return logits (B, O), -inf where an item has no such option."""
        score_R = super().forward(states_RTE, rows).squeeze(-1)
        none_B = rows.item.new_zeros(rows.count)
        options_B = none_B.index_add(0, rows.item, torch.ones_like(rows.item))  # number per item
        first_B = options_B.cumsum(0) - options_B
        option_R = torch.arange(len(score_R), device=score_R.device) - first_B[rows.item]
        empty_BO = score_R.new_full((rows.count, int(options_B.max())), -math.inf)
        return empty_BO.index_put((rows.item, option_R), score_R)


class TokenHead(TaskHead):
    """One tag for each word, or the token to write after each place of a target, from one state."""

    purpose = "token"

    def __init__(self, width: int, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, num_outputs)
        initialise(self, INITIALIZER_RANGE)

    def forward(self, states_RTE: Tensor, rows: Rows) -> Tensor:
        """Return logits (W, C)."""
        assert rows.word_row is not None
        assert rows.word_place is not None
        return self.linear(self.dropout(states_RTE[rows.word_row, rows.word_place]))


class SpanHead(TaskHead):
    """Start and end of an answer, by two vectors (Devlin et al. 2019, section 4.2). No dropout, as
    in run_squad.py of google-research/bert."""

    purpose = "span"
    outputs = ("start_logits", "end_logits")

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2)
        initialise(self, INITIALIZER_RANGE)

    def forward(self, states_RTE: Tensor, rows: Rows) -> Tensor:
        """Return logits (B, T, 2), -inf at padding, which gets no probability."""
        logits_BT2 = self.linear(states_RTE)
        if rows.lengths is None:
            return logits_BT2
        padding_BT = ~real_places(states_RTE.shape[1], rows.lengths)
        return logits_BT2.masked_fill(padding_BT[:, :, None], -math.inf)


class CrfHead(TokenHead):
    """A linear layer that scores the tags of a word, and scores of tags that follow each other."""

    purpose = None

    def __init__(self, width: int, num_outputs: int, dropout: float) -> None:
        super().__init__(width, num_outputs, dropout)
        self.first = nn.Parameter(torch.zeros(num_outputs))
        self.follow = nn.Parameter(torch.zeros(num_outputs, num_outputs))  # from, to
        self.last = nn.Parameter(torch.zeros(num_outputs))

    def forward(self, states_RTE: Tensor, rows: Rows) -> Tensor:
        """Return the emissions (W, C) in training, else the log-probabilities of tags (W, C)."""
        emissions_WC = at_least_float32(super().forward(states_RTE, rows))
        return emissions_WC if self.training else self.log_marginals(emissions_WC, rows)

    def loss(self, emissions_WC: Tensor, rows: Rows, tags_W: Tensor) -> Tensor:
        """Return the sum over rows of the negative log-likelihoods of their tags."""
        assert rows.word_row is not None
        words_W = torch.arange(len(tags_W), device=tags_W.device)
        same_W = rows.word_row[1:] == rows.word_row[:-1]
        opens_W = torch.cat((same_W.new_ones(1), ~same_W))
        closes_W = torch.cat((~same_W, same_W.new_ones(1)))
        score = (
            emissions_WC[words_W, tags_W].sum()
            + self.first[tags_W[opens_W]].sum()
            + self.follow[tags_W[:-1], tags_W[1:]][same_W].sum()
            + self.last[tags_W[closes_W]].sum()
        )
        return self.log_partition(emissions_WC, rows).sum() - score

    def log_partition(self, emissions_WC: Tensor, rows: Rows) -> Tensor:
        """Return log Z of each row that has words."""
        assert rows.word_row is not None
        _, count_R = rows.word_row.unique_consecutive(return_counts=True)
        rows_NC = list(emissions_WC.split(count_R.tolist()))
        padded_RNC = pad_sequence(rows_NC, batch_first=True)
        sums_RC = self.first + padded_RNC[:, 0]
        for number in range(1, padded_RNC.shape[1]):
            next_RC = (sums_RC[:, :, None] + self.follow).logsumexp(1) + padded_RNC[:, number]
            sums_RC = torch.where((count_R > number)[:, None], next_RC, sums_RC)
        return (sums_RC + self.last).logsumexp(1)

    def log_marginals(self, emissions_WC: Tensor, rows: Rows) -> Tensor:
        """Return the log-probability (W, C) of each tag of each word."""
        with torch.enable_grad():
            emissions_WC = emissions_WC.detach().requires_grad_()
            (shares_WC,) = torch.autograd.grad(
                self.log_partition(emissions_WC, rows).sum(), emissions_WC
            )
        return shares_WC.clamp(min=torch.finfo(shares_WC.dtype).tiny).log()
