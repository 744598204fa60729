"""The values that a suite brings to the page of a ladder: columns, tables and pictures, which the
report lays out and draws without knowing the suite."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites.items import (
    METRICS,
    ItemKey,
    Items,
    MeasureSummary,
    SuiteScore,
    read_items,
)
from rungwise.training.summary import PretrainSummary

Row = dict[str, Any]
PSEUDO = "pseudo"  # the part of two-sided models
NEW = "new text"  # ends the part of what is not in training, where a corpus keeps what is


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

    def items(self, key: ItemKey) -> list[Items]:
        """The items of a metric, of each seed."""
        return [read_items(each)[key] for each in self.measured]

    def file(self, suite: str, name: str) -> Any:
        """A JSON file that a suite wrote, of the first seed; None if there is none."""
        path = f"{suite}/{name}"
        folder = self.measured[0].folder
        return json.loads(folder.read_bytes(path)) if folder.exists(path) else None


@dataclass(frozen=True)
class Cell:
    """A value with its interval; `exact` unless it is a pseudo-likelihood."""

    value: Estimate
    exact: bool = True


@dataclass(frozen=True)
class Column:
    """A score that rungs are compared by, of a part of a `suite` ("": of tasks). `best` are the
    rungs with the best exact value, if values compare; `chosen` those whose settings this text has
    chosen, so that they are too good; `floors` values without pretraining, by their name;
    `published` those of other models on the same questions, of this `source`."""

    name: str
    under: str  # second line of the column head: the part of the suite
    metric: str
    cells: Mapping[str, Cell]
    best: frozenset[str]
    suite: str = ""
    floors: Mapping[str, float] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    meaning: str = ""  # in plain words
    chosen: frozenset[str] = frozenset()

    @property
    def has_pseudo(self) -> bool:
        return not all(cell.exact for cell in self.cells.values())


def compare_rungs(
    rungs: Sequence[MeasuredRung],
    suite: str,
    metric: str,
    part: str = "",
    *,
    name: str = "",
    pseudo: str | None = None,
    ranked: bool = True,
    **more: Any,
) -> Column:
    """The column of one value of a suite; `pseudo` is the part with pseudo-likelihoods."""
    cells = {}
    for rung in rungs:
        for each in (part,) if pseudo is None else (part, pseudo):
            if score := rung.measure.value(suite, metric, each):
                cells[rung.name] = Cell(score.estimate, each != pseudo)
    best = find_best(cells, metric) if ranked else frozenset[str]()
    return Column(name or suite, part, metric, cells, best, suite, **more)


def compare_on_new(rungs: Sequence[MeasuredRung], column: Column) -> Column:
    """The column of the same value on the held-out text that does not stand in training."""
    part, pseudo = (f"{each} {NEW}".strip() for each in (column.under, PSEUDO))
    name, ranked = f"{column.name}, {NEW}", bool(column.best)
    return compare_rungs(
        rungs, column.suite, column.metric, part, name=name, pseudo=pseudo, ranked=ranked
    )


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


@dataclass(frozen=True)
class TableEntry:
    """A cell of a table: a value in the unit of its metric, or a `text`; under it the interval, or
    the text `under`. A `shaded` share is coloured by its distance from 50 %."""

    value: float = math.nan
    metric: str = "accuracy"
    low: float = math.nan
    high: float = math.nan
    text: str = ""
    under: str = ""
    shaded: bool = False


@dataclass(frozen=True)
class TableRow:
    """A row of a table with its entries by rung."""

    name: str
    entries: Mapping[str, TableEntry]
    under: str = ""


@dataclass(frozen=True)
class ScoreTable:
    """A table with a column for each rung."""

    head: str
    rows: Sequence[TableRow]

    @property
    def rungs(self) -> set[str]:
        """The rungs with an entry."""
        return {name for row in self.rows for name in row.entries}


Point = tuple[float, float, float, float]  # x, mean, low, high


def plot_value(x: float, value: float) -> Point:
    """A point without an interval."""
    return x, value, value, value


def plot_estimate(x: float, estimate: Estimate, factor: float = 1.0) -> Point:
    """A point with the interval of an estimate, in units of 1 over `factor`."""
    return x, factor * estimate.mean, factor * estimate.low, factor * estimate.high


@dataclass(frozen=True)
class Panel:
    """A part of a picture: a line for each rung through its points, and perhaps a named level that
    is the same for all. Where x is a size, its axis is logarithmic from a factor of ten on."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[Point]]
    level: tuple[str, float] | None = None
    is_size: bool = False


@dataclass(frozen=True)
class SuiteBlock:
    """The part of a suite in a section of the page. `hint` is of the picture; `csv` are rows of
    files beside the page."""

    suite: str
    words: str = ""
    tables: Sequence[ScoreTable] = ()
    panels: Sequence[Panel] = ()
    hint: str = ""
    csv: Mapping[str, Sequence[Row]] = field(default_factory=dict)


def read_entry(score: SuiteScore) -> TableEntry:
    return TableEntry(score.value, score.metric, score.estimate.low, score.estimate.high)


def tabulate_scores(rungs: Sequence[MeasuredRung], suite: str) -> ScoreTable:
    """The table of all values of a suite: a row for each part and metric."""
    entries: dict[tuple[str, str], dict[str, TableEntry]] = {}
    for rung in rungs:
        for score in rung.scores(suite):
            by_rung = entries.setdefault((score.part, score.metric), {})
            by_rung[rung.name] = read_entry(score)
    rows = [
        TableRow(part, by_rung, metric.replace("_", " "))
        for (part, metric), by_rung in entries.items()
    ]
    return ScoreTable("part", rows)


def make_layer_panels(rungs: Sequence[MeasuredRung], suite: str, frequent: str) -> list[Panel]:
    """A panel for each rule that predicts from single layers, its accuracy by layer; the level is
    the rule's own part named `frequent`, or that of all."""
    lines: dict[str, dict[str, list[Point]]] = {}
    others: dict[str, float] = {}  # of parts without a layer
    for rung in rungs:
        for score in rung.scores(suite):
            rule, _, layer = score.part.rpartition("layer ")
            if not layer.isdecimal():
                others.setdefault(score.part, 100 * score.value)
                continue
            point = plot_estimate(float(layer), score.estimate, 100)
            lines.setdefault(rule.strip(), {}).setdefault(rung.name, []).append(point)
    panels = []
    for rule, by_rung in lines.items():
        level = others.get(f"{rule} {frequent}", others.get(frequent))
        title = f"{suite}, {rule}" if rule else suite
        ordered = {name: sorted(points) for name, points in by_rung.items()}
        named = None if level is None else (frequent, level)
        panels.append(Panel(title, "layer", "accuracy (%)", ordered, named))
    return panels


def make_share_panel(shares: Mapping[str, Sequence[float]], suite: str) -> Panel:
    """The panel of each rung's share of every layer in a learned mix."""
    lines = {
        rung: [plot_value(float(layer), 100 * each) for layer, each in enumerate(row)]
        for rung, row in shares.items()
    }
    return Panel(f"{suite}, learned mix", "layer", "share of the mix (%)", lines)
