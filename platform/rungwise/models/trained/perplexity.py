"""Perplexity and bits per byte of held-out text, for every model that gives probabilities.

    nats per token   -sum of ln P / number of tokens; its exponential is the perplexity
    bits per byte    the same sum in bits / bytes of the text in UTF-8

Perplexity is per token, so it compares models with one vocabulary. Bits per byte compare any two
models that predict the whole text; `predicted` includes end symbols. Pseudo-likelihoods (`is_exact`
False) are no code lengths; compare them only with each other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rungwise.core.errors import DataError
from rungwise.models.trained.capabilities import LanguageModel


@dataclass(frozen=True)
class Perplexity:
    """A model's surprise at a text; `is_exact` as in `LanguageModel`."""

    nats_per_token: float
    bits_per_byte: float
    predicted: int  # tokens
    is_exact: bool

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats_per_token)


def perplexity(model: LanguageModel, texts: Sequence[Sequence[int]], text_bytes: int) -> Perplexity:
    """Measure `model` on documents of `text_bytes` bytes in total. Each text holds a document's
    ids, followed by the end symbol if that should be predicted. Raises DataError if there is no
    token or no byte."""
    predicted = sum(len(text) for text in texts)
    if not predicted or text_bytes < 1:
        raise DataError(
            f"expected held-out text to measure a perplexity on, found {predicted} tokens of "
            f"{text_bytes} bytes; raise corpus.held_out_fraction, or add documents"
        )
    nats = -math.fsum(float(row.sum()) for row in model.log_probabilities(texts))
    return Perplexity(nats / predicted, nats / math.log(2) / text_bytes, predicted, model.is_exact)
