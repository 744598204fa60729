"""Guess format blocks for Parquet, with the names of classes that data sets store beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.tasks.formats.guess_fields import ROWS
from rungwise.tasks.formats.guess_json import guess_records

MAGIC = b"PAR1"


def guess_parquet(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield format blocks that may read the file, likeliest first; none if it is damaged."""
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as table:
            batch = next(table.iter_batches(batch_size=ROWS), None)
            names = _class_names(table.schema_arrow.metadata or {})
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError):
        return
    for form in guess_records(batch.to_pylist() if batch else [], {"layout": "parquet"}):
        columns = form.get("columns", {})
        target = next((columns[key] for key in ("label", "labels", "tags") if key in columns), "")
        known = names.get(target) if isinstance(target, str) else None
        yield form | ({"labels": dict(enumerate(known))} if known else {})


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """The names of the classes by column, as Hugging Face's datasets keep them."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    named = {}
    for column, feature in features.items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("names"), list):
            named[column] = inner["names"]
    return named
