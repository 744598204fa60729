"""How the weights of a family come about: the block `pretrain`, and what it needs of a family.

    gradient       the methods of `Family`
    counts         CountedFamily    sums over the shards of the text, then an estimate
    asynchronous   ReadingFamily    steps while it reads
    cooccurrence   PairsFamily      sums of pairs, then epochs over them
                   SolvedFamily     the same sums, from which all follows at once
                   RefiningFamily   what is counted, and vectors that are given
    interpolation  MixingFamily     a gate between two models that are trained before it

V vocabulary, U units of a text: sentences or documents
"""
# A docstring is all that a method of a protocol has.
# pyright: reportReturnType=false

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rungwise.core.arrays import Ints, Singles
from rungwise.core.configuration.config import Config
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import ConfigError
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.models.family import Family
from rungwise.models.trained.capabilities import Texts

Weights = dict[str, NDArray[Any]]
Losses = tuple[float, int]  # their sum, and their number
Rates = tuple[float, float]  # of learning, at the beginning and the end of a stretch
Shapes = Mapping[str, tuple[Any, tuple[int, ...]]]  # the type and the shape of each array
Create = Callable[[Shapes], Weights]  # makes the arrays of a model, to be filled
Parts = Sequence[Sequence[Any]]  # for each part of a partition, the handles of its tables


class Tasks:
    """Runs functions, here in this process. A handle stands for a result that may be elsewhere."""

    def call(
        self, number: int, function: Callable[..., Sequence[Any]], *arguments: Any
    ) -> Sequence[Any]:
        """Return the handles of the `number` results; arguments may be handles."""
        return function(*arguments)

    def get(self, handle: Any) -> Any:
        return handle

    def wait(self, handle: Any) -> None:
        """Return when the result is there."""


HERE = Tasks()


def merge_parts(parts: Parts, tasks: Tasks, merge: Callable[[Sequence[Any]], Any]) -> Any:
    """Return the sum of all tables; tasks merge each part."""
    sums = [tasks.call(1, lambda *tables: [merge(tables)], *part)[0] for part in parts]
    return merge([tasks.get(part) for part in sums])


def create_arrays(shapes: Shapes) -> Weights:
    """Make arrays in memory."""
    return {name: np.empty(shape, dtype) for name, (dtype, shape) in shapes.items()}


def fill_arrays(create: Create, tensors: Weights) -> Weights:
    """Return the arrays that `create` makes for `tensors`, filled with them."""
    arrays = create({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()})
    for name, tensor in tensors.items():
        arrays[name][...] = tensor
    return arrays


class Fitting(Config):
    """A way in which the weights of a family come about: the block `pretrain` of a recipe. An
    `objective` of null becomes the first of the family (training/fit_config.py)."""

    kind: Any
    objective: str | None = None  # one of the model's objectives; null: its first

    fits: ClassVar[type] = Family  # what a family must be to be fitted this way
    fitter: ClassVar[Callable[..., Any]]  # of the pretrain stage
    reads_tokens: ClassVar[bool] = False  # and not instances; the model is then made of arrays
    # whether its loss is on held-out text, and not on what it learns from
    holds_out: ClassVar[bool] = True
    saves_on_request: ClassVar[bool] = False  # between any two steps
    revision: ClassVar[int] = 0  # raised when the same keys come to make another model

    @property
    def reads_longer(self) -> bool:
        """Whether it also reads `longer_instances`."""
        return False

    @property
    def imported(self) -> str | None:
        """Where the weights of others are that it begins with, if it does."""
        return None

    @property
    def mixed_rows(self) -> Mapping[str, Any]:
        """The rows of the objectives behind the first of a mixture, by name."""
        return {}

    def parts(self, model: Family) -> Mapping[str, "MixturePart"]:
        """The models, by name, that are trained before it and from which it is made."""
        return {}

    @property
    def shared_steps(self) -> int:
        """How many first steps a longer run would share with this one; 0 if it cannot go on."""
        return 0

    def length_key(self, model: Family) -> str | None:
        """The dotted key that says how long it trains, None if it takes what it takes."""
        return None

    def passes(self, model: Family) -> int:
        """How often it reads the text or what was counted of it, unless it takes steps."""
        return 1

    def takes_weights(self, model: Family) -> bool:
        """Whether it can begin with the weights of another fit."""
        return False

    def trains_alone(self, compute: ComputeConfig) -> bool:
        """Whether one process without a GPU trains, which the stage's own task can be."""
        return False

    @property
    def watched(self) -> set[str]:
        """Keys that affect monitoring and not the weights; excluded from the run's identity."""
        return set()

    def require_gradient(self, purpose: str) -> Any:
        """Return this block of a fit by gradient. Raises ConfigError for another kind."""
        raise ConfigError(
            f"pretrain.kind is {self.kind}, which has no {purpose}; expected gradient"
        )

    def check(self, model: Family, compute: ComputeConfig) -> None:
        """Raise ConfigError if `model` cannot be fitted this way on these machines."""


class MixturePart(NamedTuple):
    """A model trained before another, on documents between two shares, and what it `reads`."""

    model: Family
    pretrain: Fitting
    first: float
    last: float
    reads: str | None = None


class TextFile(NamedTuple):
    """A model as lines of text that other programs read."""

    name: str
    loader: str  # which programs
    lines: Iterator[str]


class TabledFamily(Protocol):
    """A family that learns from tables, one of each shard."""

    def split(self, table: Any, parts: int) -> Sequence[Any]:
        """Split the table into parts that can be merged separately."""

    def merge(self, tables: Sequence[Any]) -> Any:
        """Return the sum of tables, the same for any grouping."""


@runtime_checkable
class CountedFamily(TabledFamily, Protocol):
    """A family whose language model is estimated from counts; a table holds counts."""

    def count(self, text: TokenisedText, special: SpecialIds) -> Any:
        """Return the table of one shard."""

    def estimate(
        self, parts: Parts, tasks: Tasks, create: Create, vocab_size: int, special: SpecialIds
    ) -> Weights:
        """Estimate the arrays of the model. Raises DataError if the corpus is too small."""

    def from_tensors(self, tensors: Weights, special: SpecialIds) -> Any:
        """Restore the model from its arrays."""

    def text_file(self, model: Any, words: Sequence[str], special: SpecialIds) -> TextFile:
        """Return the model in the format of other programs, with the word of each id."""


@runtime_checkable
class FileFamily(Protocol):
    """A family that reads models from text files of other programs (`Family.suffixes`)."""

    @classmethod
    def read_text_file(
        cls, path: str, lines: Iterable[bytes], words: Sequence[str], special: SpecialIds
    ) -> tuple[Family, Weights]:
        """Return the config and the arrays of the model in the lines of the file `path`, with the
        word of each id. Raises DataError for a damaged file or other words."""

    def check_given(self, given: Family) -> None:
        """Raise ConfigError unless a model of the family `given` is one of this config."""


class WeightedFamily(Protocol):
    """A family whose weights are learnt in rounds."""

    def start(self, counts_V: Ints, documents: int, seed: int) -> Weights:
        """Return the weights before the first round; a token whose count is 0 is left out."""

    def model(self, weights: Weights, counts_V: Ints) -> Any:
        """Return the model of the weights, whose `to_tensors` returns its arrays by name."""

    def document_vectors(self, weights: Weights) -> Singles | None:
        """Return the vectors of the training documents, or None if it has none."""


class Stretch(NamedTuple):
    """The units [first, last) of a text; unit u is `ids[starts[u]:starts[u + 1]]`."""

    ids: NDArray[np.int32]
    starts: Ints  # (U + 1,)
    documents: Ints  # (U,) the number in the split of the document of each unit
    first: int
    last: int


@runtime_checkable
class ReadingFamily(WeightedFamily, Protocol):
    """A family that learns while it reads."""

    def plan(self, counts_V: Ints) -> Sequence[NDArray[Any]]:
        """Return tables that reading needs, derived from the counts of tokens."""

    def units(self, text: TokenisedText) -> Stretch:
        """Return the text as the units that are read whole, by one task and one thread."""

    def read(self, weights: Weights, plan: Any, text: Stretch, rates: Rates, seed: int) -> Losses:
        """Learn from a stretch, updating `weights` in place; the learning rate goes linearly from
        the first to the second. Rates of 0 measure on held-out text."""

    def average(self, before: Weights, replicas: Sequence[Weights]) -> Weights:
        """Return the mean of replicas that began with the same weights and read different text."""


@runtime_checkable
class CooccurrenceFamily(TabledFamily, Protocol):
    """A family fitted from how often words occur together, or in which documents."""

    def count(self, text: TokenisedText, counts_V: Ints) -> Any:
        """Return the table of one shard, such as of pairs; a token whose count is 0 is left out."""

    def cells(self, table: Any, vocab_size: int) -> tuple[NDArray[Any], ...]:
        """Return the cells of all pairs, as arrays of one length."""


@runtime_checkable
class PairsFamily(WeightedFamily, CooccurrenceFamily, Protocol):
    """One that learns from cells in rounds."""

    def read(self, weights: Weights, cells: Any, order: Ints, rate: float) -> Losses:
        """Learn from cells in this order, updating `weights` in place; a rate of 0 only measures.
        Returns the sum of the losses before each step and their number."""


@runtime_checkable
class SolvedFamily(CooccurrenceFamily, Protocol):
    """One whose vectors are calculated from all cells at once."""

    def solve(self, cells: Any, counts_V: Ints, documents: int, seed: int) -> "Solution":
        """Return the vectors, none for counts of 0. Raises DataError for too few cells."""


@runtime_checkable
class RefiningFamily(CooccurrenceFamily, Protocol):
    """One calculated from all cells and the vectors of the step before (`vectors_by_default`)."""

    vectors_by_default: ClassVar[Mapping[str, Any]]

    def refine(self, vectors: Singles, cells: Any, counts_V: Ints, seed: int) -> "Solution":
        """Return the model on vectors (V, D). Raises DataError if the cells are too few."""


@runtime_checkable
class MixingFamily(Protocol):
    """One that mixes two models. With `residual`, the network learns what counts lack."""

    counts: Family
    network: Family

    @property
    def residual(self) -> bool: ...

    def mix(self, counts: Any, network: Any, texts: Texts, seed: int) -> Any:
        """Return the model of both, its gate fitted on documents that neither has read."""


class Solution(NamedTuple):
    """A model calculated from all cells at once."""

    model: Any  # with `to_tensors`
    loss: float
    documents: Singles | None = None  # a vector for each training document
