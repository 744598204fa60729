"""Write the documents of one range to its files: leave out lost ones, split, count.

Documents keep their order. The files of a split are `{split}-{range}.parquet`, or several ending in
`-{part}` if the range holds more text than a shard may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time
import pyarrow.parquet as pq

from rungwise.core.storage.folder import Folder, file_digest
from rungwise.corpus.building.range_builder import SAMPLES, cut_entry, sample_text
from rungwise.corpus.deduplication.documents import REASONS
from rungwise.corpus.deduplication.paragraphs import remove_paragraphs
from rungwise.corpus.document import SCHEMA

SPLITS = ("train", "validation")
REPEATED = "duplicate paragraphs"
_ROWS_A_GROUP = 4096
_LABELS_OF_A_RANGE = 100


def write_range(
    tables: Iterable[pa.Table],
    lost: np.ndarray,
    repeated: np.ndarray,
    *,
    number: int,
    source: str,
    last_held_out: int,
    minimum_characters: int,
    shard_megabytes: float,
    output: Folder,
) -> dict[str, Any]:
    """Write the files of range `number`, none for a split without documents; return its report.

    `tables` come from `RangeBuilder`; `lost`, (N, 2), holds row and index of the reason,
    `repeated`, (N, 2), row and paragraph, both sorted.
    """
    limit_bytes = int(shard_megabytes * 1e6)
    writers = [_Writer(split, number, limit_bytes, output) for split in SPLITS]
    labels: Counter[str] = Counter()
    samples: dict[str, list[dict[str, str]]] = {}
    dropped: Counter[str] = Counter()
    spans_dropped = begin = characters_cut = 0
    for whole in tables:
        here = _within(lost, begin, whole.num_rows)
        cut = _within(repeated, begin, whole.num_rows)
        table, characters, too_short = remove_paragraphs(whole, cut, minimum_characters)
        characters_cut += characters
        losses = [(row, REASONS[reason]) for row, reason in here.tolist()]
        keep = np.ones(table.num_rows, bool)
        for row, reason in (*losses, *((row, REPEATED) for row in too_short.tolist())):
            keep[row] = False
            dropped[reason] += 1
            several = samples.setdefault(reason, [])
            if len(several) < SAMPLES:
                text = sample_text(whole["sentences"][row].as_py())
                several.append({"id": whole["id"][row].as_py(), "text": text})
        begin += table.num_rows
        held_out = table["split"].to_numpy() <= np.uint64(last_held_out)
        for writer, chosen in zip(writers, (keep & ~held_out, keep & held_out), strict=True):
            writer.add(table.filter(pa.array(chosen)))
        kept = table.select(["label", "spans_dropped"]).filter(pa.array(keep))
        spans_dropped += pc.sum(kept["spans_dropped"]).as_py() or 0  # pyright: ignore[reportAttributeAccessIssue]
        for entry in pc.value_counts(kept["label"]).to_pylist():  # pyright: ignore[reportAttributeAccessIssue]
            labels[entry["values"]] += entry["counts"]
    files = [file | {"source": source} for writer in writers for file in writer.close()]
    return {
        "files": files,
        "labels": dict(labels.most_common(_LABELS_OF_A_RANGE)),
        "dropped": dict(dropped),
        "cut": [cut_entry(source, REPEATED, len(repeated), characters_cut)][: len(repeated)],
        "samples": samples,
        "spans_dropped": spans_dropped,
    }


def _within(places: np.ndarray, begin: int, num_rows: int) -> np.ndarray:
    here = places[np.searchsorted(places[:, 0], begin) :]
    return here[: np.searchsorted(here[:, 0], begin + num_rows)] - [begin, 0]


class _Writer:
    """Collects the documents of one split and writes a file whenever it is full."""

    def __init__(self, split: str, number: int, limit_bytes: int, output: Folder) -> None:
        self._split = split
        self._stem = f"{split}-{number:05d}"
        self._limit_bytes = limit_bytes
        self._output = output
        self._tables: list[pa.Table] = []
        self._held_bytes = 0
        self._files: list[dict[str, Any]] = []

    def add(self, table: pa.Table) -> None:
        while table.num_rows:
            ends = np.cumsum(table["bytes"].to_numpy()) + self._held_bytes
            fits = int(np.searchsorted(ends, self._limit_bytes, side="right"))
            # A document larger than a shard gets its own.
            fits = max(fits, 0 if self._tables else 1)
            if fits:
                self._tables.append(table[:fits])
                self._held_bytes = int(ends[fits - 1])
            table = table[fits:]
            if table.num_rows:
                self._flush(f"{self._stem}-{len(self._files):02d}.parquet")

    def close(self) -> list[dict[str, Any]]:
        if self._tables:
            part = f"-{len(self._files):02d}" if self._files else ""
            self._flush(f"{self._stem}{part}.parquet")
        return self._files

    def _flush(self, name: str) -> None:
        table = pa.concat_tables(self._tables).select(SCHEMA.names).combine_chunks()
        self._tables, self._held_bytes = [], 0
        with self._output.staged(name) as path:
            pq.write_table(
                table,
                path,
                compression="zstd",
                compression_level=1,
                row_group_size=_ROWS_A_GROUP,
                use_dictionary=["label"],  # pyright: ignore[reportArgumentType]
                write_statistics=False,
            )
            sha256 = file_digest(path)
        self._files.append({"file": name, "split": self._split, "sha256": sha256} | _counts(table))


def _counts(table: pa.Table) -> dict[str, int]:
    sentences = pc.list_flatten(table["sentences"])  # pyright: ignore[reportAttributeAccessIssue]
    # Clean text has single blanks; one more separates two sentences.
    between = len(sentences) - table.num_rows
    text_bytes = pc.sum(pc.binary_length(sentences)).as_py()  # pyright: ignore[reportAttributeAccessIssue]
    blanks = sum(int((_content(chunk) == ord(" ")).sum()) for chunk in sentences.chunks)
    return {
        "documents": table.num_rows,
        "sentences": len(sentences),
        "words": blanks + len(sentences),
        "characters": pc.sum(pc.utf8_length(sentences)).as_py() + between,  # pyright: ignore[reportAttributeAccessIssue]
        "bytes": text_bytes + between,
        "spans": len(pc.list_flatten(pc.list_flatten(table["spans"]))) // 2,  # pyright: ignore[reportAttributeAccessIssue]
    }


def _content(texts: pa.StringArray) -> np.ndarray:
    _, offsets, content = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(content, np.uint8)[bounds[0] : bounds[-1]]
