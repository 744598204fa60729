"""The interface of a kind of instances, and the checks that every kind makes of its shards.

A kind is a config that builds and checks shards, turns their rows into batches, and says what
people see of them. The platform uses kinds only through this interface.
"""

import math
import operator
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator
from pydantic import Field

from rungwise.core.arrays import Ints
from rungwise.core.configuration.config import Config
from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import PerSplit
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances.batch import Batch
from rungwise.instances.masking import Vocabulary
from rungwise.instances.shards import PaddedRows, Shard
from rungwise.tokenizer.token_stage import TokensConfig

_CHANCE = 12.5  # nats: five standard errors of many draws; e^-12.5 is 1 in 270,000
_TOKENS_AT_ONCE = 1 << 22
_RELATIONS = {
    "exactly": operator.eq,
    "at most": operator.le,
    "at least": operator.ge,
    "below": operator.lt,
}


def check_bound(shard: str, figure: str, value: int, relation: str, bound: int) -> None:
    """Raise DataError naming the `shard`, the figure, the bound and `value`, unless it holds."""
    if not _RELATIONS[relation](value, bound):
        raise DataError(f"{shard}: {figure} must be {relation} {bound}, found {value}")


@dataclass(frozen=True)
class Facts:
    """Facts that a shard is checked against, besides its config."""

    name: str  # of the shard, for messages
    vocab_size: int
    special: SpecialIds
    seed: int
    sections: int = 1  # sections of text that the shard was built from
    labels: int = 0  # how many there are

    def check(self, figure: str, value: int, relation: str, bound: int) -> None:
        """Raise DataError naming the shard, the figure, the bound and `value`, unless it holds."""
        check_bound(self.name, figure, value, relation, bound)

    def check_rows(self, shard: Shard, longest: int, expected: Mapping[int, int]) -> dict[str, Any]:
        """Check the rules of every kind: row lengths, range of ids, counts of special tokens. Rows
        must have 1 to `longest` tokens. `expected` is the exact count of each special id, 0 for ids
        not named; [UNK] is exempt. Returns counts that add up over shards: `instances`, `tokens`.
        Raises DataError naming the shard, the figure and the bound."""
        lengths, ids = shard.lengths, shard.ids
        self.check("longest instance", int(lengths.max(initial=0)), "at most", longest)
        self.check("shortest instance", int(lengths.min(initial=1)), "at least", 1)
        self.check("largest id", int(ids.max(initial=0)), "below", self.vocab_size)
        # One pass over the ids, not one per special token; in parts, because bincount copies.
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for begin in range(0, len(ids), _TOKENS_AT_ONCE):
            counts += np.bincount(ids[begin : begin + _TOKENS_AT_ONCE], minlength=self.vocab_size)
        for token in self.special.ids:
            if token != self.special.unk:
                figure = f"tokens {self._name_token(token)}"
                self.check(figure, int(counts[token]), "exactly", expected.get(token, 0))
        return {"instances": len(shard), "tokens": int(lengths.sum())}

    def _name_token(self, token: int) -> str:
        for role in ("pad", "cls", "sep", "mask", "end"):
            if getattr(self.special, role) == token:
                return f"[{role.upper()}]"
        return f"with the special id {token}"


@dataclass(frozen=True)
class ContractShare:
    """A share, `part` of `whole`, with its expected value and bound."""

    figure: str
    part: int
    whole: int
    expected: float
    bound: float
    tokens_a_draw: float = 1.0  # how many of `whole` share one draw

    @property
    def draws(self) -> float:
        """Number of independent draws that decide the share."""
        return self.whole / self.tokens_a_draw

    @property
    def too_small_to_say(self) -> bool:
        """Whether the bound is below the standard error of the share."""
        return self.draws * self.bound**2 < self.expected * (1 - self.expected)

    def check(self, name: str) -> None:
        """Raise DataError unless the share is within its bound or within chance (Chernoff)."""
        share = self.part / max(self.whole, 1)
        far = self.draws * _divergence(share, self.expected)
        if abs(share - self.expected) > self.bound and far > _CHANCE:
            raise DataError(
                f"{name}: {self.figure} must be within {self.expected:.4g} +- {self.bound:.3g} or "
                f"the chance of {self.draws:.0f} draws, found {round(share, 4)}"
            )


def check_shares(name: str, shares: Iterable[ContractShare]) -> list[str]:
    """Check shares; return the figures with too few draws to tell. Raises DataError naming the
    figure and the bound."""
    small: list[str] = []
    for share in shares:
        share.check(name)
        if share.too_small_to_say:
            small.append(share.figure)
    return small


def _divergence(share: float, expected: float) -> float:
    """Kullback-Leibler divergence of `share` from `expected`, in nats per draw."""
    return sum(
        p * math.log(p / max(q, 1e-12))
        for p, q in ((share, expected), (1 - share, 1 - expected))
        if p > 0
    )


@dataclass(frozen=True)
class Built:
    """A shard, and counts from building it that add up over shards."""

    shard: Shard
    counts: dict[str, int]


class Kind(Config):
    """A kind of instances; each subclass has a literal `kind` with its default."""

    kind: Any
    seed: int = Field(default=0, ge=0)

    needs_other_documents: ClassVar[bool] = False  # so that shards borrow some of other files
    labelled: ClassVar[bool] = False  # built from the pairs of a task, not from the corpus

    @property
    @abstractmethod
    def length(self) -> int:
        """T: the tokens of the longest row, as a model reads it."""

    @property
    def width(self) -> int:
        """The tokens of the longest row, as it is stored."""
        return self.length

    @property
    def masked_per_row(self) -> float:
        """The mean number of tokens masked in a full row."""
        return 0.0

    @property
    def tokens(self) -> TokensConfig:
        """The config of the tokens that these instances are built from."""
        return TokensConfig()

    @property
    def holds_several_texts(self) -> bool:
        """Whether a row is several texts that a model reads as one row."""
        return False

    @property
    def identity(self) -> dict[str, Any]:
        """The keys that decide the result and have not decided the tokens already."""
        return self.model_dump(mode="json")

    def check_documents(self, documents: PerSplit) -> None:
        """Raise DataError if the corpus has too few documents."""

    def build(
        self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int | None = None
    ) -> Built:
        """Build the rows of the first `planned` documents, or of all; the others only lend text.
        Raises DataError if the text or the special tokens do not suffice."""
        return self.make(text, special, rng, len(text.documents) if planned is None else planned)

    @abstractmethod
    def make(self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int) -> Built:
        """Make what `build` returns."""

    @abstractmethod
    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        """Check a shard and return counts that add up over shards (`most_*`: the maximum), those of
        `check_rows` among them. Raises DataError naming the figure and the bound."""

    @abstractmethod
    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        """Turn summed counts into the statistics of an artifact."""

    def count_unused_tokens(self, totals: Mapping[str, Any]) -> dict[str, int | float]:
        """The tokens of the text that no row has, and their share."""
        unused = totals["tokens_unused"]
        return {"tokens_unused": unused, "unused_share": unused / max(totals["text_tokens"], 1)}

    def headline(self, totals: dict[str, Any], statistics: dict[str, Any]) -> str:
        """Check all shards together and describe them in one line. Raises DataError as `check`."""
        return ""

    @abstractmethod
    def batch(self, rows: PaddedRows, epochs: Ints, seed: int, vocab: Vocabulary) -> Batch:
        """The rows as they are read in these epochs (B,)."""
