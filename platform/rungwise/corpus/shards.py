"""Write the rows of one shard to its two files: deduplicate, shuffle, split, write, count.

Everything here is a pure function of the rows, whatever their order: a document's shard, its place
in it and its side of the split depend on the digest of its text alone. Equal texts therefore meet
in one shard and land on one side, and adding a source moves no document across the split.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc  # makes most of its functions at run time: no checker knows them
import pyarrow.parquet as pq

from rungwise.core.storage import Folder
from rungwise.corpus.build import sample_of
from rungwise.corpus.document import SCHEMA

SPLITS = ("train", "validation")
_EXAMPLES = 3
_UNREADABLE_SHOWN = 20
# The sort key of documents; the first two decide, unless a source repeats its ids.
_ORDER = ("id", "label", "digest", "paragraph_starts", "spans", "sample")
_FACTS = [*_ORDER, "reason", "unreadable", "copied", "near", "spans_dropped"]
_ROWS_A_GROUP = 512


def shard_of(digest: str, num_shards: int) -> int:
    """The shard of the document with this digest."""
    return int(digest[:16], 16) % num_shards


def is_held_out(digest: str, fraction: float, seed: int) -> bool:
    """Whether the document with this digest goes to validation: for `fraction` of all digests."""
    return int(_keyed(digest, f"split-{seed}")[:16], 16) < fraction * 2**64


def write_shard(
    rows: pa.Table,
    shard: int,
    output: Folder,
    *,
    deduplicate: bool,
    held_out_fraction: float,
    seed: int,
) -> dict[str, Any]:
    """Write the files of one shard, none for a split without documents, and return its report."""
    facts: list[dict[str, Any]] = rows.select(_FACTS).to_pylist()
    near: dict[str, str] = {}
    # A copy has left its sentences with the first of its text that its task has read.
    with_text: dict[str, int] = {}
    for at, fact in enumerate(facts):
        if fact["near"] is not None:
            near[fact["digest"]] = min(fact["near"], near.get(fact["digest"], fact["near"]))
        elif not fact["reason"] and not fact["copied"]:
            with_text[fact["digest"]] = at
    # Of equal texts the smallest id is kept, so sort before looking.
    documents = (at for at, fact in enumerate(facts) if fact["near"] is None)
    by_id = sorted(documents, key=lambda at: [facts[at][name] for name in _ORDER])
    dropped: dict[str, list[int]] = {}
    kept: list[int] = []
    seen: set[str] = set()
    for at in by_id:
        reason, digest = facts[at]["reason"], facts[at]["digest"]
        if not reason and deduplicate and digest in seen:
            reason = "duplicate"
        elif not reason and digest in near:
            reason = "near-duplicate"
        if not facts[at]["reason"]:
            seen.add(digest)
        if reason:
            dropped.setdefault(reason, []).append(at)
        else:
            kept.append(at)
    # By a hash, so that any stretch of a shard is a fair sample of the corpus.
    kept.sort(key=lambda at: _keyed(facts[at]["digest"], f"order-{seed}"))
    held_out = {at for at in kept if is_held_out(facts[at]["digest"], held_out_fraction, seed)}
    files = []
    for split in SPLITS:
        chosen = [at for at in kept if (at in held_out) == (split == "validation")]
        if chosen:
            table = rows.select(SCHEMA.names).take(pa.array(chosen, pa.int64()))
            if any(facts[at]["copied"] for at in chosen):
                texts = [with_text[facts[at]["digest"]] for at in chosen]
                sentences = rows["sentences"].take(pa.array(texts, pa.int64()))
                column = SCHEMA.get_field_index("sentences")
                table = table.set_column(column, SCHEMA.field("sentences"), sentences)
            files.append(_write(table, f"{split}-{shard:05d}.parquet", split, output))

    def example(at: int) -> dict[str, str]:
        if facts[at]["reason"]:
            text = facts[at]["sample"]
        else:
            text = sample_of(rows["sentences"][with_text[facts[at]["digest"]]].as_py())
        return {"id": facts[at]["id"], "text": text}

    unreadable = [json.loads(fact["unreadable"]) for fact in facts if fact["unreadable"]]
    return {
        "files": files,
        "labels": dict(Counter(facts[at]["label"] for at in kept)),
        "dropped": {reason: len(rows) for reason, rows in dropped.items()},
        "dropped_samples": {
            reason: [example(at) for at in rows[:_EXAMPLES]] for reason, rows in dropped.items()
        },
        "unreadable": _first_unreadable(unreadable),
        "unreadable_files": len(unreadable),
        "spans_dropped": sum(facts[at]["spans_dropped"] for at in kept),
        "removed": pc.sum(rows["removed"]).as_py() or 0,  # pyright: ignore[reportAttributeAccessIssue]
        "replaced": pc.sum(rows["replaced"]).as_py() or 0,  # pyright: ignore[reportAttributeAccessIssue]
    }


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the reports of shards: files in order, counts summed, the smallest examples kept."""
    labels: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    samples: dict[str, list[dict[str, str]]] = {}
    for report in reports:
        labels.update(report["labels"])
        dropped.update(report["dropped"])
        for reason, examples in report["dropped_samples"].items():
            several = sorted(
                [*samples.get(reason, []), *examples], key=lambda example: list(example.values())
            )
            samples[reason] = several[:_EXAMPLES]
    files = [file for report in reports for file in report["files"]]
    unreadable = [file for report in reports for file in report["unreadable"]]
    totals = {
        key: sum(report[key] for report in reports)
        for key in ("unreadable_files", "spans_dropped", "removed", "replaced")
    }
    return {
        "files": sorted(files, key=lambda file: file["file"]),
        "labels": labels,
        "dropped": dict(sorted(dropped.items())),
        "dropped_samples": dict(sorted(samples.items())),
        "unreadable": _first_unreadable(unreadable),
        **totals,
    }


def _first_unreadable(files: list[dict[str, str]]) -> list[dict[str, str]]:
    return sorted(files, key=lambda file: (file["file"], file["reason"]))[:_UNREADABLE_SHOWN]


def _write(table: pa.Table, name: str, split: str, output: Folder) -> dict[str, Any]:
    table = table.combine_chunks().cast(SCHEMA)
    with output.staged(name) as path:
        pq.write_table(
            table,
            path,
            compression="zstd",
            row_group_size=_ROWS_A_GROUP,
            use_dictionary=["label"],  # pyright: ignore[reportArgumentType]
        )
    sentences = pc.list_flatten(table["sentences"])  # pyright: ignore[reportAttributeAccessIssue]
    # Clean text has single blanks only, and one more stands between two sentences.
    between = len(sentences) - table.num_rows
    return {
        "file": name,
        "split": split,
        "documents": table.num_rows,
        "sentences": len(sentences),
        "words": pc.sum(pc.count_substring(sentences, " ")).as_py() + len(sentences),  # pyright: ignore[reportAttributeAccessIssue]
        "characters": pc.sum(pc.utf8_length(sentences)).as_py() + between,  # pyright: ignore[reportAttributeAccessIssue]
        "bytes": pc.sum(pc.binary_length(sentences)).as_py() + between,  # pyright: ignore[reportAttributeAccessIssue]
        "spans": len(pc.list_flatten(pc.list_flatten(table["spans"]))) // 2,  # pyright: ignore[reportAttributeAccessIssue]
    }


def _keyed(digest: str, key: str) -> str:
    return hashlib.blake2b(digest.encode(), key=key.encode(), digest_size=16).hexdigest()
