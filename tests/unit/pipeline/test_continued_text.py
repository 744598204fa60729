"""The text of a task as a corpus: one split, no labels, every text once; and the further stages."""

from pathlib import Path
from typing import Any

import pytest

import rungwise
from rungwise.__main__ import main
from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.configuration.overrides import load
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context, Stage, StageType
from rungwise.core.storage.folder import Folder
from rungwise.corpus.document import Document, read_documents
from rungwise.corpus.summary import CorpusSummary, describe_sources
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import chain_stages, check_steps, train_steps
from rungwise.pipeline.workflow import plan
from rungwise.report.findings import describe_text
from rungwise.tasks.config import TaskTextConfig
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
def test_a_text_and_its_second_one(tmp_path: Path, kind: Kind, target: str | float) -> None:
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


def further(name: str = "more", **blocks: Any) -> dict[str, Any]:
    """A step on rows that fit the small model."""
    rows = {"kind": "masked_blocks", "sequence_length": 32}
    data = {"name": name, "instances": rows, "pretrain": {"steps": 5, "objective": "mlm"}}
    return data | blocks


def test_pages_name_the_files_of_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def with_steps(recipe: Recipe, *steps: dict[str, Any]) -> Recipe:
    return recipe.with_changes({"steps": [{}, *steps]}, "test")


def corpus_with(recipe: Recipe, **keys: Any) -> dict[str, Any]:
    return recipe.corpus.model_dump(mode="json") | keys


def test_each_step_begins_with_the_weights_of_the_one_before(recipe: Recipe) -> None:
    task = StageType("task", 1, build_task_text, CorpusSummary).stage(TaskTextConfig())
    first = further("domain", corpus=corpus_with(recipe, seed=7))
    last = further("task", task_text={})
    general, domain, adapted = (
        each.stages for each in train_steps(with_steps(recipe, first, last), task)
    )
    assert adapted["pretrain"].inputs["initial"] is domain["pretrain"]
    assert domain["pretrain"].inputs["initial"] is general["pretrain"]
    assert adapted["tokens"].inputs["tokenizer"].fingerprint == general["tokenizer"].fingerprint
    assert adapted["corpus"].inputs["task"] is task
    # Where it comes from is part of what it is, what it is called is not.
    renamed = with_steps(recipe, first | {"name": "x"}, last)
    again = train_steps(renamed, task)[-1].stages
    assert again["pretrain"].fingerprint == adapted["pretrain"].fingerprint
    directly = train_steps(with_steps(recipe, last), task)[-1].stages
    assert directly["pretrain"].fingerprint != adapted["pretrain"].fingerprint
    assert directly["instances"].fingerprint == adapted["instances"].fingerprint


def test_a_step_without_blocks_is_the_recipe_again_from_its_own_weights(recipe: Recipe) -> None:
    general, again = (each.stages for each in train_steps(with_steps(recipe, {"name": "again"})))
    for name in ("corpus", "instances"):
        assert again[name].fingerprint == general[name].fingerprint
    mine, theirs = again["pretrain"].facts, general["pretrain"].facts
    inputs = mine["inputs"].pop("initial")
    assert (mine, inputs) == (theirs, general["pretrain"].fingerprint)


def test_what_is_loaded_is_the_last_step_and_stages_have_own_titles(recipe: Recipe) -> None:
    steps = (further("first"), further("second", corpus=corpus_with(recipe, seed=7)))
    chained = with_steps(recipe, *steps)
    stages, trained = chain_stages(chained)
    assert [each.display_name for each in stages if each.name == "pretrain"] == [
        "pretrain",
        "pretrain/first",
        "pretrain/second",
    ]
    last = trained[-1].stages
    assert last.keys() == {"corpus", "tokenizer", "tokens", "instances", "pretrain"}
    assert last["pretrain"] is stages[-1]
    known: set[str] = set()
    for stage in stages:  # inputs first, or the runner cannot find them
        assert {source.display_name for source in stage.inputs.values()} <= known
        assert stage.display_name not in known
        known.add(stage.display_name)
    rows = plan("workflows/pretrain.py", chained)
    titles = [row.stage.display_name for row in rows]
    assert titles[: len(stages)] == [each.display_name for each in stages]
    with pytest.raises(ConfigError, match="its pretrain stage is not finished"):
        rungwise.load(chained)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"task_text": {}, "corpus": {"sources": [{"kind": "pydocs"}]}}, r"or steps\.1\.task_text"),
        ({"model": {"kind": "lsa"}}, "has a block pretrain of its own"),
        ({"pretrain": {"steps": 5, "initial": "x"}}, r"leave out steps\.1\.pretrain\.initial"),
        ({"name": None}, "steps has 2 steps of the name null"),
    ],
)
def test_a_wrong_step_is_refused(recipe: Recipe, blocks: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_steps(recipe, {"name": "more"} | blocks)


def test_the_first_step_reads_the_text_of_the_tokenizer(recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match=r"steps\.0 has a text of its own"):
        recipe.with_changes({"steps": [{"corpus": corpus_with(recipe)}]}, "test")


def test_counts_of_a_file_are_known_by_its_bytes(recipe: Recipe, tmp_path: Path) -> None:
    def plan(folder: str, content: str) -> Stage:
        file = tmp_path / folder / "their.arpa"
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
        pretrain = {"kind": "counts", "initial": str(file)}
        blocks = {"model": {"kind": "ngram", "order": 3}, "pretrain": pretrain, "instances": None}
        return train_steps(recipe.with_changes(blocks, "test"))[-1].stages["pretrain"]

    one, other = plan("one", "counts"), plan("other", "counts")
    assert set(one.inputs) == {"tokens", "initial"}
    assert one.fingerprint == other.fingerprint != plan("other", "others").fingerprint


def test_steps_that_do_not_follow_each_other_are_refused(recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match="the text of a task, but this workflow has none"):
        train_steps(with_steps(recipe, further(task_text={})))
    counts = {"name": "counts", "model": {"kind": "ngram"}, "pretrain": {"kind": "counts"}}
    with pytest.raises(ConfigError, match=r"steps\.1: a ngram is fitted by counts and begins"):
        check_steps(with_steps(recipe, counts))
    wider = {"name": "wider", "model": {"kind": "bert"}, "pretrain": {"steps": 5}}
    with pytest.raises(ConfigError, match=r"steps\.1: its model is not that of the step before"):
        check_steps(with_steps(recipe, wider))
    initial = recipe.with_changes({"pretrain.initial": "x", "steps": [{}, {"name": "b"}]}, "test")
    with pytest.raises(ConfigError, match=r"steps\.1: pretrain\.initial are the weights"):
        check_steps(initial)
