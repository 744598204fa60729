"""Every block of docs/reference/tasks.md, on the real files where they are there."""

import csv
import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from rungwise.core.configuration.config import validate
from rungwise.core.stages.artifact import Summary
from rungwise.core.storage.folder import Folder
from rungwise.tasks.config import FilesTaskConfig, split_files
from rungwise.tasks.data import files
from rungwise.tasks.kinds.examples import LoadedTask, read_examples, write_examples
from rungwise.tasks.kinds.labels import marks_spans
from tests.conftest import REPOSITORY
from tests.summaries import standing
from tests.task_cases import TaskBlock, files_task

PAGE = (REPOSITORY / "docs" / "reference" / "tasks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
REAL = {
    block.partition("\n")[0].removeprefix("# "): block for block in BLOCKS if "data/tasks/" in block
}
# Hundreds of thousands of words with a tag each, and two million characters; the formats of SNLI,
# of XNLI in English, of SICK's scores and of QNLI once more.
LARGE = ("MSRA", "CoNLL", "IMDB", "MultiNLI", "XNLI, in Chinese", "SICK, ent", "MRPC")
SLOW = [name for name in REAL if name.startswith(LARGE)]

# What the files hold, by those who published them.
PUBLISHED = yaml.safe_load(Path(__file__).with_name("task_counts.yaml").read_text("utf-8"))


def block(name: str, real_data: Path) -> FilesTaskConfig:
    """The block that begins with `# name`, with the paths of the real files."""
    (text,) = (text for title, text in REAL.items() if title.startswith(name))
    return files_task(yaml.safe_load(text.replace("data/tasks/", f"{real_data}/tasks/")))


Loaded = Callable[[str], LoadedTask]


@pytest.fixture(scope="module")
def loaded(real_data: Path) -> Loaded:
    """Loads the task of a block once, however its name is cut off."""
    load = cache(lambda title: files.load(block(title, real_data)))
    return lambda name: load(next(title for title in REAL if title.startswith(name)))


def in_file(config: FilesTaskConfig, split: str) -> tuple[int, Counter[str]]:
    """The examples in the files of a split, and for tags their words, line by line."""
    number, words = 0, Counter[str]()
    form = config.split_format(split).model_dump()
    for file in split_files(config, split):
        opened = gzip.open if file.uri.endswith(".gz") else open
        with opened(file.uri, "rt", encoding=form["encoding"], newline="\n") as stream:
            text = stream.read()
        filled = [line for line in text.split("\n") if line.strip()]
        match form:
            case {"kind": "conll" | "conllu"}:
                column = 1 if form["kind"] == "conllu" else 0
                for block in re.split(r"\n(?:[ \t\r]*\n)+", text):
                    rows = [re.split(r"\t| (?!\t)", line) for line in block.split("\n")]
                    rows = [row for row in rows if len(row) > 1 and row[0] != "-DOCSTART-"]
                    if column:
                        rows = [row for row in rows if row[0].isdecimal()]
                    number += bool(rows)
                    words.update(row[column] for row in rows)
            case {"kind": "squad"}:
                paragraphs = [p for each in json.loads(text)["data"] for p in each["paragraphs"]]
                number += sum(len(paragraph["qas"]) for paragraph in paragraphs)
            case {"layout": "json"}:
                number += sum(len(questions) for _, questions, _ in json.loads(text))
            case {"quoting": True}:
                header = 0 if form["header"] else None
                number += len(pd.read_csv(io.StringIO(text), header=header))
            case {"layout": "json_lines"}:
                number += len([json.loads(line) for line in filled])
            case _:
                number += len(filled) - form.get("header", False)
    return number, words


@pytest.mark.parametrize("text", BLOCKS, ids=lambda text: text.partition("\n")[0])
def test_a_block_of_the_reference_is_a_task(text: str) -> None:
    validate(TaskBlock, {"task": yaml.safe_load(text)})


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in REAL]
)
def test_a_block_of_the_reference_reads_the_real_files_whole(
    name: str, real_data: Path, loaded: Loaded, tmp_path: Path
) -> None:
    config, task = block(name, real_data), loaded(name)
    counts: dict[str, int] = Counter()
    for split, rows in task.splits.items():
        counts[split if split in config.paths() else "train"] += len(rows)
        write_examples(rows[:200], Folder.at(tmp_path), split)
        artifact = standing("task", tmp_path, Summary(headline=""))
        assert read_examples(artifact, split) == rows[:200]
    dropped = Counter[str]()
    if name.startswith("CMRC"):
        # 200 answers of 9,657; three questions have no other.
        assert task.irregular["train"] == {
            "answers_dropped_as_not_in_the_context": 200,
            "damaged_examples_dropped": 3,
        }
        dropped["train"] = 3
    for split, reasons in task.irregular.items():
        dropped[split] += reasons.get("rows_dropped_for_their_label", 0)
    there = {split: in_file(config, split) for split in config.paths()}
    assert counts == {split: there[split][0] - dropped[split] for split in there}
    if task.info.kind == "tagging":
        every = [e for rows in task.splits.values() for e in rows]
        assert Counter(word for e in every for word in e.words) == sum(
            (words for _, words in there.values()), Counter()
        )
    for place, labels in PUBLISHED["labels"].items():
        start, split = place.split()
        if name.startswith(start):
            assert Counter(e.target for e in task.splits[split]) == labels


def test_every_file_of_the_real_tasks_is_in_a_block(real_data: Path) -> None:
    folder = real_data / "tasks"
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    read_by_blocks = {
        file.uri.partition("/tasks/")[2]
        for name in REAL
        for config in [block(name, real_data)]
        for split in config.paths()
        for file in split_files(config, split)
    }
    # Minimal pairs and senses are no task to fine-tune on.
    probed = ("en/BLiMP/", "en/CoarseWSD-20/", "zh/ZhoBLiMP/")
    left = {path for path in there - read_by_blocks if not path.startswith(probed)}
    assert left == {"en/IMDB/unsup.jsonl.gz", "zh/THUCNews/class.txt"}
    names = (folder / "zh/THUCNews/class.txt").read_text().split()
    assert list(block("THUCNews", real_data).format.stated_labels) == names


def test_the_entities_of_conll_2003_are_as_many_as_its_authors_counted(loaded: Loaded) -> None:
    task = loaded("CoNLL-2003")
    assert task.info.metric == "f1"
    for split, (tokens, entities) in PUBLISHED["conll_2003"].items():
        tags = [tag for e in task.splits[split] for tag in e.tags]
        assert len(tags) == tokens
        assert Counter(tag[2:] for tag in tags if tag.startswith("B-")) == entities


@pytest.mark.parametrize(
    "name", [pytest.param("CoNLL-2000, chunks", marks=pytest.mark.slow), "UD English EWT"]
)
def test_words_are_as_many_as_the_data_has(name: str, loaded: Loaded) -> None:
    task = loaded(name)
    train, test = PUBLISHED["words"][name]
    assert sum(len(e.words) for s in ("train", "validation") for e in task.splits[s]) == train
    assert sum(len(e.words) for e in task.splits["test"]) == test
    assert marks_spans(task.info.labels) == (name != "UD English EWT")


@pytest.mark.parametrize(
    ("name", "options", "columns"),
    [
        ("STS-B", {"header": None}, (0, 1, 2)),
        ("SNLI", {}, ("premise", "hypothesis", "label")),
        ("AG News", {"header": None}, (1, 2, 0)),
        (
            "MRPC",
            {"sep": "\t", "quoting": csv.QUOTE_NONE, "encoding": "utf-8-sig"},
            ("#1 String", "#2 String", "Quality"),
        ),
        ("QNLI", {"sep": "\t", "quoting": csv.QUOTE_NONE}, ("question", "sentence", "label")),
    ],
)
def test_tables_are_read_as_pandas_reads_them(
    name: str, options: dict[str, Any], columns: tuple[Any, ...], real_data: Path, loaded: Loaded
) -> None:
    config, splits = block(name, real_data), loaded(name).splits
    examples = [
        e for split, rows in splits.items() if split not in config.paths() for e in rows
    ] + splits["train"]
    frame = pd.read_csv(config.train[0], dtype=str, keep_default_na=False, **options)
    rows = frame[list(columns)].itertuples(index=False, name=None)
    labels = getattr(config.format, "labels", None)
    names = labels if isinstance(labels, dict) else {}
    expected = Counter(
        (text, second, float(target) if name == "STS-B" else names.get(target, target))
        for text, second, target in rows
    )
    assert Counter((e.text, e.second, e.target) for e in examples) == expected


def test_every_answer_of_the_real_questions_stands_at_its_place(loaded: Loaded) -> None:
    impossible = 0
    for name in ("SQuAD 1.1", "SQuAD 2.0", "CMRC", "XQuAD"):
        for rows in loaded(name).splits.values():
            for e in rows:
                for answer in e.answers:
                    assert e.context[answer.start : answer.start + len(answer.text)] == answer.text
                impossible += not e.answers
    assert impossible == 1987
