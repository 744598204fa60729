"""The examples of downstream tasks: seven kinds, four dataclasses, and the files they are kept in.

    kind             example    what is asked
    classification   Text       one label for a sentence or for a pair (SPEC F2, F3)
    multilabel       Text       any number of labels for a sentence or for a pair
    regression       Text       one number for a pair (F4)
    tagging          Tagged     one tag for each word (F6)
    span             Question   where in the context the answer stands, or that it has none (F7)
    choice           Choice     which of several options goes on (F5)
    generation       Text       another text, to be written (F8)

`where` says where an example came from, such as `train.tsv:12`, so that every message about it can.
Targets are names and characters and never ids: a label is its name, an answer its text and the
place of its first character. Where there is no target, as in what is to be predicted, it is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.artifact import Artifact
from rungwise.core.storage import Folder
from rungwise.core.summary import PerSplit, Summary

Kind = Literal[
    "classification", "multilabel", "regression", "tagging", "span", "choice", "generation"
]
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Text:
    """A sentence, or a pair of them. The target is a label's name, a number in regression, the text
    to write in generation, and of several labels all of their names in alphabetical order, () for
    none."""

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
    """The words of a sentence with a tag each."""

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Answer:
    """`text` is what stands in the context from character `start` on (code points, from 0)."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """`answers` are what different people marked; an empty tuple says that there is no answer."""

    where: str
    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None = None


@dataclass(frozen=True)
class ChoiceExample:
    """One of `options` goes on after the context and, if there is one, the question."""

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
OF_TEXT: tuple[Kind, ...] = ("classification", "multilabel", "regression")  # one answer a text


@dataclass(frozen=True)
class TaskInfo:
    """Facts common to all splits of a task, as the task stage read them.

    `labels` are the names of the classes or tags in a fixed order, () where there are none; `pair`
    says that every text has a second one; `metric` is the one that selects, higher is better.
    """

    kind: Kind
    labels: tuple[str, ...]
    pair: bool
    metric: str

    @property
    def asked(self) -> str:
        """The question in words: `one of 3 labels for a text`."""
        labels, of = len(self.labels), "a pair of texts" if self.pair else "a text"
        return {
            "classification": f"one of {labels} labels for {of}",
            "multilabel": f"which of {labels} labels {of} has",
            "regression": f"a number for {of}",
            "tagging": f"one of {labels} tags for each word",
            "span": "where in a context the answer to a question stands",
            "choice": "which of several options goes on",
            "generation": "a text to write after another",
        }[self.kind]

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> TaskInfo:
        """From plain data with the keys of this class, and maybe others."""
        return cls(data["kind"], tuple(data["labels"]), data["pair"], data["metric"])

    def as_data(self) -> dict[str, Any]:
        """Plain data; `from_data` reads it."""
        return {**asdict(self), "labels": list(self.labels)}


class ExampleCounts(PerSplit):
    """A number of labelled examples for each split."""

    test: int


class TaskSummary(Summary):
    """Facts of a task that a variant needs, and baselines to hold a score against.

    `overlap` counts examples of a split whose text stands in train too, `irregular` what was left
    out or mended by split and reason, `baselines` scores what knows nothing of the text.
    """

    info: TaskInfo
    examples: ExampleCounts
    baselines: dict[str, dict[str, float]]
    overlap: dict[str, int]
    irregular: dict[str, dict[str, int]]


def write(examples: Sequence[Example], output: Folder, split: str) -> None:
    """Keep the examples of a split, all of one kind, in `{split}.parquet`."""
    with output.staged(_file(split)) as path:
        pq.write_table(pa.Table.from_pylist([asdict(example) for example in examples]), path)


def read(task: Artifact, split: str) -> list[Any]:
    """The examples of a split, in the order they were written."""
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
