"""The report page: self-contained, escaped, complete and repeatable; what it says in words."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.evaluation import examples
from rungwise.evaluation.comparison.summary import Estimate, PairedDifference
from rungwise.instances.reader import InstanceReader
from rungwise.instances.summary import InstancesSummary
from rungwise.models.config import model_config
from rungwise.models.losses.objectives import Meaning
from rungwise.models.trained.language_models import MaskedModel
from rungwise.report import findings, formats
from rungwise.report.run import write_report
from rungwise.report.stage import ReportConfig, ReportSummary
from rungwise.tokenizer import MASK_ID, load_tokenizer
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

SECTIONS = (
    *("result", "comparison", "tuning", "loss", "reads", "blanks", "speed"),
    *("reading", "origin"),
)
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """A pretrain workflow's artifacts, small, with a model that was only initialised."""
    corpus = corpus_summary(
        labels={EVIL: 3, "rows": 1},
        dropped={"too short": 2},
        dropped_samples={"too short": [{"id": EVIL, "text": EVIL}]},
        cut={"s": 654321},
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


@pytest.fixture(scope="module")
def opened(inputs: dict[str, Artifact]) -> tuple[InstanceReader, Tokenizer]:
    return InstanceReader(inputs["instances"], "validation"), load_tokenizer(
        inputs["tokenizer"].folder
    )


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


def test_sections_without_stages_go(pretrained: dict[str, Artifact], tmp_path: Path) -> None:
    page, summary = written_page(pretrained, tmp_path, fill_in_examples=0, title="only <this>")
    assert page.ids & set(SECTIONS) == {*("result", "loss", "reads", "speed", "origin")}
    assert "seeds.csv" not in summary.show
    assert "only <this>" in page.words
    assert "The model learnt nothing yet" in summary.headline
    assert "rungwise run pretrain recipe.yaml" in page.words


def test_a_page_has_no_secrets_of_a_recipe(pretrained: dict[str, Artifact], tmp_path: Path) -> None:
    recipe = {"note": "password=hunter2", "label": "Password: Reset"}
    context = Context(recipe=recipe)
    write_report(ReportConfig(fill_in_examples=0), pretrained, Folder.at(tmp_path), context)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "hunter2" not in page
    assert "Password: Reset" in page
    assert yaml.safe_load((tmp_path / "recipe.yaml").read_text("utf-8")) == recipe


def test_text_of_documents_and_labels_is_escaped(written: tuple[Page, ReportSummary, Path]) -> None:
    page, _, path = written
    text = (path / "report.html").read_text("utf-8")
    assert EVIL not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert f"({EVIL}, rows; F1 is that of rows)" in " ".join(page.words.split())
    assert "654,321" in page.words
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


def test_blanks_follow_a_rule_and_hide_the_answer(opened: tuple[InstanceReader, Tokenizer]) -> None:
    reader, tokenizer = opened
    blanks = examples.choose_blanks(reader, tokenizer, 8, seed=0)
    assert blanks == examples.choose_blanks(reader, tokenizer, 8, seed=0)
    assert blanks != examples.choose_blanks(reader, tokenizer, 8, seed=1)
    # The first few are the first few of more: asking for more examples picks no others.
    assert blanks[:3] == examples.choose_blanks(reader, tokenizer, 3, seed=0)
    assert len({blank.instance for blank in blanks}) == 8
    documents = [" ".join(made_up_sentences(10 + n, 4)).lower() for n in range(10)]
    for blank in blanks:
        assert blank.ids[blank.position] == MASK_ID
        assert blank.ids.count(MASK_ID) == 1
        assert blank.answer.isalpha()
        assert len(blank.answer) >= examples.MINIMUM_LETTERS
        assert blank.answer == tokenizer.id_to_token(blank.answer_id)
        following = tokenizer.id_to_token(blank.ids[blank.position + 1])
        assert following is not None
        assert not following.startswith("##")
        # What is shown, with the answer in its place, is a piece of a document.
        shown = f"{blank.before}{blank.answer}{blank.after}".replace("…", "")
        assert any(_letters(shown) in _letters(document) for document in documents)
        assert not blank.before.endswith(blank.answer)
        assert not blank.after.startswith(blank.answer)


def _letters(text: str) -> str:
    return "".join(letter for letter in text if not letter.isspace())


def test_guesses_are_the_models_own_and_sorted(
    inputs: dict[str, Artifact], opened: tuple[InstanceReader, Tokenizer]
) -> None:
    tokenizer = opened[1]
    blanks = examples.choose_blanks(*opened, 4, seed=0)
    special = InstancesSummary.of(inputs["instances"]).special
    model = load_model(inputs["pretrain"], special)
    assert isinstance(model, MaskedModel)
    together = examples.fill_blanks(model, tokenizer, blanks)
    for blank, filled in zip(blanks, together, strict=True):
        [alone] = examples.fill_blanks(model, tokenizer, [blank])
        assert [guess.text for guess in alone.guesses] == [guess.text for guess in filled.guesses]
        assert alone.probability == pytest.approx(filled.probability, rel=1e-5)
        probabilities = [guess.probability for guess in filled.guesses]
        assert probabilities == sorted(probabilities, reverse=True)
        assert any(guess.right for guess in filled.guesses) == (filled.rank <= examples.TOP)


def test_the_most_frequent_share_by_hand(opened: tuple[InstanceReader, Tokenizer]) -> None:
    reader = opened[0]
    batch = examples.read_as_validated(reader, np.arange(10) * len(reader) // 10)
    targets = batch.masked_ids[batch.masked_weights > 0].tolist()
    frequent = examples.most_frequent_share(reader, 10, 0)
    assert frequent is not None
    token, share = frequent
    assert share == max(targets.count(other) for other in set(targets)) / len(targets)
    assert targets.count(token) / len(targets) == share


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
