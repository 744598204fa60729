"""The examples of downstream tasks: a dataclass for each form of input, and their files. `where`
says where an example came from, such as `train.tsv:12`. Targets are names and characters, never
ids, and None where unknown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from typing import Any, ClassVar, Self, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact, PerSplit, Summary
from rungwise.core.storage.folder import Folder
from rungwise.tokenizer.mask_units import find_blanks


class Damage(DataError):
    """One example cannot be used; others can."""

    @classmethod
    def explain(cls, where: str, expected: str, found: str, keys: str = "") -> "Damage":
        """Say what was expected and found, and which `keys` of data.format may be wrong."""
        change = f", or change data.format.{keys}" if keys else ""
        return cls.at(where, expected, found, f"mend it{change}")


Kind = str  # the name of a kind, a key of KINDS (tasks/interface.py)
SPLITS = ("train", "validation", "test")
PART_END = "\x1f"  # between the texts of an example where they are one text


class _Inputs:
    """The base of all examples. `gold` is its target, `parts` the texts of its input, "" for an
    optional one that is absent, `group` the text whose examples stay in one split."""

    inputs: ClassVar[tuple[str, ...]]  # the fields that a model reads
    target_field: ClassVar[str] = "target"
    shared: ClassVar[str] = ""  # the input that several examples are about
    segmented: ClassVar[bool] = False  # whether its text comes in words

    @property
    def gold(self) -> Any:
        return getattr(self, self.target_field)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels or tags of the example, each once."""
        return ()

    @property
    def parts(self) -> tuple[str, ...]:
        return self._list_texts(self.inputs)

    @property
    def written(self) -> str:
        """The input as one text, but for what is shared."""
        own = self._list_texts([name for name in self.inputs if name != self.shared])
        return "\n".join(filter(None, own))

    def _list_texts(self, names: Iterable[str]) -> tuple[str, ...]:
        values = (getattr(self, name) or "" for name in names)
        return tuple(chain.from_iterable((v,) if isinstance(v, str) else v for v in values))

    @property
    def group(self) -> str:
        return self.parts[0]

    def as_input(self) -> dict[str, Any]:
        """Return the input as plain data."""
        values = {name: getattr(self, name) for name in self.inputs}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    def change_texts(self, change: Callable[[str], str]) -> Self:
        """Return the example with other texts, changed in the order of `parts`."""
        changes: dict[str, Any] = {}
        for name in self.inputs:
            value = getattr(self, name)
            if isinstance(value, tuple):
                changes[name] = tuple(map(change, value))
            elif value is not None:
                changes[name] = change(value)
        return replace(self, **changes)  # pyright: ignore[reportArgumentType, reportCallIssue]


@dataclass(frozen=True)
class Text(_Inputs):
    """A text or a pair of texts. The target is the label's name (classification), all label names
    in alphabetical order, () for none (multilabel), a number (regression), or the text to write."""

    inputs = ("text", "second")

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
    def labels(self) -> tuple[str, ...]:
        return self.target if isinstance(self.target, tuple) else (str(self.target),)


@dataclass(frozen=True)
class Tagged(_Inputs):
    """The words of a sentence with one tag each."""

    inputs = ("words",)
    target_field = "tags"
    segmented = True

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None

    @property
    def written(self) -> str:
        return "".join(chain.from_iterable(zip(find_blanks(self.words), self.words, strict=True)))

    @property
    def group(self) -> str:
        return join_parts(self)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.tags or ()))


@dataclass(frozen=True)
class Answer:
    """An answer whose `text` begins at character `start` of the context (code points from 0)."""

    text: str
    start: int


@dataclass(frozen=True)
class Question(_Inputs):
    """A question about a context; `answers` are of several people, () if it has no answer."""

    inputs = ("question", "context")
    target_field = "answers"
    shared = "context"

    where: str
    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None = None

    @property
    def group(self) -> str:
        return self.context


@dataclass(frozen=True)
class ChoiceExample(_Inputs):
    """One of `options` continues the context and, if there is one, the question."""

    inputs = ("context", "question", "options")
    shared = "context"

    where: str
    context: str
    question: str | None
    options: tuple[str, ...]
    target: int | None = None

    def as_input(self) -> dict[str, Any]:
        return super().as_input() | {"question": self.question or ""}


Example = Text | Tagged | Question | ChoiceExample


def check_encodable(text: str, where: str, what: str) -> str:
    """Return a text; raise Damage for what JSON can hold, but not UTF-8 and so the tokenizers."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Damage(
            f"{where}: {what} holds half of a character (a lone surrogate): {text!a:.80}; mend it"
        ) from None
    return text


def join_parts(example: Example) -> str:
    """Return the whole input of an example as one text."""
    return PART_END.join(example.parts)


@dataclass(frozen=True)
class TaskInfo:
    """Facts common to all splits of a task. `labels` are the names of the classes or tags in a
    fixed order, () where there are none; `pair`: every text has a second one; `metric` selects a
    model, higher is better."""

    kind: Kind
    labels: tuple[str, ...]
    pair: bool
    metric: str


@dataclass(frozen=True)
class LoadedTask:
    """A loaded task: its splits, and what they have in common. `overlap` and `irregular` are as in
    TaskSummary; `notes` are lines for the user. `whole_train` is the training split before a budget
    was drawn from it, None without a budget."""

    info: TaskInfo
    splits: dict[str, list[Any]]
    overlap: dict[str, int] = field(default_factory=dict)
    irregular: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    whole_train: list[Any] | None = None


class ExampleCounts(PerSplit):
    """The number of labelled examples of each split."""

    test: int


class TaskSummary(Summary):
    """Facts of a task that a variant needs, and baselines to compare a score with. `overlap` counts
    examples of a split whose text also occurs in train, `irregular` counts what was left out or
    mended, by split and reason, and `baselines` are scores of trivial rules."""

    info: TaskInfo
    examples: ExampleCounts
    baselines: dict[str, dict[str, float]]
    overlap: dict[str, int]
    irregular: dict[str, dict[str, int]]


def write_examples(examples: Sequence[Example], output: Folder, split: str) -> None:
    """Write the examples of a split, all of one kind, to `{split}.parquet`."""
    rows = [asdict(each) if isinstance(each, Question) else vars(each) for each in examples]
    with output.staged(f"{split}.parquet") as path:
        pq.write_table(pa.Table.from_pylist(rows), path)


def read_examples(task: Artifact, split: str) -> list[Any]:
    """Read the examples of a split, in the order they were written."""
    table = pq.read_table(task.folder.local(f"{split}.parquet"))
    columns = set(table.column_names)
    (example_type,) = (t for t in get_args(Example) if columns == {f.name for f in fields(t)})
    examples: list[Example] = []
    for row in table.to_pylist():
        for name, value in row.items():
            if isinstance(value, list):
                row[name] = tuple(Answer(**v) if isinstance(v, dict) else v for v in value)
        examples.append(example_type(**row))
    return examples
