"""Read inputs for prediction: lines of text, tables or JSON Lines, as examples without a target.

    task                       text lines   columns of TSV or CSV, keys of JSON Lines
    single texts, generation   the text     text
    pairs                      -            text, second
    tagging                    words        words (JSON: a list), or text, split at blanks
    span                       -            question, context, optionally id
    choice                     -            context, question (may be empty), option0, option1, ...
                                            (JSON: options, a list)

Lines are read one by one, so that an endless stream is answered as it arrives.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from rungwise.core.errors import DataError
from rungwise.tasks.formats.cells import rows_of
from rungwise.tasks.kinds.examples import (
    OF_TEXT,
    ChoiceExample,
    Example,
    Question,
    Tagged,
    TaskInfo,
    Text,
)

Format = Literal["text", "tsv", "csv", "jsonl"]
SUFFIXES: Mapping[str, Format] = {
    ".txt": "text",
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_OPTION = "option"
_NUMBERED = re.compile(f"{_OPTION}[0-9]+")


def read_lines(
    lines: Iterable[str], form: Format, info: TaskInfo, source: str
) -> Iterator[Example]:
    """Yield an example per line. An empty line is an example in text files, and else skipped.

    Raises DataError with `source` and the line if a line does not fit.
    """
    lines = _decoded(lines, source)
    match form:
        case "text":
            name = text_column(info)
            for number, line in enumerate(lines, start=1):
                yield example_of({name: line.rstrip("\r\n")}, info, f"{source}:{number}")
        case "jsonl":
            for number, line in enumerate(lines, start=1):
                where = f"{source}:{number}"
                if line.strip():
                    yield example_of(_object(line, where), info, where)
        case "tsv":
            yield from _table(rows_of(lines, "\t", quoting=False), info, source)
        case "csv":
            yield from _table(rows_of(lines, ",", quoting=True), info, source)


def examples_in(given: Any, info: TaskInfo) -> list[Example]:
    """Return the examples of a call: a text, an object with named values, or a list of these.

    Raises DataError naming `input 1` and so on if one does not fit.
    """
    if isinstance(given, str | Mapping):
        given = [given]
    if not isinstance(given, Sequence):
        raise DataError(
            "expected a text, an object with named values, or a list of these, found "
            f"{type(given).__name__}"
        )
    return [
        example_of(
            each if isinstance(each, Mapping) else {text_column(info): each},
            info,
            f"input {number}",
        )
        for number, each in enumerate(given, start=1)
    ]


def text_column(info: TaskInfo) -> str:
    """Return the column that a line of text fills; DataError if an example has several."""
    if is_one_text(info):
        return "text"
    raise DataError(
        f"a bare line of text is not enough for this model: it needs {', '.join(columns(info))}; "
        "give a table with a header, or JSON Lines, with these"
    )


def is_one_text(info: TaskInfo) -> bool:
    """Whether a bare text is an example."""
    return info.kind in ("tagging", "generation") or (info.kind in OF_TEXT and not info.pair)


def columns(info: TaskInfo) -> tuple[str, ...]:
    """Return the columns that an example must have."""
    match info.kind:
        case "classification" | "multilabel" | "regression" | "generation":
            return ("text", "second") if info.pair else ("text",)
        case "tagging":
            return ("words",)
        case "span":
            return ("question", "context")
        case "choice":
            return ("context", "options")


def example_of(record: Mapping[str, Any], info: TaskInfo, where: str) -> Example:
    """Make an example from named values. Raises DataError with `where` and what is missing."""

    def get(name: str) -> str:
        value = record.get(name)
        if not isinstance(value, str):
            found = f"{value!r:.80} and not a text" if _given(value) else "missing"
            raise DataError(
                f"{where}: {name} is {found}; this model needs {', '.join(columns(info))}, "
                f"found {', '.join(map(str, record)) or 'nothing'}"
            )
        return _whole(value, name, where)

    match info.kind:
        case "classification" | "multilabel" | "regression" | "generation":
            return Text(where, get("text"), get("second") if info.pair else None)
        case "tagging":
            given = record.get("words")
            if not isinstance(given, list | tuple):
                given = get("words" if "words" in record else "text").split()
            return Tagged(where, _texts(given, "words", where))
        case "span":
            return Question(where, str(record.get("id") or where), get("question"), get("context"))
        case "choice":
            question = get("question") or None if _given(record.get("question")) else None
            return ChoiceExample(where, get("context"), question, _options(record, where))


def _options(record: Mapping[str, Any], where: str) -> tuple[str, ...]:
    given = record.get("options")
    if given is None:
        numbered = {name: record[name] for name in record if _NUMBERED.fullmatch(str(name))}
        there = {name for name, value in numbered.items() if _given(value)}
        names = [f"{_OPTION}{number}" for number in range(len(there))]
        if lacking := [name for name in names if name not in there]:
            raise DataError(
                f"{where}: {lacking[0]} is missing, but there is {max(there - {*names})}"
            )
        given = [numbered[name] for name in names]
    if not isinstance(given, list | tuple) or len(given) < 2:
        raise DataError(
            f"{where}: expected options, a list of 2 or more, or {_OPTION}0, {_OPTION}1 and so on, "
            f"found {', '.join(str(key) for key in record)}"
        )
    return _texts(given, "options", where)


def _given(value: Any) -> bool:
    """Whether a cell has a value; an empty one has "" in a file and NaN in a data frame."""
    return value is not None and value == value and value != ""


def _texts(values: Iterable[Any], name: str, where: str) -> tuple[str, ...]:
    texts = tuple(values)
    if odd := [each for each in texts if not isinstance(each, str)]:
        raise DataError(f"{where}: {name} must be texts, found {odd[0]!r}")
    return tuple(_whole(each, name, where) for each in texts)


def _whole(text: str, name: str, where: str) -> str:
    """`text`, which tokenizers take only if UTF-8 can hold it; JSON can hold more."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{where}: {name} holds half of a character (a lone surrogate): {text!a:.80}"
        ) from None
    return text


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: expected one JSON object a line, found {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(record).__name__}")
    return record


def _decoded(lines: Iterable[str], source: str) -> Iterator[str]:
    """Yield the lines of a stream without a byte order mark."""
    try:
        for number, line in enumerate(lines):
            yield line if number else line.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{source}: expected {error.encoding.upper()}, found the byte "
            f"0x{error.object[error.start]:02x}; convert it to UTF-8"
        ) from None


def _table(reader: Any, info: TaskInfo, source: str) -> Iterator[Example]:
    header: list[str] | None = None
    for row in _rows(reader, source):
        where = f"{source}:{reader.line_num}"
        if header is None:
            header = [name.strip() for name in row]
            continue
        if not row:
            continue
        if len(row) != len(header):
            raise DataError(
                f"{where}: expected {len(header)} columns ({', '.join(header)}), found {len(row)}"
            )
        yield example_of(dict(zip(header, row, strict=True)), info, where)


def _rows(reader: Any, source: str) -> Iterator[list[str]]:
    begins = 1
    try:
        for row in reader:
            yield row
            begins = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{source}:{begins}: the quotes of this row do not match ({error}); mend the row, or "
            "give the data as TSV or JSON Lines"
        ) from None
