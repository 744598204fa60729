"""The models that encoder families build for an objective: the body with what stands on it.

A family calls `build` and `flops` and does not ask which head it has. A family that has one model
only, such as GPT, builds it itself; its objectives have the base class.

Shapes: T sequence, D hidden, V vocabulary, M masked positions per row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

MoreFlops = Callable[[Any, int, int, float], float]  # of the family, V, T and M


@dataclass(frozen=True, kw_only=True)
class ModelHead:
    """The layers of a model above its body, for one objective."""

    gives_sentences: ClassVar[bool] = False  # whether the model gives one vector per text
    dropout: float = 0.0  # used if the model's dropout is 0


class EncoderHead(ModelHead, ABC):
    """A head of an `EncoderFamily` (families/bert.py)."""

    @abstractmethod
    def build(self, family: Any, vocab_size: int, vocab_multiple: int) -> nn.Module:
        """Build the model, with random weights."""

    @abstractmethod
    def flops(self, family: Any, V: int, T: int, M: float) -> float:
        """Count the operations per token; see `Family.flops_per_token`."""


@dataclass(frozen=True, kw_only=True)
class MaskedTokensHead(EncoderHead):
    """The head for masked tokens, and for `pairs` one on the pooled state."""

    pairs: bool = False

    def build(self, family: Any, vocab_size: int, vocab_multiple: int) -> nn.Module:
        return family.masked(vocab_size, vocab_multiple, self.pairs)

    def flops(self, family: Any, V: int, T: int, M: float) -> float:
        """Count the blocks, the MLM head at M positions, and pooler and NSP once per sequence:

            stack_flops + 6·M/T·(D² + D·V) + 6/T·(D² + 2·D)

        BERT base with 15 % masked and V = 30,522: 545.4 MFLOP at T = 128, 587.9 at T = 512.
        """
        D = family.hidden_size
        tokens = family.stack_flops(T, False) + _token_flops(family, V, T, M)
        return tokens + (6 / T * (D * D + 2 * D) if self.pairs else 0.0)


class NextTokenHead(EncoderHead):
    """The head for tokens on every state of a causal body."""

    def build(self, family: Any, vocab_size: int, vocab_multiple: int) -> nn.Module:
        return family.next_token(vocab_size, vocab_multiple)

    def flops(self, family: Any, V: int, T: int, M: float) -> float:
        return family.stack_flops(T, True) + _token_flops(family, V, T, T)


@dataclass(frozen=True, kw_only=True)
class OwnHead(EncoderHead):
    """A model of the objective, which reads both ways and has the family's head for tokens."""

    make: Callable[[Any, Any, Any], nn.Module]  # takes the family, its body and its head
    more_flops: MoreFlops = lambda *_: 0.0

    def build(self, family: Any, vocab_size: int, vocab_multiple: int) -> nn.Module:
        body = family.stack(vocab_size, vocab_multiple, causal=False)
        return self.make(family, body, family.head(vocab_size))

    def flops(self, family: Any, V: int, T: int, M: float) -> float:
        tokens = family.stack_flops(T, False) + _token_flops(family, V, T, M)
        return tokens + self.more_flops(family, V, T, M)


def _token_flops(family: Any, V: int, T: int, predicted: float) -> float:
    D = family.hidden_size
    return 6 * predicted / T * (D * D + D * V)
