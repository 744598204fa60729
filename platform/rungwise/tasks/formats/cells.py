"""Read the rows of CSV and TSV, however long their cells are."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _csv import Reader

# The csv module's default limit is 131,072 characters; reading passages are longer.
_LONGEST_CELL = 1 << 30


def rows_of(lines: Iterable[str], delimiter: str, *, quoting: bool) -> Reader:
    """Return a csv.reader. With `quoting` a cell may be in double quotes, with quotes inside it
    doubled; else a quote is an ordinary character. Raises csv.Error if quotes do not match."""
    csv.field_size_limit(_LONGEST_CELL)  # of the process: another library may have set it
    how = csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=delimiter, quoting=how, strict=True)
