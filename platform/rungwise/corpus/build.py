"""Turn raw documents into table rows: clean, segment, measure, and decide which to drop.

A dropped document is a row too, without sentences and with a `reason`, so that counts are merged
across the cluster the way documents are. So is an error that the user can fix: Ray Data would print
a page for it and add its own words to the message.

A text that a task has seen before travels without its sentences, so that a thousand copies do not
fill the memory of the task where they meet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.corpus import signatures
from rungwise.corpus.clean import clean
from rungwise.corpus.document import SCHEMA, RawDocument, digest_of
from rungwise.corpus.quality import QualityConfig, fault
from rungwise.corpus.segment import segment
from rungwise.corpus.signatures import NearDuplicateConfig
from rungwise.corpus.spans import located

ROW_SCHEMA = pa.schema(
    [
        *SCHEMA,
        ("bytes", pa.int64()),  # of text, sentences joined by one blank
        ("reason", pa.string()),  # why it is dropped; empty for a document
        ("sample", pa.string()),  # the start of the text of what is dropped
        ("unreadable", pa.string()),  # what is wrong with a file; see RawDocument
        ("copied", pa.bool_()),  # the sentences are left out: a row with this digest has them
        ("spans_dropped", pa.int64()),
        ("removed", pa.int64()),  # unreadable characters taken out
        ("replaced", pa.int64()),  # replacement characters in the text
        ("bands", pa.binary()),  # keys, little-endian uint64; null without near_duplicates
        ("signature", pa.binary()),  # compact
        ("near", pa.string()),  # not a document but a mark: this digest resembles that one
        ("error", pa.string()),  # what stopped the reader, in the one row of such a table
    ]
)
SAMPLE_CHARACTERS = 80
_TABLE_BYTES = 8 << 20


def tables(
    documents: Iterable[RawDocument],
    minimum_characters: int,
    *,
    deduplicate: bool = True,
    quality: QualityConfig | None = None,
    near_duplicates: NearDuplicateConfig | None = None,
) -> Iterator[pa.Table]:
    """One row for each document, in order, in tables of a few megabytes; at least one table."""
    rows: list[dict[str, Any]] = []
    held_bytes = 0
    seen: set[str] = set()
    for document in documents:
        row = _row(document, minimum_characters, quality)
        held_bytes += 200
        if not row["reason"] and row["digest"] in seen:
            row |= {"sentences": [], "copied": True}
        else:
            held_bytes += row["bytes"]
        if deduplicate and not row["reason"]:
            seen.add(row["digest"])
        rows.append(row)
        if held_bytes >= _TABLE_BYTES:
            yield _table(rows, near_duplicates)
            rows, held_bytes = [], 0
    yield _table(rows, near_duplicates)


def mark_table(marks: dict[str, str]) -> pa.Table:
    """Rows that mark digests as near-duplicates of others; see near_duplicates.py."""
    rows = [{"id": "", "digest": digest, "near": marks[digest]} for digest in sorted(marks)]
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


def failure(error: UserError) -> pa.Table:
    """A table of one row that holds the error which stopped the reader; see `raise_failure`."""
    return pa.Table.from_pylist([{"error": failure_text(error)}], schema=ROW_SCHEMA)


def failure_text(error: UserError) -> str:
    """Serialise `error` as text that can pass between processes; see `raise_failure`."""
    return json.dumps([type(error).__name__, str(error)])


def raise_failure(text: str) -> NoReturn:
    """Raise again the error that `failure_text` wrote."""
    name, message = json.loads(text)
    raise {"ConfigError": ConfigError, "DataError": DataError}.get(name, UserError)(message)


def _table(rows: list[dict[str, Any]], near_duplicates: NearDuplicateConfig | None) -> pa.Table:
    if near_duplicates is not None:
        signed = [row for row in rows if row["sentences"]]
        texts = ["\n".join(row["sentences"]) for row in signed]
        full = signatures.signatures(texts, near_duplicates)
        keys = signatures.band_keys(full, signatures.banding(near_duplicates)).astype("<u8")
        for row, band_keys, compact in zip(signed, keys, signatures.compact(full), strict=True):
            row |= {"bands": band_keys.tobytes(), "signature": compact.tobytes()}
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


def _row(
    document: RawDocument, minimum_characters: int, quality: QualityConfig | None
) -> dict[str, Any]:
    sentences: list[str] = []
    starts: list[int] = []
    removed = replaced = 0
    for paragraph in document.paragraphs:
        cleaned = clean(paragraph)
        removed += cleaned.removed
        replaced += cleaned.replaced
        if document.segmented:
            lines = [line for line in cleaned.text.split("\n") if line]
        else:
            lines = segment(cleaned.text)
        if lines:
            starts.append(len(sentences))
            sentences.extend(lines)
    characters = sum(map(len, sentences)) + max(0, len(sentences) - 1)
    reason = document.reason
    if not sentences:
        reason = reason or "no text"
    elif characters < minimum_characters:
        reason = "too short"
    elif quality is not None:
        reason = fault(sentences, quality)
    row: dict[str, Any] = {
        "id": clean(document.id).text,
        "label": clean(document.label).text,
        "reason": reason,
        "sample": sample_of(sentences) if reason else "",
        "unreadable": json.dumps({"file": document.damage.file, "reason": document.damage.detail})
        if document.damage
        else "",
        "copied": False,
        "removed": removed,
        "replaced": replaced,
    }
    if reason:
        # The digest only has to spread the dropped over the shards.
        digest = hashlib.blake2b(document.id.encode("utf-8", "replace"), digest_size=16).hexdigest()
        nothing = {"sentences": [], "paragraph_starts": [], "spans": [], "spans_dropped": 0}
        return row | nothing | {"digest": digest, "bytes": 0}
    spans = located(document.text, document.spans, sentences)
    return row | {
        "digest": digest_of(sentences),
        "sentences": sentences,
        "paragraph_starts": starts,
        "spans": spans.spans,
        "spans_dropped": spans.dropped,
        "bytes": sum(len(line.encode("utf-8")) for line in sentences) + len(sentences) - 1,
    }


def sample_of(sentences: Sequence[str]) -> str:
    """The start of a text, to show people what was dropped."""
    start = ""
    for sentence in sentences:
        start = f"{start} {sentence[:SAMPLE_CHARACTERS]}".lstrip()
        if len(start) >= SAMPLE_CHARACTERS:
            break
    return start[:SAMPLE_CHARACTERS]
