"""A linear-chain conditional random field over the tags of a row (Lafferty et al. 2001; Lample et
al. 2016, arXiv:1603.01360).

    score(y) = first[y_1] + sum of emission[t, y_t] + sum of follow[y_t-1, y_t] + last[y_n]
    loss     = log Z - score(gold)                    Z sums exp(score) over all sequences
    logits   = log P(y_t | row)                       the gradient of log Z by emission[t, y_t]

Training sees emissions, prediction sees the log-probability of each tag of a word given all other
words. The likeliest tag of each word is the decoding with the fewest wrong tags to be expected
(Merialdo 1994, "Tagging English Text with a Probabilistic Model"), its probability is the model's
own, and `legal_tags` finds the likeliest legal sequence of these.

Shapes: R rows, N words of the longest row, W words of the batch, C tags, E width of a state.
"""

import torch
from torch import Tensor, nn

from rungwise.finetune.heads import Rows, TokenHead
from rungwise.models.losses.cross_entropy import at_least_float32


class CrfHead(TokenHead):
    """A linear layer that scores the tags of a word, and scores of tags that follow each other."""

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
        _, row_W, count_R = rows.word_row.unique_consecutive(
            return_inverse=True, return_counts=True
        )
        begin_R = count_R.cumsum(0) - count_R
        place_W = torch.arange(len(row_W), device=row_W.device) - begin_R[row_W]
        shape = (len(count_R), int(count_R.max()), len(self.first))
        padded_RNC = emissions_WC.new_zeros(shape).index_put((row_W, place_W), emissions_WC)
        sums_RC = self.first + padded_RNC[:, 0]
        for number in range(1, shape[1]):
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
