"""What the report says in words, against cases worked by hand."""

import dataclasses
import math

import pytest

from rungwise.evaluation.comparison.summary import Estimate, PairedDifference
from rungwise.models.config import model_config
from rungwise.models.losses.objectives import Meaning
from rungwise.report import findings, formats
from rungwise.training.summary import PretrainSummary

MINUS = "\N{MINUS SIGN}"


@pytest.mark.parametrize(
    ("bounds", "drawn", "verdict"),
    [
        ((0.01, 0.05, 0.09), None, "above"),
        ((0.01, 0.05, 0.09), (-0.01, 0.11), "above over seeds only"),
        ((-0.09, -0.05, -0.01), None, "below"),
        ((-0.01, 0.05, 0.11), None, "unresolved"),
        ((-0.11, -0.05, 0.01), None, "unresolved"),
        ((0.0, 0.05, 0.10), None, "unresolved"),  # 0 is in the interval
        ((0.0, 0.0, 0.0), None, "unresolved"),
        ((math.nan, math.nan, math.nan), None, "unresolved"),  # nothing is below it
    ],
)
def test_a_verdict_needs_an_interval_without_0(
    bounds: tuple[float, float, float], drawn: tuple[float, float] | None, verdict: str
) -> None:
    assert findings.judge(_difference(*bounds, drawn=drawn)) == verdict


@pytest.mark.parametrize(
    ("loss", "beginning"),
    [
        (4.2, "The model learnt to use context: its loss ends 2.10 nats below guessing by fr"),
        (6.25, "The model learnt hardly more than how frequent words are: its loss ends only 0.05"),
        (6.7, "The model learnt nothing yet: its loss of 6.70 is 0.40 nats above guessing by fr"),
        (math.nan, "The model learnt nothing yet"),
    ],
)
def test_a_page_without_tasks_says_what_was_learnt(loss: float, beginning: str) -> None:
    objective = model_config({"kind": "gpt"}).objective("causal")
    final = {objective.tokens.loss_key: loss, objective.tokens.accuracy_key: 0.316}
    model = model_config({"kind": "gpt"})
    pretrain = PretrainSummary.model_construct(final=final, unigram_loss=6.3, model=model)
    assert findings.describe_learning(pretrain, objective).startswith(beginning)
    masked = dataclasses.replace(objective, masks=True, meaning=Meaning.TOKENS)
    (guesses,) = findings.describe_guesses(pretrain, masked, ("de", 0.05))
    assert guesses == "GPT guesses 31.6% of hidden words right; always guessing “de”, 5.0%."


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


def test_numbers_as_people_read_them() -> None:
    assert formats.points(-0.0997) == f"{MINUS}10.0"
    assert formats.points(0.074) == "+7.4"
    assert formats.percent(0.2167) == "21.7%"
    assert formats.compact(1503746) == "1.5\N{NO-BREAK SPACE}M"
    assert formats.compact(12) == "12"
    assert formats.compact(999_960) == "1.0\N{NO-BREAK SPACE}M"
    assert formats.compact(999_940) == "999.9\N{NO-BREAK SPACE}k"
    assert formats.duration(2.37) == "2.4 s"
    assert formats.duration(59.99) == "1 min 0 s"
    assert formats.duration(155.5) == "2 min 36 s"
    assert formats.duration(3599.9) == "1 h 0 min"
    half = Estimate(mean=0.5, low=-0.4, high=0.6, count=5)
    assert formats.interval(half, "accuracy") == f"[{MINUS}40.0, 60.0]"
    assert formats.score(0.5214, "accuracy") == "52.1%"
    assert formats.score(0.5214, "matthews") == "52.1"
    assert formats.score(0.5214, "mean_squared_error") == "0.521"
    assert formats.interval(half, "loss") == f"[{MINUS}0.400, 0.600]"
    assert formats.p_value(0.0004) == "p < 0.001"
    assert formats.p_value(0.0134) == "p = 0.013"
    assert formats.metric_name("exact_match") == "exact match"
    assert formats.setting(0.0022) == "2.2e-03"
    assert formats.setting(16) == "16"
    assert formats.setting({"kind": "frozen", "layers": [1, 2]}) == "frozen layers=[1, 2]"
