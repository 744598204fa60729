"""Claims: verdicts of planted rungs, and the registered file against what it names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from rungwise.evaluation.comparison import claims
from rungwise.evaluation.comparison.claims import (
    Comparison,
    Verdict,
    interval_verdict,
    registered_claims,
)
from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites.items import METRICS, Items

Measured = Mapping[str, Mapping[tuple[str, str, str], Items]]


def perplexities(**nats: float) -> Measured:
    """Rungs that are asked about the same hundred documents; noise is the same for all."""
    noise = np.random.default_rng(0).normal(0, 0.5, 100)
    names = [f"d{index}" for index in range(100)]
    return {
        rung: {
            ("perplexity", "", "perplexity"): Items(
                "perplexity",
                "perplexity",
                names,
                [""] * 100,
                np.stack([mean + noise, np.ones(100)], axis=1),
            )
        }
        for rung, mean in nats.items()
    }


def compare(terms: dict[str, float], measured: Measured, **keys: str) -> claims.ComparisonResult:
    comparison = Comparison(of="perplexity", metric="perplexity", scale="log", terms=terms)
    return claims._compare(comparison.model_copy(update=keys), measured, [])


@pytest.mark.parametrize(
    ("nats", "expected"),
    [((5.0, 4.5), "supported"), ((4.5, 5.0), "contradicted"), ((5.0, 5.0), "unresolved")],
)
def test_a_lower_perplexity_is_a_better_score(nats: tuple[float, float], expected: Verdict) -> None:
    measured = perplexities(rnn=nats[0], lstm=nats[1])
    got = compare({"lstm": 1, "rnn": -1}, measured)
    assert got.verdict == expected
    assert got.value == pytest.approx(nats[0] - nats[1])


def test_an_interaction_is_a_sum_of_three() -> None:
    measured = perplexities(ngram1=6.5, ngram2=5.2, ngram3=4.9)
    got = compare({"ngram2": 2, "ngram1": -1, "ngram3": -1}, measured)  # 1.3 gained, then 0.3
    assert got.value == pytest.approx(1.0)
    assert got.verdict == "supported"


def test_what_is_missing_is_named_and_not_judged() -> None:
    got = compare({"lstm": 1, "rnn": -1}, perplexities(lstm=5.0))
    assert (got.verdict, got.missing, got.value) == ("not tested", ("rnn",), None)


def test_the_last_layer_is_the_highest_that_a_rung_has() -> None:
    def right(share: float) -> Items:
        credit = np.arange(100) < 100 * share
        names = [f"s{index}" for index in range(100)]
        numbers = np.stack([credit, np.ones(100)], axis=1).astype(float)
        return Items("senses", "accuracy", names, [""] * 100, numbers)

    layers = {("senses", f"nearest layer {n}", "accuracy"): right(n / 20) for n in (0, 2, 10)}
    of_static = {("senses", "nearest layer 0", "accuracy"): right(0.1)}
    comparison = Comparison(
        of="senses",
        metric="accuracy",
        terms={"bert/nearest layer last": 1, "word2vec/nearest layer last": -1},
    )
    got = claims._compare(comparison, {"bert": layers, "word2vec": of_static}, [])
    assert got.value == pytest.approx(0.5 - 0.1)


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (["supported", "supported"], "supported"),
        (["supported", "contradicted"], "contradicted"),
        (["supported", "unresolved"], "unresolved"),
        (["supported", "not tested"], "unresolved"),
        (["not tested", "not tested"], "not tested"),
    ],
)
def test_a_claim_stands_with_all_its_comparisons(each: list[Verdict], expected: Verdict) -> None:
    assert claims.join_verdicts(each) == expected


def test_without_an_interval_nothing_is_resolved() -> None:
    assert interval_verdict(Estimate(0.3, float("nan"), float("nan"), 1), 0.0) == "unresolved"


def test_the_registered_claims_are_whole() -> None:
    known = registered_claims().claims
    assert {"K1", "K2", "K3", "K4", "K5", "K9", "K10", "K11", "K19", "K20", "K22"} <= known.keys()
    for claim in known.values():
        for comparison in claim.comparisons:
            assert comparison.of == claims.TASKS or comparison.metric in METRICS
            assert sum(comparison.terms.values()) == 0  # or a constant would count
