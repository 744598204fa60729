"""Write rows as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any


def csv_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A CSV file with the union of all keys as columns, in order of first appearance."""
    text = io.StringIO(newline="")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if columns:
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue().encode("utf-8")
