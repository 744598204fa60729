"""Claims: verdicts of planted rungs, how often they are false; tables beside ours."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison import claims as claim_comparisons
from rungwise.evaluation.comparison.claims import (
    TASKS,
    Claim,
    ClaimComparison,
    ClaimResult,
    ComparisonResult,
    Runs,
    Verdict,
    average_tasks,
    decide_claims,
    registered_claims,
)
from rungwise.evaluation.comparison.summary import (
    TABLES,
    EvaluateSummary,
    PairedDifference,
    PublishedConfig,
    TableConfig,
    VariantResult,
    build_table,
)
from rungwise.evaluation.statistics import (
    Difference,
    Error,
    Estimate,
    combine,
    false_verdicts,
    paired_difference,
)
from rungwise.evaluation.suites.items import METRICS, Items
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import ExampleCounts, TaskInfo
from tests.summaries import standing

Measured = Mapping[str, Mapping[tuple[str, str, str], Sequence[Items]]]

BOTH = ClaimComparison(of="tasks", terms={"a": 1, "b": -1})


def perplexities(**nats: float) -> Measured:
    """Rungs that are asked about the same hundred documents; noise is the same for all."""
    noise = np.random.default_rng(0).normal(0, 0.5, 100)
    names = [f"d{index}" for index in range(100)]
    return {
        rung: {
            ("perplexity", "", "perplexity"): [
                Items(
                    "perplexity",
                    "perplexity",
                    names,
                    [""] * 100,
                    np.stack([mean + noise, np.ones(100)], axis=1),
                )
            ]
        }
        for rung, mean in nats.items()
    }


def compare(terms: dict[str, float], measured: Measured, **keys: str) -> ComparisonResult:
    comparison = ClaimComparison(of="perplexity", metric="perplexity", scale="log", terms=terms)
    return claim_comparisons.compare(comparison.model_copy(update=keys), measured, {}, ())


@pytest.mark.parametrize(
    ("nats", "expected"),
    [
        ((5.0, 4.5), "confirmed"),
        ((4.5, 5.0), "contradicted"),
        ((5.0, 5.0), "undecided"),
        ((math.nan, 5.0), "undecided"),  # nothing is below NaN
    ],
)
def test_a_lower_perplexity_is_a_better_score(nats: tuple[float, float], expected: Verdict) -> None:
    measured = perplexities(rnn=nats[0], lstm=nats[1])
    got = compare({"lstm": 1, "rnn": -1}, measured)
    (claim,) = decide([got])
    assert (got.verdict, claim.verdict) == (expected, expected)
    assert got.value == pytest.approx(nats[0] - nats[1], nan_ok=True)
    assert got.effective == pytest.approx(100)  # the documents are of one length


def test_what_is_missing_is_named_and_not_judged() -> None:
    got = compare({"lstm": 1, "rnn": -1}, perplexities(lstm=5.0))
    assert (got.verdict, got.missing, got.value) == ("not tested", ("rnn",), None)


@pytest.mark.parametrize(("end", "share"), [("first", 0.0), ("last", 0.5)])
def test_first_and_last_are_the_lowest_and_highest_layer_of_rungs(end: str, share: float) -> None:
    def right(share: float) -> list[Items]:
        credit = np.arange(100) < 100 * share
        names = [f"s{index}" for index in range(100)]
        return [Items.of_credit("senses", "", names, [""] * 100, credit)]

    layers = {("senses", f"nearest layer {n}", "accuracy"): right(n / 20) for n in (0, 2, 10)}
    of_static = {("senses", "nearest layer 0", "accuracy"): right(0.1)}
    comparison = ClaimComparison(
        of="senses",
        metric="accuracy",
        terms={f"bert/nearest layer {end}": 1, f"word2vec/nearest layer {end}": -1},
    )
    got = claim_comparisons.compare(comparison, {"bert": layers, "word2vec": of_static}, {}, ())
    assert got.value == pytest.approx(share - 0.1)


def result(above: float, below: float) -> ComparisonResult:
    return ComparisonResult(
        **BOTH.model_dump(), p_above=above, p_below=below, verdict="undecided", value=0.0
    )


def decide(*claims: Sequence[ComparisonResult]) -> list[ClaimResult]:
    claim = Claim(says="s", plainly="p", contradicted_by="c", comparisons=[BOTH])
    names = {f"C{place}": each for place, each in enumerate(claims)}
    return decide_claims(dict.fromkeys(names, claim), names)


MISSING = ComparisonResult(**BOTH.model_dump(), missing=("a",), verdict="not tested")


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([result(0.001, 0.999), result(0.002, 0.998)], "confirmed"),
        ([result(0.001, 0.999), result(0.2, 0.8)], "undecided"),  # all must lie above
        ([result(0.001, 0.999), result(0.999, 0.001)], "contradicted"),  # one below is enough
        ([result(0.5, 0.5), result(0.985, 0.015)], "undecided"),  # one of two: 2 times 2 times
        ([result(0.001, 0.999), MISSING], "undecided"),
        ([result(0.999, 0.001), MISSING], "contradicted"),
        ([MISSING, MISSING], "not tested"),
    ],
)
def test_all_comparisons_decide_a_claim(results: list[ComparisonResult], expected: Verdict) -> None:
    (claim,) = decide(results)
    assert claim.verdict == expected


def test_claims_are_decided_as_holm_1979_puts_it() -> None:
    """The smallest p against 5 % over all, the next over one fewer, and so on until one fails."""
    rng = np.random.default_rng(0)
    ps = rng.uniform(0, 0.02, 12)
    decided = decide(*([result(p, 1 - p)] for p in ps), [MISSING])
    expected = set()
    for step, place in enumerate(np.argsort(ps)):
        if 2 * ps[place] >= 0.05 / (len(ps) - step):
            break
        expected.add(f"C{place}")
    assert 0 < len(expected) < len(ps)
    assert {claim.id for claim in decided if claim.verdict == "confirmed"} == expected
    assert decided[-1].p_holm is None


def test_a_page_where_nothing_differs_has_a_verdict_in_five_of_a_hundred_cases() -> None:
    """Ten claims of one or two comparisons, each of three pretrainings and a test set."""
    rng = np.random.default_rng(6)

    def nothing() -> ComparisonResult:
        first, second = rng.normal(size=(2, 3))
        mean = first.mean() - second.mean() + 0.5 * rng.normal()
        value = combine(mean, [list(first), list(-second)], [Error(0.5, 499)], 500)
        above = value.p_above()
        return result(above, 1 - above)

    pages = 200
    false = 0
    for _ in range(pages):
        page = decide(*([nothing() for _ in range(1 + number % 2)] for number in range(10)))
        false += any(claim.verdict != "undecided" for claim in page)
    assert stats.binomtest(false, pages, 0.05, alternative="greater").pvalue > 0.001


def made_runs(
    rng: np.random.Generator,
    name: str,
    scores: np.ndarray,  # (P, S): the share that each run answers
    hardness: np.ndarray,  # (N,) uniform
    pretrained: str | None = "own",
    spread: float = 0.1,
) -> Runs:
    """Runs that answer the easier examples, up to noise of each run and example."""
    pretrainings, _ = scores.shape
    noise = rng.normal(0, spread, (scores.size, len(hardness)))
    right = hardness + noise < scores.reshape(-1, 1)
    kind = task_kind(TaskInfo("classification", ("no", "yes"), False, "accuracy"))
    gold = np.eye(2)[np.arange(len(hardness)) % 2]  # (N, 2)
    predicted = np.where(right[..., None], gold, 1 - gold)
    sums = [predicted * gold, predicted, np.broadcast_to(gold, predicted.shape)]
    key = name if pretrained == "own" else pretrained
    return Runs(name, kind, np.concatenate(sums, axis=-1), pretrainings, key)


def judged(runs: Mapping[str, Runs], terms: Mapping[str, float]) -> ComparisonResult:
    comparison = ClaimComparison(of="tasks", terms=dict(terms))
    return claim_comparisons.compare(comparison, {}, {None: {"task": runs}}, ())


@pytest.mark.parametrize(
    ("pretrainings", "seeds", "luck", "tuning"),
    [(1, 5, 0.0, 0.05), (3, 3, 0.05, 0.05), (3, 2, 0.0, 0.0), (5, 2, 0.1, 0.02)],
)
def test_equals_rarely_differ(pretrainings: int, seeds: int, luck: float, tuning: float) -> None:
    """Luck of pretraining, of fine-tuning and of 150 test examples, all at once."""
    rng = np.random.default_rng(7)
    trials, false = 300, 0
    for _ in range(trials):
        hardness = rng.uniform(0, 1, 150)
        runs = {
            name: made_runs(
                rng,
                name,
                0.6
                + luck * rng.normal(size=(pretrainings, 1))
                + tuning * rng.normal(size=(pretrainings, seeds)),
                hardness,
            )
            for name in ("a", "b")
        }
        (claim,) = decide([judged(runs, {"a": 1, "b": -1})])
        false += claim.verdict != "undecided"
    assert stats.binomtest(false, trials, 0.05, alternative="greater").pvalue > 0.001


def test_with_one_pretraining_its_luck_is_not_covered_as_the_page_says() -> None:
    """Half as much as fine-tuning, and as much: more false verdicts than meant, as computed."""
    rng = np.random.default_rng(1)
    for ratio, expected in ((0.5, 0.1382), (1.0, 0.3203)):
        scores = rng.normal(size=(2, 20_000, 5)) + ratio * rng.normal(size=(2, 20_000, 1))
        by_simulation = float(np.mean(stats.ttest_rel(*scores, axis=1).pvalue < 0.05))
        assert false_verdicts(5, ratio) == pytest.approx(expected, abs=5e-4)
        assert by_simulation == pytest.approx(expected, abs=0.012)  # 3.5 standard errors


def test_uses_of_one_pretraining_share_its_luck() -> None:
    """Tuned minus frozen: what pretraining number two did well, it did well in both."""
    rng = np.random.default_rng(3)
    hardness = rng.uniform(0, 1, 2000)
    luck = 0.1 * rng.normal(size=(4, 1))
    tuned, frozen = (0.6 + luck + np.zeros((4, 3)), 0.5 + luck + np.zeros((4, 3)))
    together = {
        "bert": made_runs(rng, "bert", tuned, hardness, "weights"),
        "bert_frozen": made_runs(rng, "bert_frozen", frozen, hardness, "weights"),
    }
    apart = {name: replace(runs, pretrained=name) for name, runs in together.items()}
    terms = {"bert": 1.0, "bert_frozen": -1.0}
    shared, own = judged(together, terms), judged(apart, terms)
    assert shared.value == own.value
    assert width(shared) < 0.5 * width(own)
    assert shared.pretrainings == own.pretrainings == 4


def width(got: ComparisonResult) -> float:
    assert got.low is not None
    assert got.high is not None
    return got.high - got.low


def test_seeds_on_several_tasks_are_independent_values() -> None:
    """The interval is that of scipy over all seeds of both tasks, examples apart."""
    rng = np.random.default_rng(8)
    hardness = rng.uniform(0, 1, 100_000)
    tasks = {
        task: {
            name: made_runs(rng, name, 0.5 + 0.05 * rng.normal(size=(1, 3)), hardness)
            for name in ("a", "b")
        }
        for task in ("x", "y")
    }
    comparison = ClaimComparison(of="tasks", terms={"a": 1, "b": -1})
    got = claim_comparisons.compare(comparison, {}, {None: tasks}, ())
    gaps = {
        task: np.subtract(runs["a"].values(), runs["b"].values()) for task, runs in tasks.items()
    }
    expected: Any = stats.ttest_ind(gaps["x"], -gaps["y"], equal_var=False)
    bounds = expected.confidence_interval()
    assert got.low == pytest.approx(bounds.low / 2, rel=0.01)
    assert got.high == pytest.approx(bounds.high / 2, rel=0.01)


def test_averages_of_what_was_tried_on_all_tasks_the_best_first() -> None:
    rng = np.random.default_rng(5)
    tasks = {
        task: {
            name: made_runs(rng, name, np.full((1, 3), share), rng.uniform(0, 1, 400))
            for name, share in {"a": 0.4, "b": 0.8, "only_here": 0.9}.items()
            if name != "only_here" or task == "x"
        }
        for task in ("x", "y")
    }
    averages = average_tasks(tasks)
    assert average_tasks({}) == {}
    assert list(averages) == ["b", "a"]
    for name, average in averages.items():
        scores = [np.mean(runs[name].values()) for runs in tasks.values()]
        assert average.mean == pytest.approx(np.mean(scores))
        assert 0 <= average.low < average.mean < average.high <= 1


def test_the_registered_claims_are_whole() -> None:
    known = registered_claims().claims
    assert {"K1", "K2", "K3", "K4", "K5", "K9", "K10", "K11", "K19", "K20", "K22"} <= known.keys()
    for claim in known.values():
        assert claim.plainly.endswith(".")
        for comparison in claim.comparisons:
            assert comparison.of == TASKS or comparison.metric in METRICS
            assert sum(comparison.terms.values()) == 0  # or a constant would count


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
        differences=tuple(
            PairedDifference.model_construct(
                first=a,
                second=b,
                seeds=paired_difference(scores[a], scores[b], (0.0, 1.0)),
                bootstrap=Difference(0.02, -0.02, 0.06, 0.2),
            )
            for a, b in itertools.combinations(scores, 2)
        ),
    )
    return standing("evaluate", Path("/nowhere"), summary)


def test_a_sign_agrees_disagrees_or_is_left_open(tmp_path: Path) -> None:
    """The published step from base to no_nsp is down on both tasks."""
    config = TableConfig(
        published=PublishedConfig(table="T7", rows={"bert": "base", "mlm": "no_nsp"}),
        columns={"down": "QNLI", "up": "MRPC", "open": "SST-2", "alone": None},
    )
    low, high = [0.70, 0.71, 0.72], [0.80, 0.81, 0.82]
    between = [0.70, 0.80, 0.90], [0.75, 0.75, 0.85]
    scores = {"down": (high, low), "up": (low, high), "open": between, "alone": (high, low)}
    inputs = {
        f"evaluate/{task}": evaluated(task, {"bert": first, "mlm": second})
        for task, (first, second) in scores.items()
    }
    inputs["evaluate/down/100"] = evaluated("down", {"bert": [0.6, 0.6], "mlm": [0.5, 0.5]}, 100)
    summary = build_table(config, inputs, Folder.at(tmp_path), Context())
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
    assert [row.variant for row in summary.scores if row.task == "down"] == ["bert", "mlm"]


def test_rows_and_columns_that_the_table_lacks_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no_such.*base, no_nsp"):
        PublishedConfig(table="T7", rows={"bert": "no_such"})
    config = TableConfig(
        published=PublishedConfig(table="T7", rows={"bert": "base"}), columns={"x": "CoLA"}
    )
    with pytest.raises(ConfigError, match=r"tasks.x.published is 'CoLA'.*MNLI-m, QNLI"):
        build_table(config, {}, Folder.at(tmp_path), Context())
