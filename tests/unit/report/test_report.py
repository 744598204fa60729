"""The report page: self-contained, escaped, complete, honest and repeatable."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.evaluation.page import fill_in, held_out, spelling
from rungwise.instances import shards
from rungwise.instances.reader import InstanceReader
from rungwise.instances.summary import InstancesSummary
from rungwise.models.trained.language_models import MaskedModel
from rungwise.report.run import write_report
from rungwise.report.sections.examples import choose_specimen
from rungwise.report.sections.findings import describe_training
from rungwise.report.stage import ReportConfig, ReportSummary
from rungwise.tokenizer import CLS_ID, MASK_ID, SEP_ID, ByteBpeConfig, load_tokenizer, train
from rungwise.training.pretrained import load_model, load_module
from rungwise.training.summary import BeganWith, PretrainSummary
from rungwise.training.tensor_files import save_tensors
from tests.conftest import write_shards
from tests.report_experiments import Experiment, MadeTask
from tests.report_pages import (
    Page,
    Source,
    built,
    changed_run,
    check_pictures,
    check_self_contained,
    corpus_summary,
    csv_rows,
    written_page,
)

SENTENCES = (
    "The parser reads <b>every</b> token & keeps the rows in order.",
    "A worker returns the <script>alert(1)</script> value without a copy.",
    "When asked, the model masks $x_1$ and ${broken math, one position at once.",
    "Each thread writes two columns to the cache by name.",
)
LENGTH = 48
SECTIONS = (
    *("result", "use", "comparison", "table", "tuning", "loss", "reads", "blanks", "speed"),
    "origin",
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
    names = ("train-00000.arrow", "validation-00000.arrow", "validation-00001.arrow")
    source = Source(corpus, SENTENCES * 5, lambda t: dict.fromkeys(names, _shard(t, 30)), LENGTH)
    return built("mlm_nsp", tmp_path_factory.mktemp("root"), source=source)


@pytest.fixture(scope="module")
def inputs(pretrained: dict[str, Artifact]) -> dict[str, Artifact]:
    """A finetune workflow's artifacts: two variants, one task with a label that is no good HTML."""
    return _compared([0.70, 0.72, 0.71], [0.60, 0.61, 0.60], pretrained)


def _compared(
    first: list[float], second: list[float], pretrained: dict[str, Artifact]
) -> dict[str, Artifact]:
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


def _shard(tokenizer: Any, count: int) -> shards.Shard:
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in SENTENCES]
    rows, a_lengths = [], []
    for row in range(count):
        a, b = encoded[row % 4][:20], encoded[(row + 1) % 4][:20]
        rows.append([CLS_ID, *a, SEP_ID, *b, SEP_ID])
        a_lengths.append(len(a) + 2)
    return shards.Shard(
        ids=np.array([token for row in rows for token in row], np.uint16),
        offsets=np.cumsum([0, *map(len, rows)]).astype(np.int64),
        columns={
            "a_length": np.array(a_lengths, np.uint16),
            "is_next": np.array([row % 2 for row in range(count)], np.uint8),
        },
    )


@pytest.fixture(scope="module")
def written(
    inputs: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Page, ReportSummary, Path]:
    path = tmp_path_factory.mktemp("report")
    return *written_page(inputs, path), path


@pytest.fixture(scope="module")
def opened(inputs: dict[str, Artifact]) -> tuple[InstanceReader, Tokenizer]:
    """All held-out instances, and the tokenizer."""
    return InstanceReader(inputs["instances"], "validation"), load_tokenizer(
        inputs["tokenizer"].folder
    )


def test_every_section_of_a_whole_workflow(written: tuple[Page, ReportSummary, Path]) -> None:
    page, summary, path = written
    check_self_contained(page)
    assert len(check_pictures(summary, path)) == 7
    assert set(SECTIONS) <= page.ids
    assert summary.page == "report.html"
    assert summary.headline == ("rows: plain above other by +10.7 points [+9.2, +12.1], 3 seeds")
    for words in (
        "Pretraining raised test accuracy from 60.3% to 71.0%: +10.7 points [+9.2, +12.1].",
        "Relative error reduction",
        "Selected with one score, reported with another",
        "models:/small-rows/1",
        "none: starts from random weights",
        "6 trials in 2 sweeps",
        "2 were stopped early: 10 of 18 epochs were run",
        "would have taken 54 epochs. 81% of that compute was saved.",
        "With new seeds the winners score 23.3 points lower",
        "3 test and 0 validation examples also occur in the training split",
        "without them and those of the training split: plain 1,234 (50.0%); other not looked up.",
    ):
        assert words in page.words, words


def test_sections_of_absent_stages_are_left_out(
    pretrained: dict[str, Artifact], tmp_path: Path
) -> None:
    page, summary = written_page(pretrained, tmp_path, fill_in_examples=0, title="only <this>")
    assert page.ids & set(SECTIONS) == {"result", "use", "loss", "reads", "speed", "origin"}
    assert not {"trials.csv", "seeds.csv", "sweep_curves.png", "fill_in.csv"} & set(summary.show)
    assert "only <this>" in page.words
    assert summary.headline.startswith("validation mlm")
    assert "rungwise run pretrain recipe.yaml" in page.words


def test_a_page_shows_the_recipe_without_secrets_and_the_file_beside_it_is_to_the_letter(
    pretrained: dict[str, Artifact], tmp_path: Path
) -> None:
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
    seeds = csv_rows(path / "seeds.csv")
    assert [float(row["test_accuracy"]) for row in seeds] == [
        row.test["accuracy"] for row in EvaluateSummary.of(inputs["evaluate/rows"]).rows
    ]
    [difference] = csv_rows(path / "differences.csv")
    assert (difference["first"], difference["second"]) == ("plain", "other")
    assert float(difference["mean"]) == pytest.approx(0.32 / 3)
    assert [row["variant"] for row in csv_rows(path / "table.csv")] == ["plain", "other"]
    [step] = csv_rows(path / "table_differences.csv")
    assert (step["variant"], step["minus"]) == ("other", "plain")
    assert float(step["mean"]) == pytest.approx(-0.32 / 3)
    assert not (path / "budgets.csv").exists()
    validation = csv_rows(path / "validation.csv")
    run = PretrainSummary.of(inputs["pretrain"]).gradient
    assert run is not None
    assert [float(row["mlm_loss"]) for row in validation] == [
        row["mlm_loss"] for row in run.validation
    ]
    assert len(csv_rows(path / "fill_in.csv")) == 8 * fill_in.TOP


@pytest.mark.parametrize(
    ("first", "name"),
    [
        ([0.70, 0.72, 0.71], "above"),
        ([0.60, 0.65, 0.58], "unresolved"),
        ([0.50, 0.51, 0.49], "below"),
    ],
)
def test_the_page_says_what_the_seeds_say(
    pretrained: dict[str, Artifact], tmp_path: Path, first: list[float], name: str
) -> None:
    changed = _compared(first, [0.60, 0.61, 0.60], pretrained)
    written_page(changed, tmp_path, fill_in_examples=0)
    text = (tmp_path / "report.html").read_text("utf-8")
    shown = {said for said in ("above", "unresolved", "below") if f'class="verdict {said}"' in text}
    assert shown == {name}


def test_one_system_and_no_next_sentence_still_make_a_page(
    pretrained: dict[str, Artifact], tmp_path: Path
) -> None:
    run = PretrainSummary.of(pretrained["pretrain"]).gradient
    assert run is not None
    curves = {"history": run.history, "validation": run.validation}
    rows = {
        key: [{k: v for k, v in row.items() if "nsp" not in k} for row in curve]
        for key, curve in curves.items()
    }
    mlm = _without_pairs(pretrained["pretrain"], tmp_path / "mlm", rows)
    made = Experiment({**pretrained, "pretrain": mlm})
    made.variants(["alone"])
    made.task("rows", MadeTask("classification", {None: {"alone": [0.5, 0.6]}}), swept=False)
    made.table()
    page, summary = written_page(made.made, tmp_path)
    assert set(SECTIONS) - {"tuning", "table"} <= page.ids
    assert "verdict" not in page.words.lower()
    assert "minus" not in page.words.lower()
    assert summary.headline == "rows: test accuracy"
    assert not {"differences-rows.png", "pair.png", "trials.csv"} & set(summary.show)


def _without_pairs(pretrain: Artifact, folder: Path, rows: dict[str, Any]) -> Artifact:
    """The same model as MLM alone would leave it."""
    changed = changed_run(pretrain, **rows)
    summary = PretrainSummary.of(changed).model_copy(update={"objective": "mlm"})
    settings = {**pretrain.record["config"]["pretrain"], "objective": "mlm"}
    config = {**pretrain.record["config"], "pretrain": settings}
    weights = {
        name: tensor
        for name, tensor in load_module(pretrain).state_dict().items()
        if not name.startswith(("nsp", "bert.pooler"))
    }
    save_tensors(Folder.at(folder), "model.safetensors", weights)
    record = {**changed.record, "config": config}
    return summary.replace_summary(
        dataclasses.replace(changed, folder=Folder.at(folder), record=record)
    )


def test_the_same_inputs_give_the_same_bytes(
    written: tuple[Page, ReportSummary, Path], inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    _, summary = written_page(inputs, tmp_path)
    for name in summary.show:
        assert (tmp_path / name).read_bytes() == (written[2] / name).read_bytes(), name


def test_blanks_follow_a_rule_and_hide_the_answer(opened: tuple[InstanceReader, Tokenizer]) -> None:
    reader, tokenizer = opened
    blanks = fill_in.choose_blanks(reader, tokenizer, 8, seed=0)
    assert blanks == fill_in.choose_blanks(reader, tokenizer, 8, seed=0)
    assert blanks != fill_in.choose_blanks(reader, tokenizer, 8, seed=1)
    # The first few are the first few of more: asking for more examples picks no others.
    assert blanks[:3] == fill_in.choose_blanks(reader, tokenizer, 3, seed=0)
    assert len({blank.instance for blank in blanks}) == 8
    for blank in blanks:
        assert blank.ids[blank.position] == MASK_ID
        assert blank.ids.count(MASK_ID) == 1
        assert blank.answer.isalpha()
        assert len(blank.answer) >= spelling.MINIMUM_LETTERS
        assert blank.answer == tokenizer.id_to_token(blank.answer_id)
        following = tokenizer.id_to_token(blank.ids[blank.position + 1])
        assert following is not None
        assert not following.startswith("##")
        # The sentence with the answer in its place is a piece of the text.
        sentence = SENTENCES[blank.instance % 30 % 4].lower()
        shown = f"{blank.before}{blank.answer}{blank.after}".replace("…", "")
        assert _letters(shown) in _letters(sentence)
        assert not blank.before.endswith(blank.answer)
        assert not blank.after.startswith(blank.answer)


def _letters(text: str) -> str:
    return "".join(letter for letter in text if not letter.isspace())


def test_guesses_are_the_models_own_and_sorted(
    inputs: dict[str, Artifact], opened: tuple[InstanceReader, Tokenizer]
) -> None:
    tokenizer = opened[1]
    blanks = fill_in.choose_blanks(*opened, 4, seed=0)
    special = InstancesSummary.of(inputs["instances"]).special
    model = load_model(inputs["pretrain"], special)
    assert isinstance(model, MaskedModel)
    together = fill_in.fill_blanks(model, tokenizer, blanks)
    for blank, filled in zip(blanks, together, strict=True):
        [alone] = fill_in.fill_blanks(model, tokenizer, [blank])
        assert [guess.text for guess in alone.guesses] == [guess.text for guess in filled.guesses]
        assert alone.probability == pytest.approx(filled.probability, rel=1e-5)
        probabilities = [guess.probability for guess in filled.guesses]
        assert probabilities == sorted(probabilities, reverse=True)
        assert any(guess.right for guess in filled.guesses) == (filled.rank <= fill_in.TOP)


def test_byte_level_blanks_are_whole_words(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    config = ByteBpeConfig(vocab_size=400, min_frequency=1)
    folder = Folder.at(tmp_path)
    with folder.staged("tokenizer.json") as path:
        train(config, SENTENCES * 5).save(str(path))
    tokenizer = load_tokenizer(folder)
    summary = write_shards(tmp_path, {"validation-00000.arrow": _shard(tokenizer, 8)}, 400)
    instances = summary.replace_summary(dataclasses.replace(inputs["instances"], folder=folder))
    blanks = fill_in.choose_blanks(InstanceReader(instances, "validation"), tokenizer, 8, 0)
    words = {word.strip(".,").lower() for text in SENTENCES for word in text.split()}
    assert blanks
    assert {blank.answer for blank in blanks} <= words


def test_the_specimen_tells_what_masking_did(opened: tuple[InstanceReader, Tokenizer]) -> None:
    reader, tokenizer = opened
    shown = choose_specimen(reader, tokenizer, 0)
    kinds = {kind: shown.count(kind) for kind in ("special", "masked", "random", "kept")}
    assert kinds["special"] == 3
    assert min(kinds.values()) >= 1
    for piece in shown.pieces:
        assert (piece.original is not None) == (piece.kind in ("masked", "random", "kept"))
        assert (piece.text == "[MASK]") == (piece.kind == "masked")
        if piece.kind == "kept":
            assert piece.text == piece.original
        if piece.kind == "random":
            assert piece.text != piece.original
    original = tokenizer.encode(SENTENCES[shown.instance % 4], add_special_tokens=False).tokens[:20]
    a = [piece.original or piece.text for piece in shown.pieces if piece.segment == 0]
    assert a == ["[CLS]", *original, "[SEP]"]


def test_the_share_of_the_most_frequent_token_by_hand(
    opened: tuple[InstanceReader, Tokenizer],
) -> None:
    reader = opened[0]
    batch = held_out.read_as_validated(reader, np.arange(40) * 60 // 40)
    targets = batch.masked_ids[batch.masked_weights > 0].tolist()
    frequent = held_out.most_frequent_share(reader, 40, 0)
    assert frequent is not None
    token, share = frequent
    assert share == max(targets.count(other) for other in set(targets)) / len(targets)
    assert targets.count(token) / len(targets) == share


def test_a_model_that_began_with_earlier_weights_is_said_to_go_on(
    pretrained: dict[str, Artifact],
) -> None:
    summary = PretrainSummary.of(pretrained["pretrain"])
    before = BeganWith(fingerprint="a" * 12, label="x", objective="mlm", fresh=(), carried=())
    further = summary.model_copy(update={"began_with": before})
    inputs = pretrained | {"pretrain": further.replace_summary(pretrained["pretrain"])}
    assert "was pretrained for 20 steps" in describe_training(pretrained)
    assert "was pretrained further, from earlier weights, for 20 steps" in describe_training(inputs)
