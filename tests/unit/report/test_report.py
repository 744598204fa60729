"""The report page: self-contained, escaped, complete and repeatable; what it says in words."""

import dataclasses
import math
from pathlib import Path

import pytest
import yaml

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.evaluation import examples
from rungwise.evaluation.comparison.summary import Estimate, PairedDifference
from rungwise.evaluation.examples import FilledGap
from rungwise.models.config import model_config
from rungwise.models.losses.objectives import Meaning
from rungwise.models.trained.language_models import MaskedModel
from rungwise.report import findings, formats
from rungwise.report.run import write_report
from rungwise.report.stage import ReportConfig, ReportSummary
from rungwise.tokenizer import load_tokenizer
from rungwise.training.pretrained import load_model
from rungwise.training.summary import PretrainSummary
from tests.conftest import made_up_sentences
from tests.report_experiments import Experiment, MadeTask
from tests.report_pages import (
    Page,
    built,
    check_pictures,
    check_self_contained,
    corpus_summary,
    csv_rows,
    written_page,
)

SECTIONS = (*("result", "comparison", "tuning", "loss", "blanks", "speed"), *("reading", "origin"))
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """A pretrain workflow's artifacts, small, with a model that was only initialised."""
    corpus = corpus_summary(
        labels={EVIL: 3, "rows": 1},
        dropped={"too short": 2},
        dropped_samples={"too short": [{"id": EVIL, "text": EVIL}]},
    )
    return built("mlm_nsp", tmp_path_factory.mktemp("root"), corpus=corpus)


@pytest.fixture(scope="module")
def inputs(pretrained: dict[str, Artifact]) -> dict[str, Artifact]:
    """A finetune workflow's artifacts: two variants, one task with a label that is no good HTML."""
    first, second = [0.70, 0.72, 0.71], [0.60, 0.61, 0.60]
    made = Experiment(pretrained)
    made.variants(["plain", "other"], untrained=["other"])
    made.task(
        "rows",
        MadeTask(
            "classification", {None: {"plain": first, "other": second}}, labels=(EVIL, "rows")
        ),
    )
    made.register("rows")
    made.table()
    return made.made


@pytest.fixture(scope="module")
def written(
    inputs: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Page, ReportSummary, Path]:
    path = tmp_path_factory.mktemp("report")
    return *written_page(inputs, path), path


def test_every_section_of_a_whole_workflow(written: tuple[Page, ReportSummary, Path]) -> None:
    page, summary, path = written
    check_self_contained(page)
    assert len(check_pictures(summary, path)) == 2
    assert set(SECTIONS) <= page.ids
    assert summary.page == "report.html"
    raised = "Pretraining raised test accuracy from 60.3% to 71.0%: +10.7 points [+9.2, +12.1]."
    assert summary.headline == raised
    for words in (
        raised,
        "Relative error reduction",
        "models:/small-rows/1",
        "none: starts from random weights",
        "6 trials in 2 sweeps",
        "2 were stopped early: 10 of 18 epochs were run",
        "With new seeds the winners score 23.3 points lower",
        "90.0% 72.0%",  # of the sweep, and with new seeds
        "3 test and 0 validation examples also occur in the training split",
        "those of the training split: BERT (plain) 1,234 (50.0%); BERT (other) not looked up.",
    ):
        assert words in page.words, words


RECIPE = {"note": "password=hunter2", "label": "Password: Reset"}


@pytest.fixture(scope="module")
def alone(
    pretrained: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Page, ReportSummary, Path]:
    """The page of a pretraining."""
    path = tmp_path_factory.mktemp("alone")
    config = ReportConfig(title="only <this>", fill_in_examples=0)
    summary = write_report(config, pretrained, Folder.at(path), Context(recipe=RECIPE))
    return Page((path / "report.html").read_text("utf-8")), summary, path


def test_sections_without_stages_go(alone: tuple[Page, ReportSummary, Path]) -> None:
    page, summary, _ = alone
    assert page.ids & set(SECTIONS) == {*("result", "loss", "speed", "origin")}
    assert "seeds.csv" not in summary.show
    assert "only <this>" in page.words
    assert "The model learnt nothing yet" in summary.headline
    assert "rungwise run pretrain recipe.yaml" in page.words


def test_a_page_has_no_secrets_of_a_recipe(alone: tuple[Page, ReportSummary, Path]) -> None:
    path = alone[2]
    page = (path / "report.html").read_text("utf-8")
    assert "hunter2" not in page
    assert "Password: Reset" in page
    assert yaml.safe_load((path / "recipe.yaml").read_text("utf-8")) == RECIPE


def test_text_of_documents_and_labels_is_escaped(written: tuple[Page, ReportSummary, Path]) -> None:
    page, _, path = written
    text = (path / "report.html").read_text("utf-8")
    assert EVIL not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert f"({EVIL}, rows; F1 is that of rows)" in " ".join(page.words.split())
    assert "corpus <done>" not in text


def test_tables_agree_with_the_records(
    written: tuple[Page, ReportSummary, Path], inputs: dict[str, Artifact]
) -> None:
    path = written[2]
    stages = csv_rows(path / "stages.csv")
    assert [row["stage"] for row in stages] == list(inputs)
    assert [float(row["seconds"]) for row in stages] == [
        artifact.record["seconds"] for artifact in inputs.values()
    ]
    validation = csv_rows(path / "validation.csv")
    run = PretrainSummary.of(inputs["pretrain"]).gradient
    assert run is not None
    assert [float(row["mlm_loss"]) for row in validation] == [
        row["mlm_loss"] for row in run.validation
    ]


def test_the_same_inputs_give_the_same_bytes(
    written: tuple[Page, ReportSummary, Path], inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    _, summary = written_page(inputs, tmp_path)
    for name in summary.show:
        assert (tmp_path / name).read_bytes() == (written[2] / name).read_bytes(), name


def test_gaps_follow_a_rule_and_hide_the_answer(inputs: dict[str, Artifact]) -> None:
    tokenizer, model = load_tokenizer(inputs["tokenizer"].folder), load_model(inputs["pretrain"])
    assert isinstance(model, MaskedModel)

    def fill(number: int, seed: int) -> list[FilledGap]:
        texts = examples.draw_texts(inputs["corpus"], seed)
        return examples.fill_gaps(model, tokenizer, texts, number, seed)

    gaps = fill(8, 0)
    assert gaps == fill(8, 0)
    assert gaps != fill(8, 1)
    # The first few are the first few of more: asking for more examples picks no others.
    assert gaps[:3] == fill(3, 0)
    documents = [" ".join(made_up_sentences(10 + n, 4)) for n in range(10)]
    assert len({gap.before + gap.after for gap in gaps}) == 8
    for gap in gaps:
        assert gap.answer.isalpha()
        assert len(gap.answer) >= examples.MINIMUM_LETTERS
        assert not gap.before[-1:].isalnum()
        assert not gap.after[:1].isalnum()
        # What is shown, with the answer in its place, is a piece of a document.
        assert any(f"{gap.before}{gap.answer}{gap.after}" in document for document in documents)


def test_guesses_are_the_models_own_and_sorted(inputs: dict[str, Artifact]) -> None:
    tokenizer = load_tokenizer(inputs["tokenizer"].folder)
    model = load_model(inputs["pretrain"])
    assert isinstance(model, MaskedModel)
    texts = examples.draw_texts(inputs["corpus"], 0)
    for gap in examples.fill_gaps(model, tokenizer, texts, 4, 0):
        left, right = (
            tokenizer.encode(text, add_special_tokens=False).ids for text in (gap.before, gap.after)
        )
        answer = tokenizer.token_to_id(gap.answer.lower())
        shares = examples.rate_gap(model, tokenizer, left, right)
        assert float(shares.sum()) == pytest.approx(1.0)
        assert gap.probability == pytest.approx(float(shares[answer]))
        assert gap.rank == 1 + sum(shares > shares[answer])
        assert gap.guesses == pytest.approx(
            {tokenizer.id_to_token(n): float(shares[n]) for n in shares.argsort().tolist()[-5:]}
        )
        assert [*gap.guesses.values()] == sorted(gap.guesses.values(), reverse=True)
        assert (gap.right in gap.guesses) == (gap.rank <= examples.TOP)


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
    (guesses,) = findings.describe_guesses(pretrain, masked)
    assert guesses == "GPT guesses 31.6% of hidden words right."


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
