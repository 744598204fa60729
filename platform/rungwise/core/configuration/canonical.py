"""Plain data as text: canonical JSON, one text for one value, so that fingerprints are of values;
and rows of tables as CSV."""

import csv
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rungwise.core.configuration.config import Config


def canonical_json(value: Any) -> str:
    """Serialise `value` in a unique form: sorted keys, no blanks. Raises TypeError for what is no
    plain JSON data and ValueError for NaN, so that no fingerprint depends on a `repr`."""
    return json.dumps(
        plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def fingerprint(value: Any, length: int = 12) -> str:
    """The first `length` hexadecimal digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()[:length]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested blocks as `{"a.b": leaf}`, as used for MLflow parameters and by `plan`."""
    data = plain(value)
    if isinstance(data, dict) and data:
        flat: dict[str, Any] = {}
        for key, item in data.items():
            flat.update(flatten(item, f"{prefix}.{key}" if prefix else key))
        return flat
    return {prefix: data} if prefix else {}


def plain(value: Any) -> Any:
    """Turn Configs and tuples into dicts and lists. Raises as `canonical_json` does."""
    match value:
        case Config():
            return plain(value.model_dump(mode="json"))
        case None | bool() | str() | int():
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{value} has no exact JSON text")
            return value
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            if bad := [key for key in value if not isinstance(key, str)]:
                raise TypeError(f"keys must be strings, found {bad[0]!r}")
            return {key: plain(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} cannot be written exactly as JSON")


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
