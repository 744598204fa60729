"""Tables with an example per row or object: texts and pairs, and questions with options."""

import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import (
    Damage,
    Labels,
    join_names,
    label_name,
    label_names,
    quote,
    suggest,
    words,
)
from rungwise.tasks.formats.records import Column, RecordsFormat, TextColumn, plain
from rungwise.tasks.kinds.examples import ChoiceExample, Kind, Text

_DECIMAL_COMMA = re.compile(r"[-+]?\d*,(?:\d{1,2}|\d{4,})")


class ColumnsConfig(Config):
    """The columns of a table: names in the header, indexes from 0, or JSON fields, with a dot for
    nested ones. The texts of several columns are joined."""

    text: TextColumn = "text"
    second: TextColumn | None = None  # second text of a pair
    label: Column | None = None  # the class, in classification
    score: Column | None = None  # the number to predict, in regression
    target: TextColumn | None = None  # the text to write, in generation

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if len(self.targets) > 1:
            raise ValueError(f"{' and '.join(self.targets)} are both set; a table has one target")
        if self.second is not None and self.target is not None:
            raise ValueError(
                "second and target are both set, and one text is written after one other; join the "
                "columns of the first: text: [title, body]"
            )
        if any(isinstance(value, int) and value < 0 for _, value in self):
            raise ValueError("an index of a column is 0 or more")
        return self

    @property
    def targets(self) -> list[str]:
        """The target keys that are set."""
        return [key for key in ("label", "score", "target") if getattr(self, key) is not None]


class TableFormat(RecordsFormat):
    """A table with one example per row or, in JSON, per object."""

    kind: Literal["table"] = "table"
    columns: ColumnsConfig
    # {value in the file: name}, or a list of the allowed values; null: any value
    labels: Labels | None = None
    # leave out rows with these labels or scores, such as SNLI's "-", or "" for none
    skip_labels: tuple[str, ...] = ()

    @property
    def task_kind(self) -> Kind:
        if self.columns.target is not None:
            return "generation"
        return "classification" if self.columns.score is None else "regression"

    @property
    def stated_labels(self) -> tuple[str, ...]:
        return label_names(self.labels)

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Text]:
        """Yield the examples of a file; their target is None if there is no target column."""
        for line, row in self.records(file, split, counts):
            where = f"{file.uri}:{line}"
            with self.skip_damage(counts, row):
                label = target = None
                if "columns.label" in row:
                    label = _label_text(row["columns.label"], where)
                value = plain(row["columns.score"]) if "columns.score" in row else label
                if value in self.skip_labels:
                    counts["rows_dropped_for_their_label"] += 1
                    continue
                if label is not None:
                    target = label_name(label, self.labels, where)
                elif "columns.score" in row:
                    target = self._score(row["columns.score"], where)
                elif "columns.target" in row:
                    target = words(row["columns.target"], where, "the target")
                text, second = words(row["columns.text"], where, "the text"), None
                if "columns.second" in row:
                    second = words(row["columns.second"], where, "the second text")
                yield Text(f"{file.name}:{line}", text, second, target)

    def _score(self, value: Any, where: str) -> float:
        # A comma before three digits may separate thousands, unless others separate columns.
        is_comma = isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value.strip())
        if isinstance(value, str) and (is_comma or self.delimiter == ";"):
            value = value.replace(",", ".")
        try:
            # float(True) is 1.0, but `true` among scores is a mistake.
            score = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            score = math.nan
        if not math.isfinite(score):
            raise Damage(
                f"{where}: expected a number as the score, found {quote(value)}; mend the line, or "
                "change data.format.columns.score"
            )
        return score


def _label_text(value: Any, where: str) -> str:
    """Return a label as text; in JSON it may be an integer, a boolean, or a list of one of them."""
    match value:
        case [only]:
            return _label_text(only, where)
        case bool():
            return "true" if value else "false"
        case str() | int():
            return str(value).strip()
    raise Damage(
        f"{where}: a label must be text or a whole number, or a list of one, found {quote(value)}; "
        "mend the line, or change data.format.columns.label"
    )


class ChoiceColumns(Config):
    """The columns of a multiple-choice table, named as in a table."""

    context: TextColumn | None = None  # text that comes first; set this, `question` or both
    question: TextColumn | None = None  # the question about it
    options: TextColumn  # a column per option, or one column with a JSON list
    names: Column | None = None  # names of the options, a JSON list, if `answer` is one of them
    begins: Column | None = None  # text that begins every option, as in SWAG
    answer: Column  # the right answer

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.context is None and self.question is None:
            raise ValueError("expected context or question, found neither")
        return self


class ChoiceFormat(RecordsFormat):
    """Multiple choice, with an example per row or object."""

    fixed_kind = "choice"

    kind: Literal["choice"] = "choice"
    columns: ChoiceColumns
    # what `columns.answer` holds: the option's number, its letter or its text
    answer: Literal["index", "letter", "text"] = "index"
    first: int = Field(default=0, ge=0, le=1)  # number of the first option

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[ChoiceExample]:
        for line, row in self.records(file, split, counts):
            with self.skip_damage(counts, row):
                where = f"{file.uri}:{line}"
                options = _check_options(row["columns.options"], where)
                target = self._target(row, options, where)
                texts = [
                    words(row[key], where, f"the {key.partition('.')[2]}")
                    for key in ("columns.context", "columns.question")
                    if key in row
                ]
                begins = str(row.get("columns.begins") or "").strip()
                yield ChoiceExample(
                    f"{file.name}:{line}",
                    texts[0],
                    texts[1] if len(texts) > 1 else None,
                    tuple(f"{begins} {option}" if begins else option for option in options),
                    target,
                )

    def _target(self, row: dict[str, Any], options: Sequence[str], where: str) -> int:
        value = plain(row["columns.answer"])
        values = [str(place + self.first) for place in range(len(options))]
        if "columns.names" in row:
            names = row["columns.names"]
            if not isinstance(names, list) or len(names) != len(options):
                raise Damage(
                    f"{where}: expected a name for each of the {len(options)} options, found "
                    f"{quote(names)}; mend the line, or change data.format.columns.names"
                )
            values = [plain(name) for name in names]
        elif self.answer == "letter":
            values, value = list(string.ascii_uppercase[: len(options)]), value.upper()
        elif self.answer == "text":
            values = [option.strip() for option in options]
        if values.count(value) != 1:
            raise Damage(
                f"{where}: expected one of {join_names(values)} as the answer, found {quote(value)}"
                f"{suggest(value, values)}; mend the line (published test files may have no "
                "answers), or change data.format.answer or first"
            )
        return values.index(value)


def _check_options(options: Any, where: str) -> tuple[str, ...]:
    if not isinstance(options, list) or len(options) < 2:
        number = len(options) if isinstance(options, list) else quote(options)
        raise Damage(
            f"{where}: expected two options or more, found {number}; mend it, or change "
            "data.format.columns"
        )
    return tuple(words(option, where, f"option {place}") for place, option in enumerate(options))
