"""Measure what `sequence_length` cuts off a split, and read inputs for prediction.

task                       text lines   columns of TSV or CSV, keys of JSON Lines
single texts, generation   the text     text
pairs                      -            text, second
tagging                    words        words (JSON: a list), or text, split at blanks
span                       -            question, context, optionally id
choice                     -            context, question (may be empty), option0, option1, ...
                                        (JSON: options, a list)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from rungwise.core.errors import DataError
from rungwise.tasks.formats.base import Damage, missing_column, number_rows, parse_json, read_cells
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Example, TaskInfo
from rungwise.tasks.kinds.items import Item
from rungwise.tasks.kinds.kind import Record

NOTED = 0.05  # cuts in more than this share of the examples are reported


def measure_cut(examples: Sequence[Any], items: Sequence[Item]) -> float:
    """Return the share of the examples of which `items` lost something."""
    return len({item.example for item in items if item.cut}) / len(examples)


def note(sequence_length: int, shares: Mapping[str, float]) -> str | None:
    """Describe what is cut of the examples of each split; None if that is little."""
    much = [f"{n:.1%} of the {split} examples" for split, n in shares.items() if n > NOTED]
    if not much:
        return None
    key = f"finetune.sequence_length {sequence_length}"
    return f"{key} cuts {', '.join(much)}; a longer one cuts fewer"


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
    Raises DataError with `source` and the line if a line does not fit."""
    match form:
        case "text":
            name = text_column(info)
            for number, line in enumerate(lines, start=1):
                yield parse_example({name: line.rstrip("\r\n")}, info, f"{source}:{number}")
        case "jsonl":
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    problem = "expected one JSON object a line, found no JSON"
                    values = parse_json(line.rstrip(), source, number, problem, "mend the line")
                    where = f"{source}:{number}"
                    if not isinstance(values, dict):
                        raise Damage.explain(where, "a JSON object", type(values).__name__)
                    yield parse_example(values, info, where)
        case "tsv":
            yield from _table(read_cells(lines, "\t", quoting=False), info, source)
        case "csv":
            yield from _table(read_cells(lines, ",", quoting=True), info, source)


def parse_examples(inputs: Any, info: TaskInfo) -> list[Example]:
    """Return the examples of a call: a text, an object with named values, or a list of these.
    Raises DataError naming `input 1` and so on if one does not fit."""
    if isinstance(inputs, str | Mapping):
        inputs = [inputs]
    if not isinstance(inputs, Sequence):
        raise DataError(f"expected a text, an object, or a list of these, found {inputs!r:.80}")
    records = (each if isinstance(each, Mapping) else {text_column(info): each} for each in inputs)
    return [parse_example(each, info, f"input {n}") for n, each in enumerate(records, start=1)]


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
    rows = number_rows(reader, source, "give the data as TSV or JSON Lines")
    header = [name.strip() for name in next(rows, (0, []))[1]]
    if twice := [name for name in task_kind(info).columns if header.count(name) > 1]:
        times = header.count(twice[0])
        raise missing_column(twice[0], header, f"{source}:1", "the header", times)
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(
                f"{source}:{line}: expected {len(header)} columns ({', '.join(header)}), found "
                f"{len(row)}"
            )
        yield parse_example(dict(zip(header, row, strict=True)), info, f"{source}:{line}")
