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

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from rungwise.core.errors import DataError
from rungwise.tasks.formats.records import read_cells
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Example, TaskInfo
from rungwise.tasks.kinds.kind import Record

Format = Literal["text", "tsv", "csv", "jsonl"]
SUFFIXES: Mapping[str, Format] = {
    ".txt": "text",
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}


def read_lines(
    lines: Iterable[str], form: Format, info: TaskInfo, source: str
) -> Iterator[Example]:
    """Yield an example per line. An empty line is an example in text files, and else skipped.

    Raises DataError with `source` and the line if a line does not fit.
    """
    match form:
        case "text":
            name = text_column(info)
            for number, line in enumerate(lines, start=1):
                yield parse_example({name: line.rstrip("\r\n")}, info, f"{source}:{number}")
        case "jsonl":
            for number, line in enumerate(lines, start=1):
                where = f"{source}:{number}"
                if not line.strip():
                    continue
                try:
                    values = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise DataError(
                        f"{where}: expected one JSON object a line, found {error}"
                    ) from error
                if not isinstance(values, dict):
                    raise DataError(
                        f"{where}: expected a JSON object, found {type(values).__name__}"
                    )
                yield parse_example(values, info, where)
        case "tsv":
            yield from _table(read_cells(lines, "\t", quoting=False), info, source)
        case "csv":
            yield from _table(read_cells(lines, ",", quoting=True), info, source)


def parse_examples(inputs: Any, info: TaskInfo) -> list[Example]:
    """Return the examples of a call: a text, an object with named values, or a list of these.

    Raises DataError naming `input 1` and so on if one does not fit.
    """
    if isinstance(inputs, str | Mapping):
        inputs = [inputs]
    if not isinstance(inputs, Sequence):
        raise DataError(
            "expected a text, an object with named values, or a list of these, found "
            f"{inputs!r:.80}"
        )
    return [
        parse_example(
            each if isinstance(each, Mapping) else {text_column(info): each},
            info,
            f"input {number}",
        )
        for number, each in enumerate(inputs, start=1)
    ]


def text_column(info: TaskInfo) -> str:
    """Return the column that a line of text fills; DataError if an example has several."""
    kind = task_kind(info)
    if kind.is_one_text:
        return "text"
    raise DataError(
        f"a bare line of text is not enough for this model: it needs {', '.join(kind.columns)}; "
        "give a table with a header, or JSON Lines, with these"
    )


def parse_example(values: Mapping[str, Any], info: TaskInfo, where: str) -> Example:
    """Make an example from named values. Raises DataError with `where` and what is missing."""
    kind = task_kind(info)
    return kind.parse(Record(values, where, kind.columns))


def _table(reader: Any, info: TaskInfo, source: str) -> Iterator[Example]:
    header: list[str] = []
    begins = 1
    try:
        for row in reader:
            where = f"{source}:{reader.line_num}"
            begins = reader.line_num + 1
            if not header:
                header = [name.strip() for name in row]
            elif row and len(row) != len(header):
                raise DataError(
                    f"{where}: expected {len(header)} columns ({', '.join(header)}), found "
                    f"{len(row)}"
                )
            elif row:
                yield parse_example(dict(zip(header, row, strict=True)), info, where)
    except csv.Error as error:
        raise DataError(
            f"{source}:{begins}: the quotes of this row do not match ({error}); mend the row, or "
            "give the data as TSV or JSON Lines"
        ) from None
