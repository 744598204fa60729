"""What the report says in words, against cases worked by hand."""

from __future__ import annotations

import pytest

from rungwise.evaluation.summary import Estimate, PairedDifference
from rungwise.report import findings, formats


@pytest.mark.parametrize(
    ("low", "mean", "high", "name"),
    [
        (0.01, 0.05, 0.09, "above"),
        (-0.09, -0.05, -0.01, "below"),
        (-0.01, 0.05, 0.11, "unresolved"),
        (-0.11, -0.05, 0.01, "unresolved"),
        (0.0, 0.05, 0.10, "unresolved"),  # 0 is in the interval
        (0.0, 0.0, 0.0, "unresolved"),
    ],
)
def test_a_verdict_needs_an_interval_without_0(
    low: float, mean: float, high: float, name: str
) -> None:
    verdict = findings.verdict(_difference(low, mean, high), "macro_f1")
    assert verdict.name == name
    assert formats.points(mean) in verdict.sentence
    assert "points of test macro-F1" in verdict.sentence
    assert name != "unresolved" or verdict.sentence.startswith("Unresolved: a minus b")
    assert name == "unresolved" or verdict.sentence.startswith(f"a is {name} b")
    assert not verdict.over_seeds_only


def test_a_verdict_says_where_other_test_examples_might_undo_it() -> None:
    above = findings.verdict(_difference(0.01, 0.05, 0.09, drawn=(-0.01, 0.11)), "accuracy")
    assert (above.name, above.over_seeds_only) == ("above", True)
    assert f"[{formats.points(-0.01)}, +11.0] and holds 0" in above.sentence
    below = findings.verdict(_difference(-0.09, -0.05, -0.01), "accuracy")
    summed = findings.summed_up([above, above, below], "a", "b")
    assert summed.startswith("a is above b on 2 of 3 tasks; a is below b on 1 of 3 tasks.")
    assert "2 over seeds only" in summed


def _difference(
    low: float, mean: float, high: float, drawn: tuple[float, float] | None = None
) -> PairedDifference:
    low_too, high_too = drawn or (low, high)
    return PairedDifference.model_validate(
        {
            "first": "a",
            "second": "b",
            "seeds": {"mean": mean, "low": low, "high": high, "count": 5},
            "bootstrap": {"difference": mean, "low": low_too, "high": high_too, "p": 0.01},
            "error_reduction": None,
        }
    )


def test_the_use_of_context_is_not_flattered() -> None:
    assert findings.use_of_context(7.0, 6.5) == "0.50 nats above what a guess without context costs"
    assert findings.use_of_context(6.44, 6.5).startswith("only 0.06 nats below")
    assert findings.use_of_context(4.0, 6.5).startswith("2.50 nats below")


def test_numbers_as_people_read_them() -> None:
    minus = "\N{MINUS SIGN}"
    assert formats.points(-0.0997) == f"{minus}10.0"
    assert formats.points(0.074) == "+7.4"
    assert formats.percent(0.2167) == "21.7%"
    assert formats.compact(1503746) == "1.5\N{NO-BREAK SPACE}M"
    assert formats.compact(12) == "12"
    assert formats.duration(2.37) == "2.4 s"
    assert formats.duration(59.99) == "1 min 0 s"
    assert formats.duration(155.5) == "2 min 36 s"
    assert formats.duration(3599.9) == "1 h 0 min"
    half = Estimate(mean=0.5, low=-0.4, high=0.6, count=5)
    assert formats.interval(half, "accuracy") == f"[{minus}40.0, 60.0]"
    assert formats.points_with_interval(half) == f"+50.0 [{minus}40.0, +60.0]"
    assert formats.score(0.5214, "accuracy") == "52.1%"
    assert formats.score(0.5214, "matthews") == "52.1"
    assert formats.score(0.5214, "mean_squared_error") == "0.521"
    assert formats.interval(half, "loss") == f"[{minus}0.400, 0.600]"
    assert formats.p_value(0.0004) == "p < 0.001"
    assert formats.p_value(0.0134) == "p = 0.013"
    assert formats.metric_name("exact_match") == "exact match"
    assert formats.setting(0.0022) == "2.2e-03"
    assert formats.setting(16) == "16"
    assert formats.setting({"kind": "frozen", "layers": [1, 2]}) == "frozen layers=[1, 2]"
