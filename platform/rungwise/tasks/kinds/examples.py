"""The examples of downstream tasks: seven kinds, four dataclasses, and their files.

    kind             example        what is asked
    classification   Text           one label for a text or a pair of texts
    multilabel       Text           any number of labels for a text or a pair
    regression       Text           one number for a text or a pair
    tagging          Tagged         one tag for each word
    span             Question       where in the context the answer is, or that there is none
    choice           ChoiceExample  which of several options continues the context
    generation       Text           another text, to be written

`where` says where an example came from, such as `train.tsv:12`, for messages. Targets are names and
characters, never ids. The target is None where it is unknown, as in data to predict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.summary import PerSplit, Summary
from rungwise.core.storage.folder import Folder

Kind = Literal[
    "classification", "multilabel", "regression", "tagging", "span", "choice", "generation"
]
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Text:
    """A text or a pair of texts. The target is the label's name (classification), all label names
    in alphabetical order, () for none (multilabel), a number (regression), or the text to write."""

    where: str
    text: str
    second: str | None = None
    target: str | float | tuple[str, ...] | None = None

    @property
    def number(self) -> float:
        """The target in regression."""
        assert not isinstance(self.target, tuple)
        return float(self.target or 0.0)


@dataclass(frozen=True)
class Tagged:
    """The words of a sentence with one tag each."""

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Answer:
    """An answer whose `text` begins at character `start` of the context (code points from 0)."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question about a context. Several annotators may have given `answers`; () means that it
    has no answer."""

    where: str
    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None = None


@dataclass(frozen=True)
class ChoiceExample:
    """One of `options` continues the context and, if there is one, the question."""

    where: str
    context: str
    question: str | None
    options: tuple[str, ...]
    target: int | None = None


Example = Text | Tagged | Question | ChoiceExample

_OF_KIND: Mapping[Kind, type[Example]] = {
    "classification": Text,
    "multilabel": Text,
    "regression": Text,
    "tagging": Tagged,
    "span": Question,
    "choice": ChoiceExample,
    "generation": Text,
}
OF_TEXT: tuple[Kind, ...] = ("classification", "multilabel", "regression")


@dataclass(frozen=True)
class TaskInfo:
    """Facts common to all splits of a task.

    `labels` are the names of the classes or tags in a fixed order, () where there are none; `pair`:
    every text has a second one; `metric` selects a model, higher is better.
    """

    kind: Kind
    labels: tuple[str, ...]
    pair: bool
    metric: str

    @property
    def asked(self) -> str:
        """The task in words: `one of 3 labels for a text`."""
        labels, of = len(self.labels), "a pair of texts" if self.pair else "a text"
        return {
            "classification": f"one of {labels} labels for {of}",
            "multilabel": f"which of {labels} labels {of} has",
            "regression": f"a number for {of}",
            "tagging": f"one of {labels} tags for each word",
            "span": "the place of the answer to a question in a context",
            "choice": "which of several options continues a text",
            "generation": "a text to write for another text",
        }[self.kind]

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> TaskInfo:
        """Build from plain data; other keys are ignored."""
        return cls(data["kind"], tuple(data["labels"]), data["pair"], data["metric"])

    def as_data(self) -> dict[str, Any]:
        """Return plain data that `from_data` reads."""
        return {**asdict(self), "labels": list(self.labels)}


class ExampleCounts(PerSplit):
    """The number of labelled examples of each split."""

    test: int


class TaskSummary(Summary):
    """Facts of a task that a variant needs, and baselines to compare a score with.

    `overlap` counts examples of a split whose text also occurs in train, `irregular` counts what
    was left out or mended, by split and reason, and `baselines` are scores of trivial rules.
    """

    info: TaskInfo
    examples: ExampleCounts
    baselines: dict[str, dict[str, float]]
    overlap: dict[str, int]
    irregular: dict[str, dict[str, int]]


def write(examples: Sequence[Example], output: Folder, split: str) -> None:
    """Write the examples of a split, all of one kind, to `{split}.parquet`."""
    with output.staged(_file(split)) as path:
        pq.write_table(pa.Table.from_pylist([asdict(example) for example in examples]), path)


def read(task: Artifact, split: str) -> list[Any]:
    """Read the examples of a split, in the order they were written."""
    example_type = _OF_KIND[TaskSummary.of(task).info.kind]
    rows = pq.read_table(task.folder.local(_file(split))).to_pylist()
    return [_example(example_type, row) for row in rows]


def _example(example_type: type[Example], row: dict[str, Any]) -> Example:
    for name, value in row.items():
        if isinstance(value, list):
            row[name] = tuple(Answer(**v) if isinstance(v, dict) else v for v in value)
    return example_type(**row)


def _file(split: str) -> str:
    return f"{split}.parquet"
