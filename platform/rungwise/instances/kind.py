"""The interface of a kind of instances.

A kind is a config, derived from `Kind`, that builds and checks shards, turns their rows into
batches, and says what people see of them. The platform uses kinds only through this interface;
kinds.py lists them in one union. Kinds of the same form share their batch class.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.core.stages.summary import PerSplit
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances.batch import Batch
from rungwise.instances.contract import Facts
from rungwise.instances.masking import Vocabulary
from rungwise.instances.shards import PaddedRows, Shard
from rungwise.tokenizer.token_stage import TokensConfig

PieceKind = Literal["special", "plain", "masked", "random", "kept", "opens"]
Spell = Callable[[int], str]  # writes a token


@dataclass(frozen=True)
class Built:
    """A shard, and counts from building it that add up over shards."""

    shard: Shard
    counts: dict[str, int]


@dataclass(frozen=True)
class ColouredPiece:
    """One token of a row for people to see; `original` is the token that masking has hidden."""

    token: int
    kind: PieceKind = "plain"
    segment: int = 0  # neighbours with other numbers are other texts
    original: int | None = None


@dataclass(frozen=True)
class ShownRow:
    """The tokens of a row without padding, and what a model is asked about them, in words.
    `answer` is how its segments are related, empty if that is not asked."""

    pieces: list[ColouredPiece]
    note: str
    answer: str = ""


@dataclass(frozen=True)
class Figure:
    """A share over all instances, as configured and in the paper, for the page."""

    name: str
    measured: float
    configured: float | None = None
    paper: str = ""
    digits: int = 2  # of the measured percentage


@dataclass(frozen=True)
class WholeRow:
    """A row before masking: its padded ids, and the first text in it, [1, end)."""

    ids: list[int]
    segments: list[int]
    length: int  # of the part that a model reads to fill in a blank
    end: int
    hides: bool  # whether the model reads [MASK] in place of the token that it predicts


def count_unused_tokens(totals: Mapping[str, Any]) -> dict[str, int | float]:
    """The tokens of the text that no row has, and their share, for `Kind.statistics`."""
    unused = totals["tokens_unused"]
    return {"tokens_unused": unused, "unused_share": unused / max(totals["text_tokens"], 1)}


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
    def passes(self) -> int:
        """How often the text is passed through `build`, each time with other random numbers."""
        return 1

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

    @abstractmethod
    def build(
        self, text: TokenisedText, special: SpecialIds, rng: Generator, planned: int | None = None
    ) -> Built:
        """Build the rows of the first `planned` documents, or of all; the others only lend text.
        Raises DataError if the text or the special tokens do not suffice."""

    @abstractmethod
    def check(self, shard: Shard, facts: Facts) -> dict[str, Any]:
        """Check a shard and return counts that add up over shards (`most_*`: the maximum), those of
        `check_rows` among them. Raises DataError naming the figure and the bound."""

    @abstractmethod
    def statistics(self, totals: dict[str, Any]) -> dict[str, int | float]:
        """Turn summed counts into the statistics of an artifact."""

    def headline(self, totals: dict[str, Any], statistics: dict[str, Any]) -> str:
        """Check all shards together and describe them in one line. Raises DataError as `check`."""
        return ""

    @abstractmethod
    def batch(
        self, rows: PaddedRows, epochs: NDArray[np.int64], seed: int, vocabulary: Vocabulary
    ) -> Batch[NDArray[Any]]:
        """The rows as they are read in these epochs (B,)."""

    @abstractmethod
    def random_batch(self, B: int, vocab_size: int) -> Batch[Any]:
        """Full rows of random tokens, as tensors, to measure the speed of a step."""

    @abstractmethod
    def show(self, batch: Any, row: int, vocabulary: Vocabulary, spell: Spell) -> ShownRow:
        """A row of a batch for people to see."""

    def figures(self, statistics: dict[str, Any]) -> list[Figure]:
        """The shares that the page compares with the paper."""
        return []

    def whole_row(self, batch: Any, row: int) -> WholeRow:
        """A row before masking, for a model that fills in blanks."""
        raise AssertionError(f"no model fills in blanks of {self.kind}")
