"""Multiple choice: tables with options in columns, in a list or in rows; and DREAM.

DREAM (Sun et al. 2019, arXiv:1902.00164) asks questions about dialogues;
C3 (Sun et al. 2020, arXiv:1904.09679) has the same layout.
"""

import itertools
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import Damage, FormatConfig, join_names, quote, suggest, words
from rungwise.tasks.formats.records import Column, RecordsFormat, TextColumn, plain, read_json
from rungwise.tasks.kinds.examples import ChoiceExample


class ChoiceColumns(Config):
    """The columns of a multiple-choice table, named as in a table. Set `options` or `option`."""

    context: TextColumn | None = None  # text that comes first; set this, `question` or both
    question: TextColumn | None = None  # the question about it
    options: TextColumn | None = None  # a column per option, or one column with a JSON list
    names: Column | None = None  # names of the options, a JSON list, if `answer` is one of them
    begins: Column | None = None  # text that begins every option, as in SWAG
    option: TextColumn | None = None  # with an option per row: the option
    # with an option per row: a value shared by the consecutive rows of an example
    group: Column | None = None
    answer: Column  # the right answer

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.context is None and self.question is None:
            raise ValueError("expected context or question, found neither")
        if (self.options is None) == (self.option is None):
            raise ValueError("expected options (in columns, or a list) or option (in rows)")
        if (self.option is None) != (self.group is None):
            raise ValueError("option and group are for options in rows, and go together")
        return self


class ChoiceFormat(RecordsFormat):
    """Multiple choice, with an example per row or object, or an option per row."""

    fixed_kind = "choice"

    kind: Literal["choice"] = "choice"
    columns: ChoiceColumns
    # what `columns.answer` holds: the option's number, its letter, either (numbers from 1: ARC)
    # or its text
    answer: Literal["index", "letter", "letter_or_number", "text"] = "index"
    # empty options at the end are none, so that questions have different numbers of options
    fewer_options: bool = False
    first: int = Field(default=0, ge=0, le=1)  # number of the first option
    # with an option per row: values of `columns.answer` that mark the right one
    right: tuple[str, ...] = ("1", "true")

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[ChoiceExample]:
        if self.columns.option is None:
            for line, row in self.records(file, split, counts):
                with self.skip_damage(counts, row):
                    where = f"{file.uri}:{line}"
                    options = _options(self._filled(row["columns.options"]), where)
                    target = self._target(row, options, where)
                    yield self._example(file, line, row, options, target)
            return
        # With each row, how many were dropped before it. A dropped row has no group: it may be an
        # option of the example before it or after it, so both are dropped.
        dropped: Counter[str] = Counter()
        records = [
            (*record, self.count_damaged(dropped)) for record in self.records(file, split, dropped)
        ]
        counts.update(dropped)
        before, groups = 0, itertools.groupby(records, lambda r: r[1]["columns.group"])
        several = [list(rows) for _, rows in groups]
        for number, rows in enumerate(several, start=1):
            then = several[number][0][2] if number < len(several) else self.count_damaged(dropped)
            whole, before = before == then, rows[-1][2]
            line, first, _ = rows[0]
            with self.skip_damage(counts, [row for _, row, _ in rows]):
                if not whole:
                    raise Damage(f"{file.uri}:{line}: a row was dropped", "a_row_that_was_dropped")
                options = _options(
                    [row["columns.option"] for _, row, _ in rows], f"{file.uri}:{line}"
                )
                marks = [plain(row["columns.answer"]) in self.right for _, row, _ in rows]
                if sum(marks) != 1:
                    raise Damage(
                        f"{file.uri}:{line}: expected one right option in the {len(marks)} rows "
                        f"from here on, found {sum(marks)}; mend them, change data.format.right, "
                        "or leave such examples out with data.format.on_error: drop",
                        "several_or_no_right_options",
                    )
                yield self._example(file, line, first, options, marks.index(True))

    def _filled(self, options: Any) -> Any:
        if not self.fewer_options or not isinstance(options, list):
            return options
        ends = [n for n, option in enumerate(options, 1) if str(option or "").strip()]
        return options[: max(ends, default=0)]

    def _example(
        self, file: SourceFile, line: str, row: dict[str, Any], options: Sequence[str], target: int
    ) -> ChoiceExample:
        where = f"{file.uri}:{line}"
        texts = [
            words(row[key], where, f"the {key.partition('.')[2]}")
            for key in ("columns.context", "columns.question")
            if key in row
        ]
        begins = str(row.get("columns.begins") or "").strip()
        return ChoiceExample(
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
        elif self.answer == "letter_or_number" and value.isdecimal():
            values = [str(place) for place in range(1, len(options) + 1)]
        elif self.answer.startswith("letter"):
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


class DreamFormat(FormatConfig):
    """DREAM, in JSON: a list of [turns of the dialogue, [{question, choice, answer}], id]."""

    fixed_kind = "choice"

    kind: Literal["dream"] = "dream"

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[ChoiceExample]:
        data = read_json(file, self.encoding)
        if not isinstance(data, list):
            raise _not_dream(file.uri, data)
        for number, dialogue in enumerate(data):
            with self.skip_damage(counts, dialogue):
                match dialogue:
                    case [[*turns], [*questions], str(id_)] if turns and questions:
                        pass
                    case _:
                        raise _not_dream(f"{file.uri}, item {number}", dialogue)
                context = "\n".join(words(turn, f"{file.uri}, {id_}", "a turn") for turn in turns)
                for place, question in enumerate(questions):
                    with self.skip_damage(counts, question):
                        where = f"{file.uri}, {id_}, question {place}"
                        match question:
                            case {"question": str(text), "choice": [*choice], "answer": answer}:
                                pass
                            case _:
                                raise _not_dream(where, question)
                        options = _options(choice, where)
                        if answer not in options:
                            raise Damage(
                                f"{where}: expected the answer among the options "
                                f"{join_names(options)}, found {quote(answer)}"
                                f"{suggest(str(answer), options)}; mend the question",
                                "their_answer",
                            )
                        yield ChoiceExample(
                            f"{file.name}:{id_}:{place}",
                            context,
                            words(text, where, "the question"),
                            options,
                            options.index(answer),
                        )


def _options(options: Any, where: str) -> tuple[str, ...]:
    if not isinstance(options, list) or len(options) < 2:
        number = len(options) if isinstance(options, list) else quote(options)
        raise Damage(
            f"{where}: expected two options or more, found {number}; mend it, or change "
            "data.format.columns",
            "their_options",
        )
    return tuple(words(option, where, f"option {place}") for place, option in enumerate(options))


def _not_dream(where: str, value: Any) -> Damage:
    return Damage(
        f"{where}: expected [turns, [{{question, choice, answer}}], id] as in DREAM, found "
        f"{quote(value)}; mend the file, or change data.format.kind",
        "another_layout",
    )
