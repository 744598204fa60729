"""Numbers and lists of things in messages, and rows of tables as CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def format_count(number: int, noun: str) -> str:
    """Format `1 layer`, `2,000 layers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def list_first(names: Iterable[str], most: int, separator: str = ", ") -> str:
    """Format `a, b and 3 more`, with at most so many names."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


_OPENS_FORMULA = ("=", "+", "-", "@", "\t", "\n")


def csv_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A CSV file with the union of all keys as columns, in order of first appearance."""
    text = io.StringIO(newline="")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if columns:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(_as_text, columns))
        writer.writerows([_as_text(row.get(column, "")) for column in columns] for row in rows)
    return text.getvalue().encode("utf-8")


def _as_text(value: Any) -> Any:
    """The value, a string with an apostrophe where a spreadsheet would run it as a formula."""
    if not isinstance(value, str):
        return value
    value = value.replace("\r", " ")  # which the writer leaves without quotes, and ends a row
    return f"'{value}" if value.startswith(_OPENS_FORMULA) else value
