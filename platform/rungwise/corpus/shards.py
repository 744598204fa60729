"""From the rows of one shard to its two files: deduplicate, mix, split, write, count.

Everything here is a pure function of the rows, whatever their order: a document's shard, its place
in it and its side of the split come from the digest of its text alone. Equal texts therefore meet
in one shard and land on one side, and adding a source moves no document across the split.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc  # makes most of its functions at run time: no checker knows them
import pyarrow.parquet as pq

from rungwise.corpus.document import SCHEMA
from rungwise.storage import Folder

SPLITS = ("train", "validation")
_EXAMPLES = 3
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
    """Write the files of one shard, a split without documents has none; return what to report."""
    facts = rows.select(["id", "label", "digest", "reason"]).to_pylist()
    # Of equal texts the smallest id is kept, so sort before looking.
    by_id = sorted(range(len(facts)), key=lambda at: (facts[at]["id"], facts[at]["label"]))
    dropped: dict[str, list[str]] = {}
    kept: list[int] = []
    seen: set[str] = set()
    for at in by_id:
        reason, digest = facts[at]["reason"], facts[at]["digest"]
        if not reason and deduplicate and digest in seen:
            reason = "duplicate"
        if reason:
            dropped.setdefault(reason, []).append(facts[at]["id"])
        else:
            seen.add(digest)
            kept.append(at)
    # By a hash, so that any stretch of a shard is a fair sample of the corpus.
    kept.sort(key=lambda at: _keyed(facts[at]["digest"], f"order-{seed}"))
    held_out = {at for at in kept if is_held_out(facts[at]["digest"], held_out_fraction, seed)}
    files = []
    for split in SPLITS:
        chosen = [at for at in kept if (at in held_out) == (split == "validation")]
        if chosen:
            table = rows.select(SCHEMA.names).take(pa.array(chosen, pa.int64()))
            files.append(_write(table, f"{split}-{shard:05d}.parquet", split, output))
    return {
        "files": files,
        "labels": dict(Counter(facts[at]["label"] for at in kept)),
        "dropped": {reason: len(ids) for reason, ids in dropped.items()},
        "dropped_examples": {reason: ids[:_EXAMPLES] for reason, ids in dropped.items()},
        "removed": pc.sum(rows["removed"]).as_py() or 0,  # pyright: ignore[reportAttributeAccessIssue]
        "replaced": pc.sum(rows["replaced"]).as_py() or 0,  # pyright: ignore[reportAttributeAccessIssue]
    }


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """What the shards report, together: files in order, counts summed, the smallest examples."""
    labels: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    for report in reports:
        labels.update(report["labels"])
        dropped.update(report["dropped"])
        for reason, ids in report["dropped_examples"].items():
            examples[reason] = sorted([*examples.get(reason, []), *ids])[:_EXAMPLES]
    files = [file for report in reports for file in report["files"]]
    return {
        "files": sorted(files, key=lambda file: file["file"]),
        "labels": labels,
        "dropped": dict(sorted(dropped.items())),
        "dropped_examples": dict(sorted(examples.items())),
        "removed": sum(report["removed"] for report in reports),
        "replaced": sum(report["replaced"] for report in reports),
    }


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
    }


def _keyed(digest: str, key: str) -> str:
    return hashlib.blake2b(digest.encode(), key=key.encode(), digest_size=16).hexdigest()
