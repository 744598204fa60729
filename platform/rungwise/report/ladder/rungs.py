"""The rungs of a ladder in chronological order, and what their suites bring to the page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.comparison.table import TaskMean
from rungwise.evaluation.suites.base import Suite
from rungwise.evaluation.suites.items import merge_seeds
from rungwise.evaluation.suites.measure import MeasureConfig
from rungwise.evaluation.suites.section import (
    Cell,
    Column,
    MeasuredRung,
    SuiteBlock,
    compare_on_new,
    find_best,
)
from rungwise.report.sections.variants import input_artifact
from rungwise.training.summary import PretrainSummary

TASKS_MEAN = "mean of tasks"


def gather_rungs(
    inputs: Mapping[str, Artifact], measured: Mapping[str, tuple[str, ...]]
) -> list[MeasuredRung]:
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
        tokenizer = artifact.record["inputs"]["tokenizer"]["fingerprint"]
        summaries = PretrainSummary.of(pretrain), seeds, merge_seeds(seeds), tokenizer
        rungs.append(MeasuredRung(name, tuple(also), *summaries))
    return sorted(rungs, key=lambda rung: rung.pretrain.origin.year)


Answered = dict[str, tuple[Suite, list[MeasuredRung]]]  # suites by name, with who answered


def gather_suites(rungs: Sequence[MeasuredRung]) -> Answered:
    """The suites by name, each with the rungs that answered it."""
    answered: Answered = {}
    for rung in rungs:
        config = MeasureConfig.model_validate(rung.measured[0].record["config"])
        for name, suite in config.suites.items():
            if name not in rung.measure.passed_over:
                answered.setdefault(name, (suite, []))[1].append(rung)
    return answered


def list_skipped_suites(rungs: Sequence[MeasuredRung]) -> dict[tuple[str, str], list[str]]:
    """Suites that rungs could not answer: {(names of rungs, what they lack): suites}."""
    names: dict[tuple[str, str], list[str]] = {}
    for rung in rungs:
        for suite, needs in rung.measure.passed_over.items():
            names.setdefault((suite, needs), []).append(rung.name)
    suites: dict[tuple[str, str], list[str]] = {}
    for (suite, needs), each in names.items():
        suites.setdefault((", ".join(each), needs), []).append(suite)
    return suites


def gather_columns(
    answered: Answered,
    averages: Mapping[str, TaskMean],
    tasks: Sequence[EvaluateSummary],
    chosen: frozenset[str],
) -> list[Column]:
    """Every score that at least one rung has; of those with one name, each says its suite. The
    means of the rivals over all `tasks` take no pretraining; the held-out text has `chosen` the
    settings of some rungs."""
    columns = [
        replace(column, chosen=chosen & {*column.cells}) if suite.on_held_out else column
        for name, (suite, rungs) in answered.items()
        for whole in suite.columns(name, rungs)
        for column in (whole, compare_on_new(rungs, whole))
        if column.cells
    ]
    names = [column.name for column in columns]
    columns = [
        replace(each, name=f"{each.name} ({each.suite})") if names.count(each.name) > 1 else each
        for each in columns
    ]
    if averages:
        means = {name: Cell(each.mean) for name, each in averages.items()}
        under = f"of {len(tasks)}"
        meaning = (
            "how well the model does after learning from labelled examples, "
            f"{under} {'task' if len(tasks) == 1 else 'tasks'}"
        )
        rivals = {
            name: fmean(task.rivals[name].estimate.mean for task in tasks)
            for name in tasks[0].rivals
            if all(name in task.rivals for task in tasks)
        }
        column = Column(TASKS_MEAN, under, "accuracy", means, find_best(means, "accuracy"))
        columns.append(replace(column, floors=rivals, meaning=meaning))
    return columns


def gather_blocks(answered: Answered) -> dict[str, list[SuiteBlock]]:
    """The blocks of the suites by the section of the page that they stand in."""
    sections: dict[str, list[SuiteBlock]] = {}
    for name, (suite, rungs) in answered.items():
        if block := suite.show(name, rungs):
            sections.setdefault(suite.section, []).append(block)
    return sections


def history_rows(
    rungs: Sequence[MeasuredRung], columns: Sequence[Column]
) -> Iterator[dict[str, Any]]:
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


def score_rows(rungs: Sequence[MeasuredRung]) -> list[dict[str, Any]]:
    """Every value of every suite, over all items and by group."""
    return [{"rung": rung.name} | row.model_dump() for rung in rungs for row in rung.measure.scores]
