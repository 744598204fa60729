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
characters, never ids. The target is None where it is unknown, as in data to predict. Every example
has `gold`, its target; `parts`, the texts of its input, "" for an optional one that is absent;
`group`, the text whose examples stay in one split; and `as_input`, its input as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.summary import PerSplit, Summary
from rungwise.core.storage.folder import Folder

Kind = Literal[
    "classification", "multilabel", "regression", "tagging", "span", "choice", "generation"
]
OF_TEXT: tuple[Kind, ...] = ("classification", "multilabel", "regression")
SPLITS = ("train", "validation", "test")
PART_END = "\x1f"  # between the texts of an example where they are one text


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

    @property
    def gold(self) -> Any:
        return self.target

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.text, self.second or "")

    @property
    def group(self) -> str:
        return self.text

    def replace_parts(self, parts: Sequence[str]) -> Self:
        return replace(self, text=parts[0], second=None if self.second is None else parts[1])

    def as_input(self) -> dict[str, Any]:
        return {"text": self.text, "second": self.second}


@dataclass(frozen=True)
class Tagged:
    """The words of a sentence with one tag each."""

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None

    @property
    def gold(self) -> Any:
        return self.tags

    @property
    def parts(self) -> tuple[str, ...]:
        return self.words

    @property
    def group(self) -> str:
        return PART_END.join(self.words)

    def replace_parts(self, parts: Sequence[str]) -> Self:
        return replace(self, words=tuple(parts))

    def as_input(self) -> dict[str, Any]:
        return {"words": list(self.words)}


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

    @property
    def gold(self) -> Any:
        return self.answers

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.question, self.context)

    @property
    def group(self) -> str:
        return self.context

    def replace_parts(self, parts: Sequence[str]) -> Self:
        return replace(self, question=parts[0], context=parts[1])

    def as_input(self) -> dict[str, Any]:
        return {"question": self.question, "context": self.context}


@dataclass(frozen=True)
class ChoiceExample:
    """One of `options` continues the context and, if there is one, the question."""

    where: str
    context: str
    question: str | None
    options: tuple[str, ...]
    target: int | None = None

    @property
    def gold(self) -> Any:
        return self.target

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.context, self.question or "", *self.options)

    @property
    def group(self) -> str:
        return self.context

    def replace_parts(self, parts: Sequence[str]) -> Self:
        context, question, *options = parts
        question = None if self.question is None else question
        return replace(self, context=context, question=question, options=tuple(options))

    def as_input(self) -> dict[str, Any]:
        options = list(self.options)
        return {"context": self.context, "question": self.question or "", "options": options}


Example = Text | Tagged | Question | ChoiceExample


def joined_parts(example: Example) -> str:
    """Return the whole input of an example as one text."""
    return PART_END.join(example.parts)


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
    def goal(self) -> str:
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


def write_examples(examples: Sequence[Example], output: Folder, split: str) -> None:
    """Write the examples of a split, all of one kind, to `{split}.parquet`."""
    with output.staged(_file(split)) as path:
        pq.write_table(pa.Table.from_pylist([asdict(example) for example in examples]), path)


def read_examples(task: Artifact, split: str) -> list[Any]:
    """Read the examples of a split, in the order they were written."""
    table = pq.read_table(task.folder.local(_file(split)))
    columns = set(table.column_names)
    (example_type,) = (t for t in get_args(Example) if columns == {f.name for f in fields(t)})
    return [_example(example_type, row) for row in table.to_pylist()]


def _example(example_type: type[Example], row: dict[str, Any]) -> Example:
    for name, value in row.items():
        if isinstance(value, list):
            row[name] = tuple(Answer(**v) if isinstance(v, dict) else v for v in value)
    return example_type(**row)


def _file(split: str) -> str:
    return f"{split}.parquet"
