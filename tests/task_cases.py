"""What tests of downstream tasks share: files to read, real questions, logits, tokenizers."""

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers

from rungwise.core.configuration.config import Config, validate
from rungwise.core.storage.source_files import list_matching_files
from rungwise.tasks.config import FilesTaskConfig, TaggedFormat, TaskConfig
from rungwise.tasks.kinds.examples import Answer, Question, TaskInfo
from rungwise.tasks.kinds.items import Item
from rungwise.tokenizer import TokenizerFileConfig, read_tokenizer

SPAN = TaskInfo("span", (), False, "f1")
# The id of a word, which is a number, is that number.
NUMBERED = Tokenizer(models.WordLevel({str(n): n for n in range(100)}, unk_token="0"))
NUMBERED.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]


def words(*numbers: int) -> str:
    """The text of which these are the ids."""
    return " ".join(map(str, numbers))


def vocabulary(data: Path, name: str) -> Tokenizer:
    """A published vocabulary, as the tokenizer stage reads it."""
    path = str(data / "vocab" / name)
    return read_tokenizer(TokenizerFileConfig(path=path, lowercase=not name.endswith("-cased")))


def questions(path: Path) -> list[Question]:
    """The questions of a SQuAD file, without those of which an answer is not at its place."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as stream:
        articles = json.load(stream)["data"]
    rows = []
    for paragraph in (p for article in articles for p in article["paragraphs"]):
        context = paragraph["context"]
        for asked in paragraph["qas"]:
            answers = tuple(Answer(a["text"], a["answer_start"]) for a in asked["answers"])
            if all(context[a.start : a.start + len(a.text)] == a.text for a in answers):
                key = str(asked["id"])
                rows.append(Question(key, key, asked["question"], context, answers))
    return rows


def perfect_logits(items: Sequence[Item]) -> list[NDArray[Any]]:
    """Start and end logits (T, 2) that are 10 at the target and else 0."""
    outputs = []
    for item in items:
        logits = np.zeros((len(item.rows[0].ids), 2))
        logits[item.target[0], 0] = logits[item.target[1], 1] = 10
        outputs.append(logits)
    return outputs


def json_lines(*records: Any) -> str:
    return "".join(json.dumps(each) + "\n" for each in records)


def as_json(example: Any) -> list[Any]:
    """The inputs and the target of an example, as JSON has them."""
    values = asdict(example)
    names = (*example.inputs, example.target_field)
    return json.loads(json.dumps([values[name] for name in names]))


class TaskBlock(Config):
    """The block of a task, as in a recipe."""

    task: TaskConfig


def files_task(data: dict[str, Any]) -> FilesTaskConfig:
    config = validate(TaskBlock, {"task": data}).task
    assert isinstance(config, FilesTaskConfig)
    return config


class FormatBlock(Config):
    """The block of a format, as in a task."""

    format: TaggedFormat


def read_content(
    folder: Path,
    form: dict[str, Any],
    content: str | bytes,
    name: str = "data.txt",
    counts: Counter[str] | None = None,
    split: str = "train",
) -> list[Any]:
    """The examples of a file in `folder`; of an archive, those below the path inside of it."""
    archive, dot, _ = name.partition(".gz/")
    path = folder / (f"{archive}.gz" if dot else name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    reader = validate(FormatBlock, {"format": form}).format
    counts = Counter() if counts is None else counts
    files = reader.select_files(list_matching_files([str(folder / name)], "data.train"), counts)
    return [example for file in files for example in reader.read(file, split, counts)]
