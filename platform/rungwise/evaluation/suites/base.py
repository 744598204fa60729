"""Suites: evaluations of any rung that offers the capability they need, and the columns, tables and
pictures that they bring to the page of a ladder, which lays them out without knowing the suite."""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rungwise.core.configuration.config import Config
from rungwise.core.errors import DataError, explain_connection_errors
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Reporter
from rungwise.core.storage.source_files import (
    Paths,
    SourceFile,
    digest_matching_files,
    list_matching_files,
)
from rungwise.core.tokens import SpecialIds
from rungwise.corpus.document import Document, read_documents
from rungwise.corpus.summary import CorpusSummary
from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites.items import METRICS, Items, MeasureSummary, SuiteScore
from rungwise.models.trained.capabilities import Encoder
from rungwise.tasks.formats.base import FormatConfig, read_text, split_lines
from rungwise.tokenizer import CLEAN_UP, Encoded, load_reader, open_encoder
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.training.pretrained import load_encoder, load_model
from rungwise.training.summary import PretrainSummary

PSEUDO = "pseudo"  # the part of two-sided models
Point = tuple[float, float, float, float]  # x, mean, low, high
ScoreRows = Mapping[tuple[str, str], Mapping[str, SuiteScore]]
_TYPICAL_TOKENS = 50_000.0  # that take as long as a suite of a few thousand texts
TOKEN_BYTES = 4.5  # of UTF-8


@dataclass(frozen=True)
class Rung:
    """A trained model with its text, as seen by suites."""

    pretrain: Artifact
    tokens: Artifact
    tokenizer: Artifact
    corpus: Artifact
    report: Reporter
    is_trained: bool = True  # else with the random weights that training could begin with

    @cached_property
    def model(self) -> Any:
        """The model on the CPU; test for its capabilities with `isinstance`."""
        return load_model(self.pretrain, trained=self.is_trained)

    @cached_property
    def encoder(self) -> Encoder | None:
        return load_encoder(self.pretrain, self.is_trained)

    @cached_property
    def untrained(self) -> "Rung | None":
        """The same model before training; None for one that is not fitted by gradient."""
        return None if self.summary.gradient is None else replace(self, is_trained=False)

    @cached_property
    def summary(self) -> PretrainSummary:
        return PretrainSummary.of(self.pretrain)

    @cached_property
    def held_out(self) -> list[tuple[str, Document]]:
        """The documents of the held-out split, each with its source."""
        return [
            (row.source, document)
            for row in CorpusSummary.of(self.corpus).files
            if row.split == "validation"
            for document in read_documents(self.corpus.folder, row.file)
        ]

    @property
    def special(self) -> SpecialIds:
        return TokensSummary.of(self.tokens).special

    @cached_property
    def splitter(self) -> Any:
        """The tokenizer of the `tokenizers` library, which cleans texts up as the corpus was."""
        return load_reader(self.tokenizer.folder)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens."""
        encoded = self.encode_array(texts)
        return _split_by_text(encoded.ids, encoded)

    def encode_words(self, texts: Sequence[str]) -> tuple[list[list[int]], list[list[bool]]]:
        """The ids of each text, and for each id whether a word of the tokenizer begins there."""
        encoded = self.encode_array(texts, words=True)
        assert encoded.word_starts is not None
        return _split_by_text(encoded.ids, encoded), _split_by_text(encoded.word_starts, encoded)

    def encode_array(self, texts: Sequence[str], words: bool = False) -> Encoded:
        """The ids of all texts in one array, without special tokens."""
        clean = pa.array(map(CLEAN_UP.normalize_str, texts), pa.string())
        return open_encoder(self.tokenizer.folder).encode(clean, words=words)


def _split_by_text(values: NDArray[Any], encoded: Encoded) -> list[list[Any]]:
    return [part.tolist() for part in np.split(values, encoded.lengths.cumsum())[:-1]]


@dataclass(frozen=True)
class MeasuredRung:
    """A rung with its summaries. `also` names other uses of its weights, `measured` is one artifact
    per seed of pretraining and `measure` all of them together; `pretrain` is of the first."""

    name: str
    also: tuple[str, ...]
    pretrain: PretrainSummary
    measured: tuple[Artifact, ...]
    measure: MeasureSummary
    tokenizer: str  # its fingerprint

    def scores(self, suite: str) -> list[SuiteScore]:
        """The values of a suite over all its items."""
        return [row for row in self.measure.scores if row.suite == suite and row.group is None]


Rungs = Sequence[MeasuredRung]


@dataclass(frozen=True)
class Cell:
    """A value with its interval; `exact` unless it is a pseudo-likelihood."""

    value: Estimate
    exact: bool = True


@dataclass(frozen=True)
class Column:
    """A score that rungs are compared by, of a part of a `suite` ("": of tasks). `best` are the
    rungs with the best exact value, if values compare; `chosen` those whose settings this text has
    chosen, so that they are too good; `floors` values without pretraining, by their name."""

    name: str
    under: str  # second line of the column head: the part of the suite
    metric: str
    cells: Mapping[str, Cell]
    best: frozenset[str]
    suite: str = ""
    floors: Mapping[str, float] = field(default_factory=dict)
    meaning: str = ""  # in plain words
    chosen: frozenset[str] = frozenset()

    @property
    def has_pseudo(self) -> bool:
        return not all(cell.exact for cell in self.cells.values())


def compare_rungs(
    rungs: Rungs, suite: str, metric: str, part: str = "", *, ranked: bool = True, **more: Any
) -> Column:
    """The column of one value of a suite, a pseudo-likelihood for rungs that have no other; `more`
    are further fields, the `name` among them if it is not that of the suite."""
    cells = {}
    for rung in rungs:
        for each in (part, f"{PSEUDO} {part}".strip()):
            if score := rung.measure.value(suite, metric, each):
                cells[rung.name] = Cell(score.estimate, exact=each == part)
    best = find_best(cells, metric) if ranked else frozenset[str]()
    fields: dict[str, Any] = {"name": suite} | more
    return Column(under=part, metric=metric, cells=cells, best=best, suite=suite, **fields)


def find_best(cells: Mapping[str, Cell], metric: str) -> frozenset[str]:
    """The rungs with the best exact value; none if fewer than two have one."""
    values = {
        name: cell.value.mean
        for name, cell in cells.items()
        if cell.exact and not math.isnan(cell.value.mean)
    }
    if len(values) < 2:
        return frozenset()
    best = (max if METRICS[metric].higher_is_better else min)(values.values())
    return frozenset(name for name, value in values.items() if value == best)


def plot_value(x: float, value: float) -> Point:
    return x, value, value, value


def plot_estimate(x: float, estimate: Estimate, factor: float = 1.0) -> Point:
    """A point with the interval of an estimate, in units of 1 over `factor`."""
    return x, factor * estimate.mean, factor * estimate.low, factor * estimate.high


@dataclass(frozen=True)
class Panel:
    """A part of a picture: a line for each rung through its points. Where x is a size, its axis is
    logarithmic from a factor of ten on."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[Point]]
    is_size: bool = False


@dataclass(frozen=True)
class SuiteBlock:
    """The part of a suite in a section of the page: words, and a table whose rows have a name, what
    stands below it, and a score of each rung."""

    suite: str
    head: str  # of the names
    rows: ScoreRows
    words: str = ""

    @property
    def rungs(self) -> set[str]:
        """The rungs with a score in the table."""
        return {name for by_rung in self.rows.values() for name in by_rung}


def tabulate_scores(rungs: Rungs, suite: str) -> SuiteBlock:
    """The table of all values of a suite: a row for each part and metric."""
    rows: dict[tuple[str, str], dict[str, SuiteScore]] = {}
    for rung in rungs:
        for score in rung.scores(suite):
            row = score.part, score.metric.replace("_", " ")
            rows.setdefault(row, {})[rung.name] = score
    return SuiteBlock(suite, "part", rows)


@dataclass(frozen=True)
class ExpectedText:
    """Facts known before a suite runs, by which its tokens are estimated: the tokens held out,
    the suite's files, whether the model gives the probability of a text, and the tokens of the
    longest row of one that masks them in turn."""

    held_out: float
    files: int = 0
    file_bytes: int = 0  # unpacked
    rates_texts: bool = True
    masked_row: int | None = None

    def tokens(self, predicted: float, length: float) -> float:
        """The tokens that are read to predict so many, of texts of this length."""
        passes = 1 if self.masked_row is None else min(length, self.masked_row)
        return predicted * passes * self.rates_texts


class Suite(Config):
    """The keys that suites share. `needs` is the `capability` of the model in words; `reads` are
    keys that name files, which digests stand for where it is decided whether to measure again."""

    needs: ClassVar[str]
    capability: ClassVar[type]
    reads: ClassVar[tuple[str, ...]] = ()
    of_held_out: ClassVar[bool] = False  # unless it has a `path`
    section: ClassVar[str] = "Words, sentences, speed"  # of a ladder's page

    kind: Any

    @property
    def on_held_out(self) -> bool:
        """Whether its items are made of the held-out text."""
        return self.of_held_out and getattr(self, "path", None) is None

    def serves(self, rung: Rung) -> bool:
        """Whether the rung has what the suite needs."""
        return isinstance(rung.model, self.capability)

    @abstractmethod
    def measure(self, rung: Rung, name: str) -> list[Items]:
        """Measure the rung; `name` is the suite's key. Raises DataError for unreadable files."""

    def count_tokens(self, text: ExpectedText) -> float:
        """About how many tokens a model reads for it. The time of classifiers counts as theirs."""
        return _TYPICAL_TOKENS

    def columns(self, name: str, rungs: Rungs) -> list[Column]:
        """The scores in the table of a ladder."""
        return []

    def show(self, name: str, rungs: Rungs) -> SuiteBlock | None:
        """The suite's block in its `section`; None if its columns say all."""
        return tabulate_scores(rungs, name)

    def rated_pairs(self, key: str) -> dict[str, list[frozenset[str]]]:
        """The pairs of words that it asks to rate, by file."""
        return {}

    def outside(self, key: str) -> dict[str, Any]:
        """Digests of the files it reads."""
        return {
            name: digest_matching_files(paths, f"{key}.{name}")
            for name in self.reads
            if (paths := getattr(self, name)) is not None
        }


class FileSuite(Suite):
    reads: ClassVar[tuple[str, ...]] = ("path",)

    path: Paths  # files, folders or globs with the data


def read_examples(
    paths: Paths, form: FormatConfig, split: str, key: str, counts: Counter[str]
) -> list[Any]:
    """Read the examples of all files in a format of tasks, each named by file and line. Raises
    DataError, naming `key`, for data that cannot be used."""
    examples: list[Any] = []
    for file in list_matching_files(paths, key):
        with explain_connection_errors(file.uri, key):
            try:
                examples += form.read(file, split, counts)
            except DataError as error:  # in the words of a task
                block = f"{key.rpartition('.')[0]}.format"
                raise DataError(str(error).replace("data.format", block)) from None
    return examples


def read_lines(
    paths: Paths, key: str, endings: tuple[str, ...] = ("",)
) -> Iterator[tuple[SourceFile, int, str]]:
    """Yield (file, number from 1, line) for the lines of all files whose names end so."""
    for file in list_matching_files(paths, key):
        if not file.name.endswith(endings):
            continue
        with explain_connection_errors(file.uri, key):
            lines = split_lines(read_text(file))
        for number, line in enumerate(lines, start=1):
            yield file, number, line
