"""The neural bigram model (Xu & Rudnicky 2000, "Can artificial neural networks learn language
models?", ICSLP): a network without a hidden layer from the word before to the next.

    p(j | i) = softmax over j of W[i, j] + b[j]

Its optimum is the relative frequency of each pair, so the training loss falls to the conditional
entropy of the text and never below; only stopping early smooths it.

The words before repeat in a batch, so each distinct one is normalised once.

Shapes: B batch, T sequence, U distinct words, V vocabulary, X tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.tokens import SpecialIds
from rungwise.instances.batch import CausalBatch
from rungwise.models.family import Family
from rungwise.models.losses.cross_entropy import TokenSums, at_least_float32
from rungwise.models.losses.objectives import CAUSAL, Objective


class BigramConfig(Family):
    """A neural bigram model; it has no sizes but the vocabulary's."""

    objectives: ClassVar = (CAUSAL,)

    year: ClassVar[int] = 2000
    paper: ClassVar[str] = "Xu & Rudnicky"
    idea: ClassVar[str] = "a network that guesses the next word from the one before"
    page: ClassVar[str] = "neural bigram model"

    kind: Literal["bigram"] = "bigram"

    @property
    def compiles(self) -> bool:
        return False  # the number of distinct words differs

    @property
    def depth(self) -> int:
        return 1

    @property
    def width(self) -> int:
        return 1

    def describe(self) -> str:
        return "order 2, 1 weight for each pair of words"

    def build(self, vocab_size: int, objective: Objective, vocab_multiple: int = 1) -> nn.Module:
        return Bigram(vocab_size)

    def trained(self, model: Any, objective: Objective, special: SpecialIds) -> "BigramModel":
        return BigramModel(model, *special.require("end"))

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count one product by each weight of a row, which is looked up: 6·V."""
        return float(6 * V)


class Bigram(nn.Module):
    """The weights W and b; W is zeros at the start."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.pairs = nn.Embedding(vocab_size, vocab_size)
        nn.init.zeros_(self.pairs.weight)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, rows: CausalBatch[Tensor]) -> TokenSums:
        """Sum the cross entropy of the next tokens."""
        words_U, place_X = rows.ids.flatten().unique(return_inverse=True)
        targets_X, weights_X = rows.targets.flatten(), rows.weights.flatten()
        logits_UV = at_least_float32(self.logits(words_U))
        losses_X = logits_UV.logsumexp(1)[place_X] - logits_UV[place_X, targets_X]
        right_X = logits_UV.argmax(1)[place_X] == targets_X
        return TokenSums((losses_X * weights_X).sum(), (right_X * weights_X).sum())

    @torch.no_grad()
    def set_word_shares(self, shares_V: Tensor) -> bool:
        self.bias.copy_(shares_V.log())
        return True

    def logits(self, ids: Tensor) -> Tensor:
        """Return the logits (..., V) of the token that follows each one."""
        return functional.embedding(ids, self.pairs.weight) + self.bias


@dataclass(frozen=True)
class BigramModel:
    """A trained model as `LanguageModel`; it has no word vectors. `end` opens a document."""

    module: Bigram
    end: int

    is_exact: ClassVar[bool] = True

    @property
    def vocab_size(self) -> int:
        return len(self.module.bias)

    @torch.no_grad()
    def log_probabilities(self, texts: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
        """Return the natural log-probability of each token; see `LanguageModel`."""
        scores = []
        for text in texts:
            ids = torch.tensor([self.end, *text], device=self.module.bias.device)
            words_U, place_N = ids[:-1].unique(return_inverse=True)
            log_UV = self.module.logits(words_U).float().log_softmax(1)
            scores.append(log_UV[place_N, ids[1:]].double().cpu().numpy())
        return scores

    def target_logits(self, batch: CausalBatch[Tensor]) -> Tensor:
        return self.module.logits(batch.ids)

    def next_logits(self, ids_BT: Tensor) -> Tensor:
        return self.module.logits(ids_BT)
