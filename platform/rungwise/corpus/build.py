"""From a draft to a row: clean, segment, measure, and say why a document is dropped.

A dropped document is a row too, without sentences and with a `reason`, so that the counts of a
cluster come together the way its documents do. So is an error that the user can mend: Ray Data
would print a page for it and put its own words behind the message.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import pyarrow as pa

from rungwise.corpus.clean import clean
from rungwise.corpus.document import SCHEMA, Draft, digest_of
from rungwise.corpus.segment import segment
from rungwise.errors import ConfigError, DataError, UserError

ROW_SCHEMA = pa.schema(
    [
        *SCHEMA,
        ("bytes", pa.int64()),  # of text, sentences joined by one blank
        ("reason", pa.string()),  # why it is dropped; empty for a document
        ("removed", pa.int64()),  # unreadable characters taken out
        ("replaced", pa.int64()),  # replacement characters in the text
        ("error", pa.string()),  # what stopped the reader, in the one row of such a table
    ]
)
_TABLE_BYTES = 8 << 20


def tables(drafts: Iterable[Draft], minimum_characters: int) -> Iterator[pa.Table]:
    """One row for each draft, in order, in tables of a few megabytes; at least one table."""
    rows: list[dict[str, Any]] = []
    held_bytes = 0
    for draft in drafts:
        row = _row(draft, minimum_characters)
        rows.append(row)
        held_bytes += row["bytes"] + 200
        if held_bytes >= _TABLE_BYTES:
            yield pa.Table.from_pylist(rows, schema=ROW_SCHEMA)
            rows, held_bytes = [], 0
    yield pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


def failure(error: UserError) -> pa.Table:
    """A table that says only that reading stopped, and why; see `raise_failure`."""
    return pa.Table.from_pylist([{"error": failure_text(error)}], schema=ROW_SCHEMA)


def failure_text(error: UserError) -> str:
    """`error` as text that passes between processes; see `raise_failure`."""
    return json.dumps([type(error).__name__, str(error)])


def raise_failure(text: str) -> NoReturn:
    """Raise again the error that `failure_text` wrote."""
    name, message = json.loads(text)
    raise {"ConfigError": ConfigError, "DataError": DataError}.get(name, UserError)(message)


def _row(draft: Draft, minimum_characters: int) -> dict[str, Any]:
    sentences: list[str] = []
    starts: list[int] = []
    removed = replaced = 0
    for paragraph in draft.paragraphs:
        cleaned = clean(paragraph)
        removed += cleaned.removed
        replaced += cleaned.replaced
        if draft.segmented:
            found = [line for line in cleaned.text.split("\n") if line]
        else:
            found = segment(cleaned.text)
        if found:
            starts.append(len(sentences))
            sentences.extend(found)
    characters = sum(map(len, sentences)) + max(0, len(sentences) - 1)
    reason = draft.reason
    if not sentences:
        reason = reason or "no text"
    elif characters < minimum_characters:
        reason = "too short"
    if reason:
        # The digest only has to spread the dropped over the shards.
        digest = hashlib.blake2b(draft.id.encode("utf-8", "replace"), digest_size=16).hexdigest()
        sentences, starts, size_bytes = [], [], 0
    else:
        digest = digest_of(sentences)
        size_bytes = sum(len(line.encode("utf-8")) for line in sentences) + len(sentences) - 1
    return {
        "id": clean(draft.id).text,
        "label": clean(draft.label).text,
        "digest": digest,
        "sentences": sentences,
        "paragraph_starts": starts,
        "bytes": size_bytes,
        "reason": reason,
        "removed": removed,
        "replaced": replaced,
    }
