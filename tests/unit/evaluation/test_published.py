"""Published tables are carried as printed, and the table of ours stands beside them honestly."""

import itertools
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison import table
from rungwise.evaluation.comparison.summary import (
    TABLES,
    EvaluateSummary,
    PairedDifference,
    PublishedConfig,
    SeedRow,
    VariantResult,
)
from rungwise.evaluation.comparison.table import TableConfig
from rungwise.evaluation.statistics import Difference, Estimate
from rungwise.tasks.kinds.examples import ExampleCounts
from tests.summaries import standing


def test_glue_averages_are_those_of_the_paper() -> None:
    """SPEC T6: the mean of nine columns, in which MNLI counts twice."""
    printed = {
        "pre-OpenAI": 74.0,
        "BiLSTM+ELMo+Attn": 70.96,
        "GPT": 75.2,
        "BERT base": 79.56,
        "BERT large": 81.9,
    }
    for row, average in printed.items():
        values = [value for value in TABLES["T6"].rows[row] if value is not None]
        assert len(values) == 9
        assert abs(fmean(values) - average) < 0.051


def test_every_row_has_a_value_or_none_for_each_column() -> None:
    for published in TABLES.values():
        for row in published.rows.values():
            assert len(row) == len(published.columns)


def test_the_differences_of_the_ablation_are_those_of_the_specification() -> None:
    """SPEC T7, row minus the row above."""
    rows: list[Any] = list(TABLES["T7"].rows.values())
    deltas = [
        [round(new - old, 1) for old, new in zip(*pair, strict=True)]
        for pair in itertools.pairwise(rows)
    ]
    assert deltas == [
        [-0.5, -3.5, -0.2, -0.1, -0.6],
        [-1.8, -0.6, -9.0, -0.5, -10.1],
        [0.0, -0.2, -1.8, -0.5, 7.1],
    ]


def test_a_row_that_the_table_lacks_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"no_such.*base, no_nsp"):
        PublishedConfig(table="T7", rows={"bert": "no_such"})


def evaluated(task: str, scores: dict[str, list[float]], budget: int | None = None) -> Artifact:
    """An evaluate artifact whose variants have these test scores, seed by seed."""
    summary = EvaluateSummary.model_construct(
        task=task,
        budget=budget,
        metric="accuracy",
        examples=ExampleCounts(train=800, validation=100, test=100),
        baselines={"majority": {"accuracy": 0.5}, "chance": {"accuracy": 0.4}},
        variants={
            name: VariantResult.model_construct(
                estimates={"accuracy": Estimate(sum(each) / len(each), 0.0, 1.0, len(each))}
            )
            for name, each in scores.items()
        },
        rows=tuple(
            SeedRow.model_construct(variant=name, seed=seed, test={"accuracy": score})
            for name, each in scores.items()
            for seed, score in enumerate(each)
        ),
        differences=tuple(
            PairedDifference.model_construct(
                first=a, second=b, bootstrap=Difference(0.02, -0.02, 0.06, 0.2)
            )
            for a, b in itertools.combinations(scores, 2)
        ),
    )
    return standing("evaluate", Path("/nowhere"), summary)


def test_a_sign_agrees_disagrees_or_is_left_open(tmp_path: Path) -> None:
    """The published step from base to no_nsp is down on both tasks; ours is down beyond doubt on
    one, up beyond doubt on another, and undecided on the third."""
    config = TableConfig(
        published=PublishedConfig(table="T7", rows={"bert": "base", "mlm": "no_nsp"}),
        columns={"down": "QNLI", "up": "MRPC", "open": "SST-2", "alone": None},
    )
    scores = {
        "down": ([0.80, 0.81, 0.82], [0.70, 0.71, 0.72]),
        "up": ([0.70, 0.71, 0.72], [0.80, 0.81, 0.82]),
        "open": ([0.70, 0.80, 0.90], [0.75, 0.75, 0.85]),
        "alone": ([0.80, 0.81, 0.82], [0.70, 0.71, 0.72]),
    }
    inputs = {
        f"evaluate/{task}": evaluated(task, {"bert": first, "mlm": second})
        for task, (first, second) in scores.items()
    }
    inputs["evaluate/down/100"] = evaluated("down", {"bert": [0.6, 0.6], "mlm": [0.5, 0.5]}, 100)
    summary = table.build_table(config, inputs, Folder.at(tmp_path), Context())
    steps = {step.task: step for step in summary.differences}
    assert {task: step.sign for task, step in steps.items()} == {
        "down": "agrees",
        "up": "disagrees",
        "open": "unresolved",
        "alone": None,
    }
    assert steps["down"].published_points == -3.5
    assert steps["down"].mean == pytest.approx(-0.1)
    # The bootstrap is of the row above minus this one and is turned around with it.
    assert (steps["down"].bootstrap_low, steps["down"].bootstrap_high) == (-0.06, 0.02)
    assert "3 published differences 2 resolved here, 1 agree" in summary.headline
    budgets = [row.budget for row in summary.budgets if row.task == "down"]
    assert budgets == [100, 800, 100, 800]


def test_a_variant_that_a_task_does_not_try_has_no_step(tmp_path: Path) -> None:
    scores = {"bert": [0.5, 0.5], "mlm": [0.6, 0.6], "gpt": [0.9, 0.9]}
    inputs = {
        "evaluate/all": evaluated("all", scores),
        "evaluate/some": evaluated("some", {name: scores[name] for name in ("bert", "gpt")}),
    }
    config = TableConfig(published=None, columns={"all": None, "some": None})
    summary = table.build_table(config, inputs, Folder.at(tmp_path), Context())
    steps = {(step.task, step.variant): step.minus for step in summary.differences}
    assert steps == {("all", "mlm"): "bert", ("all", "gpt"): "mlm", ("some", "gpt"): "bert"}


def test_a_column_that_the_table_lacks_is_refused_with_the_ones_it_has(tmp_path: Path) -> None:
    config = TableConfig(
        published=PublishedConfig(table="T7", rows={"bert": "base"}), columns={"x": "CoLA"}
    )
    with pytest.raises(ConfigError, match=r"tasks.x.published is 'CoLA'.*MNLI-m, QNLI"):
        table.build_table(config, {}, Folder.at(tmp_path), Context())
