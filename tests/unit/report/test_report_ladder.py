"""The page of a ladder: what it shows of a ladder of known numbers, and what it leaves out."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import create_model

from rungwise.core.configuration.config import Config
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison.claims import ClaimsSummary
from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites.base import Panel, plot_estimate
from rungwise.evaluation.suites.language_models import PerplexitySuite
from rungwise.report import style
from rungwise.report.comparison import gather_searches, list_untuned
from rungwise.report.forecast import LadderForecast, LadderQuestion
from rungwise.report.formats import series
from rungwise.report.ladder import gather_rungs, make_row, write_claims, write_ladder
from rungwise.report.stage import LadderConfig, ReportSummary
from tests import ladders
from tests.ladders import EVIL, MODELS, NATS
from tests.report_experiments import Experiment
from tests.report_pages import Page, check_pictures, check_self_contained, csv_rows
from tests.toy_suite import LettersSuite

MINUS = "\N{MINUS SIGN}"
VERDICTS = {
    "K1": "confirmed",
    "K2": "confirmed",
    "K3": "contradicted",
    "K4": "undecided",
    "K5": "not tested",
}
ALL = {
    *("advice", "picture", "history", "claims"),
    *("minimal_pairs", "layers", "words_sentences_speed"),
    *("table", "budgets", "mix", "reading", "origin"),
}
PLOTS = ("ladder", "ladder-narrow", "advice", "advice-narrow")

ADVICE = "To predict text, take LSTM: 1.731 bits per byte after 5 s of a core, the best of 4."
TITLES = {name: (f"measure/{name}",) for name in MODELS}


def _written(made: Experiment, folder: Path, **keys: Any) -> tuple[Page, ReportSummary]:
    first = next(iter(MODELS))  # and the same weights, used in another way
    measured = TITLES | {first: ("measure",), "bert_frozen": ("measure",)}
    config = LadderConfig(title="my <ladder>", measured=measured, **keys)
    context = Context(recipe={"name": "small"})
    summary = write_ladder(config, made.made, Folder.at(folder), context)
    return Page((folder / "ladder.html").read_text("utf-8")), summary


@pytest.mark.parametrize(("better", "chance"), [("GPT", 1.0), ("LSTM", 0.0)])
def test_the_chance_of_a_claim_is_that_of_fewer_bits(better: str, chance: float) -> None:
    last = SimpleNamespace(measure="bits_per_byte")
    rungs: Any = [
        SimpleNamespace(
            rung=rung,
            later=True,
            last=last,
            target=None,
            curves=SimpleNamespace(predict_point=lambda _, bits=bits: np.full(9, bits)),
        )
        for rung, bits in (("GPT", 1.5), ("LSTM", 1.8))
    ]
    other = {"GPT": "LSTM", "LSTM": "GPT"}[better]
    row = SimpleNamespace(scale="log", threshold=0.0, terms={better: 1.0, other: -1.0})
    claim: Any = SimpleNamespace(id="K2", comparisons=[row])
    assert LadderForecast([], {"10x": rungs}).chances([claim]) == {"K2": chance}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, ReportSummary, Path]:
    made = ladders.whole(tmp_path_factory.mktemp("root"))
    ladders.claims(made, VERDICTS)
    path = tmp_path_factory.mktemp("page")
    return *_written(made, path), path


def test_every_section_and_the_verdict(written: tuple[Page, ReportSummary, Path]) -> None:
    page, summary, _ = written
    assert page.ids >= ALL
    verdicts = "Of 4 claims tested, 2 are confirmed, 1 contradicted, 1 undecided."
    assert summary.headline.startswith(ADVICE)
    assert summary.headline.endswith(verdicts)
    for words in (
        verdicts,
        ADVICE,
        "10 documents (10 words) for training, 10 held out; vocabulary 300; 5 rungs",
        "Missing: rnn",
        "factor 1.65 [1.49, 1.82]",
        f"{MINUS}3.0 points [{MINUS}5.0, {MINUS}1.0]",
        f"perplexity: GPT {MINUS} LSTM",
        "rungwise run ladder recipe.yaml",
        "my similarity requires word vectors: not for 3-gram, 2-gram.",
        "BERT (frozen): same weights as BERT, used in another way",
    ):
        assert words in page.words, words


def test_the_page_loads_nothing_and_escapes_all(written: tuple[Page, ReportSummary, Path]) -> None:
    page, summary, path = written
    check_self_contained(page)
    assert {f"{name}.png" for name in PLOTS} <= set(check_pictures(summary, path))
    text = (path / "ladder.html").read_text("utf-8")
    assert EVIL not in text
    assert EVIL in page.words
    assert "my <ladder>" in page.words


def test_what_lacks_tuning_is_marked(
    written: tuple[Page, ReportSummary, Path], tmp_path: Path
) -> None:
    """Of gpt and lstm, which all claims compare, none was tuned, both, or one."""
    made = ladders.perplexity_only(tmp_path / "root")
    ladders.claims(made, VERDICTS)
    for rung in ("gpt", "lstm"):
        ladders.search(made, rung, [4.0, 3.0])
    tested = [name for name, verdict in VERDICTS.items() if verdict != "not tested"]
    _, none, folder = written
    _, both = _written(made, tmp_path / "both")
    for summary, path, chosen in ((none, folder, 0), (both, tmp_path / "both", 1)):
        assert summary.headline.count("(settings chosen on this text)") == chosen
        text = (path / "ladder.html").read_text("utf-8")
        assert not any("tun" in _claim_summary(text, name) for name in tested)
    del made.made["search/lstm"]
    page, _ = _written(made, tmp_path / "page")
    text = (tmp_path / "page" / "ladder.html").read_text("utf-8")
    assert "134.3 †" in page.words  # the perplexity of GPT
    assert (
        "† The settings of this rung are the best of several by a loss on this text" in page.words
    )
    assert "Not tuned: 3-gram, 2-gram, LSTM, BERT." in page.words
    assert all("not tuned: LSTM" in _claim_summary(text, name) for name in tested)
    judged = ClaimsSummary.of(made.made["claims"])
    row = judged.claims[0].comparisons[0].model_copy(update={"effective": 2.5})
    update = {"comparisons": (row,), "verdict": "undecided", "p_holm": 0.5}
    undecided = judged.claims[0].model_copy(update=update)
    chance = write_claims(judged, {}, {}, {}).fields["chance"]
    assert "count as 2.5" in chance(undecided)
    row = row.model_copy(update={"terms": {"gpt/layer 1": 1.0, "bert@40": -1.0}})
    claim = judged.claims[0].model_copy(update={"comparisons": (row,)})
    judged = judged.model_copy(update={"claims": (claim,)})
    assert list_untuned(gather_searches(made.made, {}, {}), judged) == {"K1": ["bert"]}


def _claim_summary(page: str, claim: str) -> str:
    """What stands in the page on a claim before it is opened."""
    before, _, _ = page.partition(f"<p>{claim}: ")
    return before.rpartition("<summary>")[2]


@pytest.mark.parametrize(
    ("metric", "choice", "ending"),
    [
        ("f1", "b", "after 10 s of a core; c has 40.0% F1 and costs 5 times as much."),
        ("bits_per_byte", "d", "; a has 0.300 bits per byte and costs about as much."),
    ],
)
def test_the_cheapest_within_the_margin_of_the_best_is_advised(
    metric: str, choice: str, ending: str
) -> None:
    """Of a task's F1 more is better, of bits per byte less."""
    scores = {"a": 0.3, "b": 0.395, "c": 0.4, "d": 0.31}
    question = LadderQuestion(
        "For the task ner",
        metric,
        {name: Estimate(score, score, score, 1) for name, score in scores.items()},
        {"a": 1.0, "b": 10.0, "c": 50.0, "d": 0.6},
    )
    assert question.choice == choice
    assert question.sentence().startswith(f"For the task ner, take {choice}: ")
    assert question.sentence().endswith(ending)


def test_a_ladder_that_was_asked_little_has_no_empty_sections(tmp_path: Path) -> None:
    made = ladders.perplexity_only(tmp_path / "root")
    ladders.claims(made, {"K5": "not tested"})
    page, summary = _written(made, tmp_path / "page")
    assert page.ids & ALL == {*("advice", "picture", "history", "claims", "reading", "origin")}
    assert summary.headline == ADVICE
    # The claims, of which none can be tested, are folded and after the ladder's own table.
    html = (tmp_path / "page" / "ladder.html").read_text("utf-8")
    assert html.index('id="history"') < html.index('id="claims"') < html.index("Plain claim 0")
    assert "<summary>Not tested, since" in html[html.index('id="claims"') :]
    assert set(summary.show) == {
        *("ladder.html", "ladder.png", "ladder-narrow.png"),
        *("advice.png", "advice-narrow.png"),
        "recipe.yaml",
        *("ladder.csv", "suites.csv", "stages.csv", "advice.csv"),
    }


def test_a_suite_is_one_file_with_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only other lines are its import and its name in the union of suites."""
    made = ladders.perplexity_only(tmp_path / "root", toys=LettersSuite())
    ladders.claims(made, {"K5": "not tested"})
    known = create_model("Known", __base__=Config, suites=dict[str, PerplexitySuite | LettersSuite])
    monkeypatch.setattr("rungwise.report.ladder.MeasureConfig", known)
    page, _ = _written(made, tmp_path / "page")
    assert "toys" in page.ids
    assert "Even or odd?" in page.words
    assert "layer 1accuracy 50.0" in page.words
    (column,) = [row for row in csv_rows(tmp_path / "page" / "ladder.csv") if row["rung"] == "GPT"]
    assert float(column["even_words"]) == 4 / 8


def test_rungs_stand_in_order_of_history(written: tuple[Page, ReportSummary, Path]) -> None:
    """bert has the fewest nats, but they bound nothing."""
    page, _, path = written
    ladder = csv_rows(path / "ladder.csv")
    assert [row["rung"] for row in ladder] == ["3-gram", "2-gram", "LSTM", "BERT", "GPT"]
    for variant, row in zip(("ngram3", "ngram2", "lstm", "bert", "gpt"), ladder, strict=True):
        nats = NATS[variant] + 10  # six documents, 4 nats apart
        key = "pseudo_bits_per_byte" if row["rung"] == "BERT" else "bits_per_byte"
        assert float(row[key]) == pytest.approx(nats / math.log(2) / 400)
        assert f"{float(row[key]):.3f}" in page.words
    best = f"{480 / math.log(2) / 400:.3f} ★"
    assert best in page.words
    assert not any(row["pseudo_bits_per_byte"] for row in ladder if row["rung"] != "BERT")


def test_tables_are_those_of_the_page(written: tuple[Page, ReportSummary, Path]) -> None:
    page, _, path = written
    for row in csv_rows(path / "suites.csv"):
        in_groups = row["suite"] == "my_minimal_pairs" and row["part"] == ""
        if row["suite"] == "my_similarity" or in_groups:
            assert f"{100 * float(row['value']):.1f}".replace("-", MINUS) in page.words


def test_an_interval_that_ends_short_of_the_mean_is_drawn() -> None:
    short, looks = Estimate(0.4, 0.39, math.nextafter(0.4, 0), 16), {"a": series(0)}
    panel = Panel("polysemy", "layer", "accuracy", {"a": [plot_estimate(0.0, short)]})
    assert style.draw_panels([panel], looks).startswith(b"\x89PNG")
    figure, (axes,) = style.new_strip([2.0], narrow=True)
    style.draw_bars(axes, {"a": short}, ["a"], "accuracy", True, looks, {})
    assert style.png(figure).startswith(b"\x89PNG")


def test_several_pretrainings_are_one_rung_and_their_luck_is_in_its_scores(tmp_path: Path) -> None:
    """Of gpt's two pretrainings the second is like the 3-gram, 20 nats worse."""
    made = ladders.perplexity_only(tmp_path / "root", suite="by_another_name")
    measured = TITLES | {"bert": ("measure",)}
    once = {rung.name: rung for rung in gather_rungs(made.made, measured)}
    several = measured | {"gpt": ("measure/gpt", "measure/ngram3")}
    twice = {rung.name: rung for rung in gather_rungs(made.made, several)}
    scores = {
        name: rung.measure.value("by_another_name", "bits_per_byte") for name, rung in twice.items()
    }
    alone = once["gpt"].measure.value("by_another_name", "bits_per_byte")
    worse, both = scores["ngram3"], scores["gpt"]
    assert alone is not None
    assert worse is not None
    assert both is not None
    assert both.value == pytest.approx((alone.value + worse.value) / 2)
    both, alone, worse = both.estimate, alone.estimate, worse.estimate
    assert both.low < alone.low < worse.high < both.high  # two trainings say little
    assert make_row(twice["gpt"], [])["pretrainings"] == 2
