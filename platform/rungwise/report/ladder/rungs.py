"""The rungs of a ladder in chronological order, and the scores that the page compares them by.

    pretrain, measure of each rung ──> Rung ──┐
    evaluate of each task ────────────────────┴──> columns ──> a cell per rung and column

Suites are found by kind, whatever a recipe calls them. Pseudo-likelihoods of bidirectional models
are cells that are not exact and are never ranked with the others.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.task_contrast import TaskMean
from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites.floors import PPMI, RANDOM, VECTORS
from rungwise.evaluation.suites.items import METRICS, ItemKey, Items
from rungwise.evaluation.suites.measure import MeasureSummary, SuiteScore, merge_seeds, read_items
from rungwise.pretraining.summary import PretrainSummary
from rungwise.report.palette import Series, series
from rungwise.report.sections.variants import input_artifact

PERPLEXITY, PAIRS, SIMILARITY = "perplexity", "minimal_pairs", "similarity"
POLYSEMY, PROBE, SENTENCE_PROBE = "polysemy", "probe", "sentence_probe"
SENSES = ("senses", "pseudo_words")
RANKS = "ranks"
MIXED = "linear mix"  # the part of senses and probes that needs no choice of layer
TASKS = "mean of tasks"
_PSEUDO = "pseudo"


@dataclass(frozen=True)
class Rung:
    """A rung with its summaries. `also` names other uses of the same weights, `measured` is one
    artifact per seed of pretraining and `measure` all of them together; `pretrain` is of the first.
    `tokenizer` is a fingerprint, `kinds` maps the names of its suites to their kinds."""

    name: str
    also: tuple[str, ...]
    look: Series
    pretrain: PretrainSummary
    measured: tuple[Artifact, ...]
    measure: MeasureSummary
    tokenizer: str
    kinds: Mapping[str, str]

    def suites(self, *kinds: str) -> list[str]:
        """Names of the suites of these kinds that it answered."""
        return [
            name
            for name, kind in self.kinds.items()
            if kind in kinds and name not in self.measure.passed_over
        ]

    def scores(self, suite: str) -> list[SuiteScore]:
        """The values of a suite over all its items."""
        return [row for row in self.measure.scores if row.suite == suite and row.group is None]

    def paths(self, suite: str) -> list[str]:
        """The files that a suite reads; [] if it makes its questions of the held-out text."""
        path = self.measured[0].record["config"]["suites"].get(suite, {}).get("path") or []
        return [path] if isinstance(path, str) else list(path)

    def items(self, key: ItemKey) -> list[Items]:
        """The items of a metric, of each seed of pretraining."""
        return [read_items(each)[key] for each in self.measured]

    def file(self, suite: str, name: str) -> Any:
        """A JSON file that a suite wrote for the page, of the first seed; None if there is none."""
        path = f"{suite}/{name}"
        folder = self.measured[0].folder
        return json.loads(folder.read_bytes(path)) if folder.exists(path) else None


def gather_rungs(
    inputs: Mapping[str, Artifact], measured: Mapping[str, tuple[str, ...]]
) -> list[Rung]:
    """The rungs by year, then in the order of the recipe. `measured` maps names to titles of
    measure stages, one per seed; names with the same first title are one rung under the first
    name."""
    names: dict[str, list[str]] = {}
    titles: dict[str, tuple[str, ...]] = {}
    for name, seeds in measured.items():
        names.setdefault(seeds[0], []).append(name)
        titles[seeds[0]] = max(titles.get(seeds[0], ()), seeds, key=len)
    rungs = []
    for title, (name, *also) in names.items():
        artifact = inputs[title]
        seeds = tuple(inputs[each] for each in titles[title])
        pretrain = input_artifact(artifact, "pretrain", inputs)
        assert pretrain is not None, f"the pretraining of {name} is not among the stages"
        suites = artifact.record["config"]["suites"].items()
        rungs.append(
            Rung(
                name=name,
                also=tuple(also),
                look=series(0),
                pretrain=PretrainSummary.of(pretrain),
                measured=seeds,
                measure=merge_seeds(seeds),
                tokenizer=artifact.record["inputs"]["tokenizer"]["fingerprint"],
                kinds={suite: config["kind"] for suite, config in suites},
            )
        )
    rungs.sort(key=lambda rung: rung.pretrain.origin.year)
    return [replace(rung, look=series(place)) for place, rung in enumerate(rungs)]


def variant_looks(rungs: Sequence[Rung], variants: Sequence[str]) -> dict[str, Series]:
    """The look of each variant: that of the rung of this name, else a new one."""
    looks = {rung.name: rung.look for rung in rungs}
    for name in variants:
        looks.setdefault(name, series(len(looks)))
    return looks


def skipped_suites(rungs: Sequence[Rung]) -> dict[tuple[str, str], list[str]]:
    """Suites that rungs could not answer: {(names of rungs, what they lack): suites}."""
    names: dict[tuple[str, str], list[str]] = {}
    for rung in rungs:
        for suite, needs in rung.measure.passed_over.items():
            names.setdefault((suite, needs), []).append(rung.name)
    suites: dict[tuple[str, str], list[str]] = {}
    for (suite, needs), each in names.items():
        suites.setdefault((", ".join(each), needs), []).append(suite)
    return suites


def suite_names(rungs: Sequence[Rung], *kinds: str) -> list[str]:
    """The suites of these kinds that any rung answered."""
    return list(dict.fromkeys(name for rung in rungs for name in rung.suites(*kinds)))


@dataclass(frozen=True)
class Cell:
    """A value with its interval; `exact` unless it is a pseudo-likelihood."""

    value: Estimate
    exact: bool = True


@dataclass(frozen=True)
class Column:
    """A score that rungs are compared by, of a part of a `suite` ("": of tasks). `best` are the
    rungs with the best exact value; empty if the values do not compare. `floors` are values that
    take no training, by their name; `published` those of other models on the same questions, of
    this `source`."""

    name: str
    under: str  # second line of the column head: the part of the suite
    metric: str
    cells: Mapping[str, Cell]
    best: frozenset[str]
    suite: str = ""
    floors: Mapping[str, float] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    @property
    def has_pseudo(self) -> bool:
        return not all(cell.exact for cell in self.cells.values())


def gather_columns(
    rungs: Sequence[Rung], averages: Mapping[str, TaskMean], tasks: int
) -> list[Column]:
    """Every score that at least one rung has."""
    columns: list[Column] = []
    one_tokenizer = len({rung.tokenizer for rung in rungs}) == 1
    likelihoods = suite_names(rungs, PERPLEXITY)
    for suite in likelihoods:
        name = f" ({suite})" if len(likelihoods) > 1 else ""
        columns.append(_column(rungs, suite, "", "bits_per_byte", f"bits per byte{name}"))
        # Perplexities over different tokenizers do not compare.
        columns.append(_column(rungs, suite, "", "perplexity", f"perplexity{name}", one_tokenizer))
    for suite in suite_names(rungs, RANKS):
        columns.append(_column(rungs, suite, "", "log_rank", f"log rank ({suite})"))
    for suite in suite_names(rungs, PAIRS):
        columns.append(_column(rungs, suite, "", "accuracy", suite))
    for suite in suite_names(rungs, SIMILARITY):
        columns.append(_column(rungs, suite, _largest_part(rungs, suite), "correlation", suite))
    for suite in suite_names(rungs, *SENSES):
        columns.append(_column(rungs, suite, MIXED, "accuracy", suite))
    for suite in suite_names(rungs, SENTENCE_PROBE):
        for metric in ("accuracy", "pearson"):
            column = _column(rungs, suite, VECTORS, metric, suite)
            columns.append(replace(column, floors=_floors(rungs, suite, metric)))
    means = {name: Cell(each.mean) for name, each in averages.items()}
    columns.append(Column(TASKS, f"of {tasks}", "accuracy", means, _best(means, "accuracy")))
    return [column for column in columns if column.cells]


def _floors(rungs: Sequence[Rung], suite: str, metric: str) -> dict[str, float]:
    """The highest value of each floor that vectors of sentences must beat."""
    return {
        f"{part}, averaged": max(score.value for score in scores)
        for part in (RANDOM, PPMI)
        if (scores := [s for r in rungs if (s := r.measure.value(suite, metric, part))])
    }


def _column(
    rungs: Sequence[Rung], suite: str, part: str, metric: str, name: str, ranked: bool = True
) -> Column:
    cells = {}
    for rung in rungs:
        for each in (part, _PSEUDO) if metric in _LIKELIHOODS else (part,):
            score = rung.measure.value(suite, metric, each)
            if score is not None:
                value = Estimate(score.value, score.low, score.high, score.count)
                cells[rung.name] = Cell(value, each != _PSEUDO)
    best = _best(cells, metric) if ranked else frozenset[str]()
    return Column(name, part, metric, cells, best, suite)


_LIKELIHOODS = ("perplexity", "bits_per_byte")


def _largest_part(rungs: Sequence[Rung], suite: str) -> str:
    """The part with the most pairs, the first of equals."""
    sizes: dict[str, int] = {}
    for rung in rungs:
        for row in rung.scores(suite):
            if row.metric == "correlation":
                sizes[row.part] = max(row.count, sizes.get(row.part, 0))
    return max(sizes, key=lambda part: sizes[part], default="")


def _best(cells: Mapping[str, Cell], metric: str) -> frozenset[str]:
    values = {
        name: cell.value.mean
        for name, cell in cells.items()
        if cell.exact and not math.isnan(cell.value.mean)
    }
    if len(values) < 2:
        return frozenset()
    best = (max if METRICS[metric].higher_is_better else min)(values.values())
    return frozenset(name for name, value in values.items() if value == best)


def history_rows(rungs: Sequence[Rung], columns: Sequence[Column]) -> Iterator[dict[str, Any]]:
    """The table of the ladder, one row per rung."""
    for rung in rungs:
        trained, model = rung.pretrain, rung.pretrain.model
        row: dict[str, Any] = {
            "rung": rung.name,
            "year": trained.origin.year,
            "paper": trained.origin.paper,
            "model": model.page_name(model.objective(trained.objective)),
            "sizes": model.describe(),
            "parameters": trained.parameters,
            "tokens": trained.tokens,
            "operations": trained.flops,
            "seconds": trained.seconds,
            "pretrainings": len(rung.measured),
        }
        for column in columns:
            cell = column.cells.get(rung.name)
            if cell is not None:
                key = column.name.replace(" ", "_")
                key = f"pseudo_{key}" if not cell.exact else key
                row |= {
                    key: cell.value.mean,
                    f"{key}_low": cell.value.low,
                    f"{key}_high": cell.value.high,
                }
        yield row
