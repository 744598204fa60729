"""Look at a table of labelled texts: which column is the text, which the label.

A guess, made to write a recipe that a person reads before it is run (commands/init.py).
"""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from rungwise.core.errors import DataError
from rungwise.core.storage import find_files
from rungwise.tasks.formats.rows import delimited

_SUFFIXES = {".csv": ",", ".tsv": "\t"}
_MOST_LABELS = 50
_ROWS_A_LABEL = 5  # fewer, and it is an id or a text


class LabelledTable(NamedTuple):
    """A table for classification; `data` are the keys of the task in a recipe."""

    rows: int
    labels: dict[str, int]
    data: dict[str, Any]


def is_table(path: str) -> bool:
    """Whether the name is that of a CSV or TSV file."""
    return bool(_SUFFIXES.keys() & set(PurePosixPath(path).suffixes))


def look(path: str) -> LabelledTable:
    """Take the column with the longest cells for the text, that with the fewest values for labels.

    Raises DataError where no file is there or no column looks like labels.
    """
    if not is_table(path):
        raise DataError(f"{path}: expected labelled texts in a .csv or .tsv file with a header")
    delimiter = next(d for s, d in _SUFFIXES.items() if s in PurePosixPath(path).suffixes)
    quoting = delimiter == ","
    rows = (
        cells for _, cells in delimited(find_files(path)[0], "utf-8", delimiter, quoting=quoting)
    )
    header = next(rows, [])
    columns = list(zip(*(cells for cells in rows if len(cells) == len(header)), strict=True))
    count = len(columns[0]) if columns else 0
    text = max(range(len(columns)), key=lambda i: statistics.mean(map(len, columns[i])), default=0)
    different = {i: len(set(cells)) for i, cells in enumerate(columns) if i != text}
    fit = [
        i for i, found in different.items() if 1 < found <= min(_MOST_LABELS, count / _ROWS_A_LABEL)
    ]
    if not fit:
        found = ", ".join(f"{header[i]} has {number}" for i, number in different.items())
        raise DataError(
            f"{path}: expected a column of 2 to {_MOST_LABELS} labels, each in {_ROWS_A_LABEL} of "
            f"{count} rows, beside one of text; found {found or 'no second column'}"
        )
    label = min(fit, key=lambda i: different[i])
    shape: dict[str, Any] = {
        "kind": "table",
        "columns": {"text": header[text], "label": header[label]},
    }
    if quoting:
        shape |= {"delimiter": ",", "quoting": "true"}
    data = {"kind": "files", "train": path, "validation_fraction": 0.1, "test_fraction": 0.2}
    return LabelledTable(count, dict(Counter(columns[label])), data | {"format": shape})
