"""Perplexity and bits per byte of held-out text, for every model that gives probabilities.

    nats per token   -sum of ln P over the tokens, by their number; exp of it is the perplexity
    bits per byte    the same sum in bits, by the bytes of the text in UTF-8

A perplexity is by token, so it compares models of one vocabulary. Bits per byte are by text and
compare any two, as long as both predict all of it: `predicted` counts the end symbols too. Of a
pseudo-likelihood (`is_exact` False) neither is a code length; compare it with its like.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rungwise.core.errors import DataError
from rungwise.models.capabilities import LanguageModel


@dataclass(frozen=True)
class Perplexity:
    """A model's surprise at a text. `is_exact` as in `LanguageModel`."""

    nats_per_token: float
    bits_per_byte: float
    predicted: int  # tokens
    is_exact: bool

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats_per_token)


def perplexity(model: LanguageModel, texts: Sequence[Sequence[int]], text_bytes: int) -> Perplexity:
    """The surprise of `model` at these documents, of `text_bytes` bytes together.

    Each is the ids of a document, with the end symbol behind them if that is to be predicted.
    Raises DataError if there is no token or no byte.
    """
    predicted = sum(len(text) for text in texts)
    if not predicted or text_bytes < 1:
        raise DataError(
            f"expected held-out text to measure a perplexity on, found {predicted} tokens of "
            f"{text_bytes} bytes; raise corpus.held_out_fraction, or add documents"
        )
    nats = -math.fsum(float(row.sum()) for row in model.log_probabilities(texts))
    return Perplexity(nats / predicted, nats / math.log(2) / text_bytes, predicted, model.is_exact)
