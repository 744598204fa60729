"""The rungs of a ladder in chronological order, and the scores that the page compares them by.

    pretrain, measure of each rung ──> Rung ──┐
    evaluate of each task ────────────────────┴──> columns ──> a cell per rung and column

Suites are found by kind, whatever a recipe calls them. Pseudo-likelihoods of bidirectional models
are cells that are not exact and are never ranked with the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.statistics import Estimate, estimate
from rungwise.evaluation.suites.items import METRICS
from rungwise.evaluation.suites.measure import MeasureSummary, SuiteScore
from rungwise.pretraining.summary import PretrainSummary
from rungwise.report.sections.variants import Comparison, input_artifact
from rungwise.report.style import Series, series
from rungwise.tasks.scoring.metrics import metric_range

PERPLEXITY, PAIRS, SIMILARITY = "perplexity", "minimal_pairs", "similarity"
SENSES, POLYSEMY, PROBE = "senses", "polysemy", "probe"
MIXED = "linear mix"  # the part of senses and probes that needs no choice of layer
TASKS = "mean of tasks"
_PSEUDO = "pseudo"


@dataclass(frozen=True)
class Rung:
    """A rung with its summaries. `also` names other uses of the same weights, `tokenizer` is a
    fingerprint, `kinds` maps the names of its suites to their kinds."""

    name: str
    also: tuple[str, ...]
    look: Series
    pretrain: PretrainSummary
    measured: Artifact
    tokenizer: str
    kinds: Mapping[str, str]

    @property
    def measure(self) -> MeasureSummary:
        return MeasureSummary.of(self.measured)

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

    def file(self, suite: str, name: str) -> Any:
        """The JSON file that a suite wrote for the page; None if there is none."""
        path = f"{suite}/{name}"
        folder = self.measured.folder
        return json.loads(folder.read_bytes(path)) if folder.exists(path) else None


def gather_rungs(inputs: Mapping[str, Artifact], measured: Mapping[str, str]) -> list[Rung]:
    """The rungs by year, then in the order of the recipe. `measured` maps names to titles of
    measure stages; names with the same title are one rung under the first name."""
    names: dict[str, list[str]] = {}
    for name, title in measured.items():
        names.setdefault(title, []).append(name)
    rungs = []
    for title, (name, *also) in names.items():
        artifact = inputs[title]
        pretrain = input_artifact(artifact, "pretrain", inputs)
        assert pretrain is not None, f"the pretraining of {name} is not among the stages"
        suites = artifact.record["config"]["suites"].items()
        rungs.append(
            Rung(
                name=name,
                also=tuple(also),
                look=series(0),
                pretrain=PretrainSummary.of(pretrain),
                measured=artifact,
                tokenizer=artifact.record["inputs"]["tokenizer"]["fingerprint"],
                kinds={suite: config["kind"] for suite, config in suites},
            )
        )
    rungs.sort(key=lambda rung: rung.pretrain.model.year)
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
    """A score that rungs are compared by. `best` are the rungs with the best exact value; empty if
    the values do not compare."""

    name: str
    under: str  # second line of the column head
    metric: str
    cells: Mapping[str, Cell]
    best: frozenset[str]

    @property
    def has_pseudo(self) -> bool:
        return not all(cell.exact for cell in self.cells.values())


def gather_columns(rungs: Sequence[Rung], comparison: Comparison | None) -> list[Column]:
    """Every score that at least one rung has."""
    columns: list[Column | None] = []
    one_tokenizer = len({rung.tokenizer for rung in rungs}) == 1
    likelihoods = suite_names(rungs, PERPLEXITY)
    for suite in likelihoods:
        name = f" ({suite})" if len(likelihoods) > 1 else ""
        columns.append(_column(rungs, suite, "", "bits_per_byte", f"bits per byte{name}"))
        # Perplexities over different tokenizers do not compare.
        columns.append(_column(rungs, suite, "", "perplexity", f"perplexity{name}", one_tokenizer))
    for suite in suite_names(rungs, PAIRS):
        columns.append(_column(rungs, suite, "", "accuracy", suite))
    for suite in suite_names(rungs, SIMILARITY):
        columns.append(_column(rungs, suite, _largest_part(rungs, suite), "correlation", suite))
    for suite in suite_names(rungs, SENSES):
        columns.append(_column(rungs, suite, MIXED, "accuracy", suite))
    columns.append(_mean_of_tasks(comparison))
    return [column for column in columns if column is not None and column.cells]


def _column(
    rungs: Sequence[Rung], suite: str, part: str, metric: str, name: str, ranked: bool = True
) -> Column:
    cells = {}
    for rung in rungs:
        for each in (part, _PSEUDO) if metric in _LIKELIHOODS else (part,):
            score = rung.measure.value(suite, metric, each)
            if score is not None:
                cells[rung.name] = Cell(score_estimate(score), each != _PSEUDO)
    return Column(name, part, metric, cells, _best(cells, metric) if ranked else frozenset())


_LIKELIHOODS = ("perplexity", "bits_per_byte")


def score_estimate(score: SuiteScore) -> Estimate:
    """The value of a suite with its interval."""
    return Estimate(score.value, score.low, score.high, score.count)


def _largest_part(rungs: Sequence[Rung], suite: str) -> str:
    """The part with the most pairs, the first of equals."""
    sizes: dict[str, int] = {}
    for rung in rungs:
        for row in rung.scores(suite):
            if row.metric == "correlation":
                sizes[row.part] = max(row.count, sizes.get(row.part, 0))
    return max(sizes, key=lambda part: sizes[part], default="")


def _mean_of_tasks(comparison: Comparison | None) -> Column | None:
    """The judged score averaged over tasks, seed by seed, for variants tried on all of them."""
    if comparison is None:
        return None
    cells = {}
    bounds = zip(*(metric_range(task.metric) for task in comparison.tasks), strict=True)
    low, high = (sum(each) / len(each) for each in bounds)
    for name in comparison.variants:
        if any(name not in task.evaluation.variants for task in comparison.tasks):
            continue
        scores = [task.evaluation.scores(name) for task in comparison.tasks]
        means = [fmean(each) for each in zip(*scores, strict=True)]
        cells[name] = Cell(estimate(means, (low, high)))
    return Column(TASKS, f"of {len(comparison.tasks)}", "accuracy", cells, _best(cells, "accuracy"))


def _best(cells: Mapping[str, Cell], metric: str) -> frozenset[str]:
    values = {name: cell.value.mean for name, cell in cells.items() if cell.exact}
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
            "year": model.year,
            "paper": model.paper,
            "model": model.page_name(model.objective(trained.objective)),
            "sizes": model.describe(),
            "parameters": trained.parameters,
            "tokens": trained.tokens,
            "operations": trained.flops,
            "seconds": trained.seconds,
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
