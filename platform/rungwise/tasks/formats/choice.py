"""Multiple choice: tables with an example per row or object, options in columns or in a list."""

import string
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import Damage, join_names, quote, suggest, words
from rungwise.tasks.formats.records import Column, RecordsFormat, TextColumn, plain
from rungwise.tasks.kinds.examples import ChoiceExample


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
                    f"{quote(names)}; mend the line, or change data.format.columns.names",
                    "their_names_of_options",
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
                "answers), or change data.format.answer or first",
                "their_answer",
            )
        return values.index(value)


def _check_options(options: Any, where: str) -> tuple[str, ...]:
    if not isinstance(options, list) or len(options) < 2:
        number = len(options) if isinstance(options, list) else quote(options)
        raise Damage(
            f"{where}: expected two options or more, found {number}; mend it, or change "
            "data.format.columns",
            "their_options",
        )
    return tuple(words(option, where, f"option {place}") for place, option in enumerate(options))
