"""Surprisal of held-out text, token by token: -ln of the probability that the model gave.

A left-to-right model conditions on the document so far, a two-direction model on all of the
document but the token. Computed a few blocks at a time, over a bounded number of tokens.

B batch, T sequence, V vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.evaluation.page import held_out
from rungwise.evaluation.page.spelling import token_text
from rungwise.instances.batch import CausalBatch
from rungwise.instances.order import evenly
from rungwise.instances.reader import InstanceReader
from rungwise.models.trained.capabilities import TargetLogits

MOST_TOKENS = 1 << 14  # read per page
_MOST_LOGITS = 1 << 26
_PASSAGE = 21  # stream of the generator
_SHOWN_TOKENS = 160
# The lowest probability of each level; tokens below the last bound form one more level.
LEVELS = (0.5, 0.1, 0.01, 0.001)


@dataclass(frozen=True)
class TokenSurprise:
    """One token of a passage; `first` is the model's best guess at its position."""

    text: str
    probability: float
    first: str
    ends_document: bool

    @property
    def level(self) -> int:
        """0 for an expected token, up to len(LEVELS) for the most surprising."""
        return sum(self.probability < least for least in LEVELS)


@dataclass(frozen=True)
class Passage:
    """A stretch of a held-out block, token by token."""

    instance: int
    tokens: tuple[TokenSurprise, ...]

    @property
    def mean_surprise(self) -> float:
        """Nats per token."""
        return float(-np.mean(np.log([max(token.probability, 1e-30) for token in self.tokens])))

    @property
    def first_right(self) -> int:
        return sum(token.first == token.text for token in self.tokens)


@dataclass(frozen=True)
class ContextRange:
    """Mean surprisal of the tokens predicted after `low` to `high` tokens of context."""

    low: int
    high: int
    tokens: int
    nats: float


def choose_passage(
    model: TargetLogits, reader: InstanceReader, tokenizer: Tokenizer, seed: int
) -> Passage:
    """The beginning of a block, chosen by the seed alone."""
    instance = held_out.draw_instances(seed, _PASSAGE, len(reader))[0]
    batch = held_out.read_as_validated(reader, np.array([instance]))
    count = min(int(batch.weights[0].sum()), _SHOWN_TOKENS)
    with torch.no_grad():
        probability_TV = torch.softmax(
            model.target_logits(batch.tensors())[0, :count].float(), dim=-1
        )
    targets = batch.targets[0, :count]
    right = probability_TV[torch.arange(count), torch.from_numpy(targets)].tolist()
    end = reader.vocabulary.end
    columns = zip(targets.tolist(), right, probability_TV.argmax(dim=-1).tolist(), strict=True)
    return Passage(
        instance,
        tuple(
            TokenSurprise(
                token_text(tokenizer, token), share, token_text(tokenizer, first), token == end
            )
            for token, share, first in columns
        ),
    )


def surprise_by_context(model: TargetLogits, reader: InstanceReader) -> list[ContextRange]:
    """Mean surprisal by the number of tokens read of the document, its opening symbol included.
    Ranges double in width: 1 token, 2 to 3, 4 to 7 and so on."""
    total: NDArray[np.float64] = np.zeros(64)
    count = np.zeros(64, dtype=np.int64)
    for batch, nats in _block_nats(model, reader):
        assert batch.positions is not None
        real = batch.weights > 0
        place = np.frexp(batch.positions[real] + 1)[1] - 1  # 0 of 1, 1 of 2 and 3, 2 of 4 to 7
        total += np.bincount(place, nats[real], minlength=64)
        count += np.bincount(place, minlength=64)
    longest = reader.config.length
    return [
        ContextRange(
            1 << place,
            min((2 << place) - 1, longest),
            int(count[place]),
            float(total[place] / count[place]),
        )
        for place in range(64)
        if count[place]
    ]


@torch.no_grad()
def _block_nats(
    model: TargetLogits, reader: InstanceReader
) -> Iterator[tuple[CausalBatch[NDArray[Any]], NDArray[np.float32]]]:
    """Blocks evenly spread over the split, and the surprisal (B, T) of each token."""
    length = reader.config.length
    most = min(max(1, MOST_TOKENS // length), held_out.MOST_INSTANCES)
    instances = evenly(len(reader), most)
    at_once = max(1, _MOST_LOGITS // (length * reader.vocabulary.size))
    for begin in range(0, len(instances), at_once):
        batch = held_out.read_as_validated(reader, instances[begin : begin + at_once])
        log_BTV = torch.log_softmax(model.target_logits(batch.tensors()).float(), dim=-1)
        targets_BT1 = torch.from_numpy(batch.targets)[:, :, None]
        yield batch, -log_BTV.gather(2, targets_BT1)[:, :, 0].numpy()
