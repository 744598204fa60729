"""Replaced-token detection: ELECTRA (Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as
Discriminators Rather Than Generators", arXiv:2003.10555).

    masked row ──> token vectors ──> generator, a quarter as wide ──> MLM head ──> a guess for each
    row with the guesses in place of the masks ──> body ──> detector ──> was each token replaced?

The model is the body; every real token is asked, not 15 %. A guess that happens to be right counts
as original. Generator and body share the token vectors and nothing else; no gradient passes through
the guesses. The loss is that of masked tokens plus 50 times that of the detector, as in the paper;
what is reported is each part without its factor.

A guess is drawn from the generator's distribution by a number that hashes the row and its masks: it
is new with every mask, and the same whatever the batch or the workers.

Shapes: B batch, T sequence, D hidden, G hidden of the generator, V vocabulary, M masked positions.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.instances.batch import MaskedBatch
from rungwise.models.losses.cross_entropy import at_least_float32
from rungwise.models.losses.heads import OwnHead
from rungwise.models.losses.objectives import (
    MLM,
    Loss,
    Losses,
    Objective,
    Origin,
    Part,
    PretrainingLogits,
    masked_losses,
)
from rungwise.models.losses.sentences import unmasked
from rungwise.models.transformer.block import Transformer, initialise
from rungwise.models.transformer.body import MaskedHead, boundaries

_WEIGHT = 50.0  # of the detector's loss, the paper's lambda
_NARROWER = 4  # times: the generator
_MIX = (-7046029254386353131, -4658895280553007687, -7723592293110705685)  # SplitMix64's, signed


class Detected(NamedTuple):
    """The generator's logits, and whether each token of the row was replaced."""

    mlm: Tensor  # (B, M, V)
    logits: Tensor  # (B, T) of having been replaced
    replaced: Tensor  # (B, T) bool


def shrink_family(family: Any) -> Any:
    """Return the family a quarter as wide, with whole heads of the same size."""
    heads = max(1, family.num_heads // _NARROWER)
    hidden = heads * family.hidden_size // family.num_heads
    inner = max(1, family.intermediate_size * hidden // family.hidden_size)
    sizes = {"num_heads": heads, "hidden_size": hidden, "intermediate_size": inner}
    return family.model_copy(update=sizes)


class Generator(nn.Module):
    """Layers between the token vectors and the head for tokens, both of the body's width."""

    graphs: ClassVar = ("forward",)  # see parallel.py

    def __init__(self, family: Any) -> None:
        super().__init__()
        small = shrink_family(family)
        self.narrow = nn.Linear(family.hidden_size, small.hidden_size)
        self.layers = Transformer(small.blocks(), causal=False)
        self.widen = nn.Linear(small.hidden_size, family.hidden_size)
        initialise(self, family.initializer_range)

    def forward(self, embedded_BTD: Tensor, rows: MaskedBatch[Tensor]) -> Tensor:
        """Return the vectors (B, M, D) of the masked positions."""
        narrow_BTG, where = self.narrow(embedded_BTD), boundaries(rows)
        return self.widen(self.layers(narrow_BTG, rows.lengths, where, rows.masked_positions))


class Detector(nn.Module):
    """Two layers that tell replaced tokens from the states."""

    graphs: ClassVar = ("forward",)  # see parallel.py

    def __init__(self, family: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(family.hidden_size, family.hidden_size)
        self.output = nn.Linear(family.hidden_size, 1)
        initialise(self, family.initializer_range)

    def forward(self, states_BTD: Tensor) -> Tensor:
        """Return the logits (B, T)."""
        return self.output(functional.gelu(self.dense(states_BTD)))[..., 0]


class ReplacedTokensModel(MaskedHead):
    """A body with the detector on it, and the generator with its head beside it."""

    graphs: ClassVar = ("heads", "replace")  # see parallel.py
    purpose = "detector"

    def __init__(self, family: Any, body: Any, mlm: Any) -> None:
        super().__init__(family, body, mlm)
        self.generator, self.detector = Generator(family), Detector(family)

    def forward(self, rows: MaskedBatch[Tensor]) -> Detected:
        body: Any = self.body
        guesses_BMV = self.fill(rows).mlm
        ids_BT = self.replace(guesses_BMV.detach(), rows)
        states_BTD = body.encode(ids_BT, rows.segments, rows.lengths, boundaries(rows))
        return Detected(guesses_BMV, self.detector(states_BTD), ids_BT != unmasked(rows)[0])

    def replace(self, guesses_BMV: Tensor, rows: MaskedBatch[Tensor]) -> Tensor:
        """Return the ids (B, T) with a draw of the guesses in place of the masks."""
        there_BM = rows.ids.gather(1, rows.masked_positions)
        guess_BM = _draw(guesses_BMV, row_numbers(rows))
        guess_BM = torch.where(rows.masked_weights > 0, guess_BM, there_BM)
        return rows.ids.scatter(1, rows.masked_positions, guess_BM)

    def fill(self, rows: MaskedBatch[Tensor]) -> PretrainingLogits:
        body: Any = self.body
        embedded_BTD = body.embed(rows.ids, rows.segments, rows.positions)
        return self.heads(self.generator(embedded_BTD, rows))


def _draw(logits_BMV: Tensor, uniform_BM: Tensor) -> Tensor:
    """Draw tokens (B, M) by inverting the cumulative distribution, in float64."""
    below_BMV = logits_BMV.double().softmax(dim=-1).cumsum(dim=-1)
    token_BM = torch.searchsorted(below_BMV, uniform_BM[..., None], right=True)[..., 0]
    return token_BM.clamp(max=logits_BMV.shape[-1] - 1)


def row_numbers(rows: MaskedBatch[Tensor]) -> Tensor:
    """Hash a row's tokens, which are masked, and each of these: numbers (B, M) in [0, 1)."""
    place_BM, used_BM = rows.masked_positions, (rows.masked_weights > 0).long()
    place_T = torch.arange(rows.ids.shape[1], device=rows.ids.device)
    tokens_BT = _mix(unmasked(rows)[0] * _MIX[0] + place_T) * real_tokens(rows)
    key_B = tokens_BT.sum(1) + (_mix(place_BM + _MIX[0]) * used_BM).sum(1)
    number_BM = _mix(key_B[:, None] + place_BM * _MIX[0])
    return ((number_BM >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    """Scramble the bits of int64 numbers, whose products wrap around."""
    for factor in (*_MIX[1:], 1):
        x = (x ^ (x >> 29 & (1 << 35) - 1)) * factor  # a shift that brings in zeros
    return x


def real_tokens(rows: MaskedBatch[Tensor]) -> Tensor:
    """Mark the tokens that are not padding, (B, T)."""
    if rows.document is not None:
        return rows.document > 0
    place_T = torch.arange(rows.ids.shape[1], device=rows.ids.device)
    lengths_B = rows.ids.shape[1] if rows.lengths is None else rows.lengths[:, None]
    return (place_T < lengths_B).expand_as(rows.ids)


def _losses(outputs: Detected, batch: MaskedBatch[Tensor]) -> Losses:
    masked = masked_losses(PretrainingLogits(outputs.mlm, None), batch)
    logits_BT, real_BT = at_least_float32(outputs.logits), real_tokens(batch)
    losses_BT = functional.binary_cross_entropy_with_logits(
        logits_BT, outputs.replaced.to(logits_BT.dtype), reduction="none"
    )
    total = (losses_BT * real_BT).sum()
    total = total.detach() + _WEIGHT * (total - total.detach())  # the factor is the gradient's
    correct = (((logits_BT > 0) == outputs.replaced) & real_BT).sum().to(masked.correct.dtype)
    return Losses(
        torch.cat((masked.total, total[None].to(masked.total.dtype))),
        torch.cat((masked.correct, correct[None])),
    )


def _counts(batch: MaskedBatch[Tensor]) -> Tensor:
    real = real_tokens(batch).sum().to(batch.masked_weights.dtype)
    return torch.stack((batch.masked_weights.sum(), real))


def _more_flops(family: Any, V: int, T: int, M: float) -> float:
    """The generator, with its layers over a row and its way out at masked positions; the detector.
    The head for tokens counts as in `mlm`."""
    small, D = shrink_family(family), family.hidden_size
    way = 6 * D * small.hidden_size * (1 + M / T)
    return small.stack_flops(T, False) + way + 6 * (D * D + D)


REPLACED_TOKENS: Objective = dataclasses.replace(
    MLM,
    name="replaced_tokens",
    pair=Part(
        "detection", "replaced-token", "Tokens told to be replaced or original", "token", 2, 0.15
    ),
    loss=Loss(_counts, sums=_losses),
    origin=Origin(2020, "Clark et al.", "finds the words that a smaller model has replaced"),
    head=OwnHead(make=ReplacedTokensModel, more_flops=_more_flops),
)
