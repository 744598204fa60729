"""The text of a task as a corpus: one split, no labels, every text once; and the further stages."""

from pathlib import Path
from typing import Any

import pytest

import rungwise
from rungwise.__main__ import main
from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.configuration.config import validate
from rungwise.core.configuration.yaml_file import load
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import StageType
from rungwise.core.storage.folder import Folder
from rungwise.corpus.document import Document, read_documents
from rungwise.corpus.summary import CorpusSummary, describe_sources
from rungwise.pipeline.continued import ContinuedConfig, continued_stages
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import chained_stages, pretrain_stages
from rungwise.pipeline.workflow import plan
from rungwise.report.sections.findings import describe_text
from rungwise.tasks.data.task_text import build_task_text, documents
from rungwise.tasks.kinds.examples import (
    Answer,
    ChoiceExample,
    Example,
    Kind,
    Question,
    Tagged,
    TaskInfo,
    Text,
    write_examples,
)
from rungwise.tasks.stage import TaskTextConfig
from tests.conftest import small_recipe, write_corpus, write_recipe
from tests.summaries import task_of

# Words that no text of these tests holds.
LABELS = ("xpositivex", "xnegativex", "B-XPER", "O")


def corpus_of(
    folder: Path, kind: Kind, examples: list[Example], **settings: Any
) -> tuple[CorpusSummary, list[Document]]:
    """The summary and the documents of the corpus of a task with these training examples."""
    made = Folder.at(folder / "task")
    write_examples(examples, made, "train")
    # What nobody can read, so that whoever tries is found out.
    for split in ("validation", "test"):
        made.write_bytes(f"{split}.parquet", b"not to be opened")
    task = task_of(made, TaskInfo(kind, (), False, ""))
    output = Folder.at(folder / "corpus")
    config = TaskTextConfig(**{"held_out_fraction": 0.5, **settings})
    summary = build_task_text(config, {"task": task}, output, Context())
    files = [row.file for row in summary.files]
    return summary, [document for file in files for document in read_documents(output, file)]


def filler(count: int, target: str | float = LABELS[0]) -> list[Example]:
    return [Text(f"train.tsv:{100 + n}", f"text number {n}", None, target) for n in range(count)]


def sentences(documents: list[Document], where: str) -> list[str]:
    [document] = [document for document in documents if document.id == where]
    return list(document.sentences)


def written(folder: Path, documents: list[Document]) -> str:
    """Everything that the artifact says, as text."""
    names = " ".join(path.name for path in (folder / "corpus").iterdir())
    return names + "\n".join(
        " ".join((document.id, document.label, *document.sentences)) for document in documents
    )


@pytest.mark.parametrize(("kind", "target"), [("classification", LABELS[1]), ("regression", 3.25)])
def test_a_text_is_a_document_and_its_second_text_the_next_sentence(
    tmp_path: Path, kind: Kind, target: str | float
) -> None:
    examples = [
        Text("train.tsv:1", "a fine film . really", None, target),
        Text("train.tsv:2", "One man sits.", "A man stands. He waits.", target),
        *filler(20, target),
    ]
    summary, documents = corpus_of(tmp_path, kind, examples)
    assert summary.documents.total == 22
    assert sentences(documents, "train.tsv:1") == ["a fine film .", "really"]
    assert sentences(documents, "train.tsv:2") == ["One man sits.", "A man stands.", "He waits."]
    assert str(target) not in written(tmp_path, documents) + str(summary)


def test_tagged_words_are_one_sentence(tmp_path: Path) -> None:
    words = ("Mr.", "Smith", "left", ".", "He", "ran", ".")
    tags = (LABELS[3], LABELS[2], *[LABELS[3]] * 5)
    examples: list[Example] = [Tagged("eng.train:4", words, tags)]
    examples += [Tagged(f"eng.train:{n}", ("word", str(n)), (LABELS[3],) * 2) for n in range(9, 30)]
    _, documents = corpus_of(tmp_path, "tagging", examples)
    assert sentences(documents, "eng.train:4") == ["Mr. Smith left . He ran ."]
    assert LABELS[2] not in written(tmp_path, documents)
    assert all(LABELS[3] not in one.label.split() for one in documents)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Mr. Smith left .", "Mr. Smith left ."),
        ("当 希 望 1 9 9 7 年 。 《 茶 》 O K", "当希望1997年。《茶》OK"),
        ("他 喝 Earl Grey 茶 。 很 好", "他喝Earl Grey茶。很好"),
        ("お茶 が 好き だ", "お茶が好きだ"),
        ("I", "I"),
        ("a b", "a b"),
    ],
)
def test_a_tagged_sentence_has_blanks_where_its_script_has_any(words: str, expected: str) -> None:
    """With a token a character, blanks would be half of a Chinese text."""
    tagged = Tagged("a:1", tuple(words.split()), ("O",) * len(words.split()))
    (document,) = documents([tagged])
    assert document.paragraphs == (expected,)


def test_a_context_stands_once_after_all_questions_about_it(tmp_path: Path) -> None:
    context = "Ada wrote it. She was first."
    several = [("Who wrote it?", Answer("Ada", 0)), ("Was she?", None), ("Who wrote it?", None)]
    examples: list[Example] = [
        Question(f"s.json:{n}", f"id{n}", asked, context, (answer,) if answer else ())
        for n, (asked, answer) in enumerate(several)
    ]
    examples += [Question(f"s.json:{n}", "", f"What is {n}?", f"It is {n}.") for n in range(9, 30)]
    _, documents = corpus_of(tmp_path, "span", examples)
    assert len(documents) == 22
    assert sentences(documents, "s.json:0") == [
        "Who wrote it?",
        "Was she?",
        "Ada wrote it.",
        "She was first.",
    ]


@pytest.mark.parametrize("target", [0, 1])
def test_all_options_stand_in_their_order_whichever_is_right(tmp_path: Path, target: int) -> None:
    options = ("They sing.", "They fly off.")
    examples: list[Example] = [
        ChoiceExample("c.tsv:1", "Two men meet.", None, options, target),
        ChoiceExample("d.json:1", "Hello.\nGoodbye.", "Who speaks?", options, target),
        ChoiceExample("d.json:2", "Hello.\nGoodbye.", "Why?", ("No reason", "None"), 1 - target),
    ]
    examples += [
        ChoiceExample(f"c.tsv:{n}", f"No {n} comes.", None, options, 0) for n in range(9, 30)
    ]
    _, documents = corpus_of(tmp_path, "choice", examples)
    assert sentences(documents, "c.tsv:1") == ["Two men meet.", *options]
    asked = ["Who speaks?", *options, "Why?", "No reason", "None"]
    assert sentences(documents, "d.json:1") == ["Hello.", "Goodbye.", *asked]
    assert len(documents) == 23


def test_short_texts_stay_and_copies_go_and_some_are_held_out(tmp_path: Path) -> None:
    examples = [*filler(200), Text("train.tsv:1", "ok"), Text("train.tsv:2", "ok")]
    summary, documents = corpus_of(tmp_path, "classification", examples, held_out_fraction=0.1)
    assert summary.dropped == {"duplicate": 1}
    assert sentences(documents, "train.tsv:1") == ["ok"]
    assert 8 <= summary.documents.validation <= 35
    assert summary.documents.total == 201


def test_too_few_examples_are_refused_with_the_key_to_change(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the task give 1 documents.*held_out_fraction"):
        corpus_of(tmp_path, "classification", filler(1))


def further(**blocks: Any) -> ContinuedConfig:
    data = {"instances": {"kind": "masked_blocks"}, "pretrain": {"steps": 5}} | blocks
    return validate(ContinuedConfig, data)


def test_pages_cards_and_questions_name_the_files_of_a_tasks_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, _ = corpus_of(tmp_path / "made", "classification", filler(20, "1"))
    root = Folder.at(tmp_path / "root")

    def finished(
        stage: str, config: dict[str, Any], shown: dict[str, Any], *of: Artifact
    ) -> Artifact:
        inputs = {each.stage: {"stage": each.stage, "fingerprint": each.fingerprint} for each in of}
        facts = {"stage": stage, "outside": {}, "inputs": {e.stage: e.fingerprint for e in of}}
        record = {"stage": stage, "label": "x", "config": config, "inputs": inputs, "facts": facts}
        record |= {"fingerprint": fingerprint(facts), "summary": shown, "finished": "2026-01-01"}
        folder = artifacts.find_folder(root, stage, "x", fingerprint(facts))
        return artifacts.finish(folder, record, {})

    task = finished("task", {"kind": "files", "train": ["reviews.tsv"]}, {"headline": "a task"})
    text = finished("task_text", {}, summary.model_dump(mode="json"), task)
    assert describe_sources(text) == ["text of a task, without its labels: reviews.tsv"]
    assert describe_text(text).endswith(" of the text of a task, without its labels")
    assert main(["why", "--source", "reviews.tsv", "--root", root.uri]) == 0
    told = f"task_text {text.fingerprint} (x): the source reviews.tsv"
    assert told in capsys.readouterr().out


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    corpus = write_corpus(tmp_path / "text", documents=3)
    path = write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path / "root", corpus))
    return load(Recipe, path)


def test_two_calls_make_four_stages_of_training(recipe: Recipe) -> None:
    task = StageType("task", 1, build_task_text, CorpusSummary).stage(TaskTextConfig())
    general = pretrain_stages(recipe)
    domain = continued_stages(further(corpus=recipe.corpus.model_dump()), "domain", general)
    adapted = continued_stages(further(task_text={}), "task", general | domain, task)
    assert adapted["pretrain"].inputs["initial"] is domain["pretrain"]
    assert domain["pretrain"].inputs["initial"] is general["pretrain"]
    assert adapted["tokens"].inputs["tokenizer"] is general["tokenizer"]
    assert adapted["corpus"].inputs["task"] is task
    stages = [*general.values(), *domain.values(), task, *adapted.values()]
    titles = [stage.display_name for stage in stages]
    assert len(set(titles)) == len(titles)
    known: set[str] = set()
    for stage in stages:  # inputs first, or the runner cannot find them
        assert {source.display_name for source in stage.inputs.values()} <= known
        known.add(stage.display_name)
    # Where it comes from is part of what it is, what it is called is not.
    again = continued_stages(further(task_text={}), "x", general | domain, task)
    assert again["pretrain"].fingerprint == adapted["pretrain"].fingerprint
    directly = continued_stages(further(task_text={}), "task", general, task)
    assert directly["pretrain"].fingerprint != adapted["pretrain"].fingerprint
    assert directly["instances"].fingerprint == adapted["instances"].fingerprint


def test_a_further_corpus_is_the_artifact_that_the_same_general_one_is(recipe: Recipe) -> None:
    """So that two recipes which differ in their steps share what they have in common."""
    general = pretrain_stages(recipe)
    assert recipe.instances is not None
    step = further(
        corpus=recipe.corpus.model_dump(),
        instances=recipe.instances.model_dump(),
        pretrain=recipe.pretrain.model_dump() if recipe.pretrain else {},
    )
    stages = continued_stages(step, "domain", general)
    for name in ("corpus", "instances"):
        assert stages[name].fingerprint == general[name].fingerprint
    mine, theirs = stages["pretrain"].facts, general["pretrain"].facts
    inputs = mine["inputs"].pop("initial")
    assert (mine, inputs) == (theirs, general["pretrain"].fingerprint)


def test_a_recipe_is_trained_on_by_its_steps_and_what_is_loaded_is_the_last(recipe: Recipe) -> None:
    corpus = recipe.corpus.model_dump()
    steps = {"first": {"corpus": corpus}, "second": {"corpus": corpus | {"seed": 7}}}
    for blocks in steps.values():
        blocks["pretrain"] = {"steps": 5, "objective": "mlm"}
        blocks["instances"] = {"kind": "masked_blocks", "sequence_length": 32}
    chained = recipe.model_copy(
        update={
            "continued_pretraining": {name: further(**blocks) for name, blocks in steps.items()},
            "continue_with": ["first", "second"],
        }
    )
    stages, last = chained_stages(chained)
    assert [each.display_name for each in stages if each.name == "pretrain"] == [
        "pretrain",
        "pretrain/first",
        "pretrain/second",
    ]
    assert last.keys() == {"corpus", "tokenizer", "tokens", "instances", "pretrain"}
    assert last["pretrain"] is stages[-1]
    rows = plan("workflows/pretrain.py", chained)
    titles = [row.stage.display_name for row in rows]
    assert titles[: len(stages)] == [each.display_name for each in stages]
    with pytest.raises(ConfigError, match="its pretrain stage is not finished"):
        rungwise.load(chained)


def test_a_step_reads_one_text(recipe: Recipe) -> None:
    for blocks in ({}, {"task_text": {}, "corpus": recipe.corpus.model_dump()}):
        with pytest.raises(ConfigError, match="either corpus or task_text"):
            further(**blocks)
    with pytest.raises(ConfigError, match=r"pretrain\.longer_share"):
        further(task_text={}, pretrain={"steps": 5, "longer_share": 0.2})
    with pytest.raises(ConfigError, match="the text of a task, but this workflow has none"):
        continued_stages(further(task_text={}), "task", pretrain_stages(recipe))
