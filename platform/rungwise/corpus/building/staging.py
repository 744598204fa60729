"""Files that the passes over a corpus leave for each other in `{output}/staging`.

    {range}.text.arrow            all documents of a range, uncompressed, in source order
    {range}.keys.arrow            their keys
    {range}.read.json             the report of reading, and digests of both: marks it as done
    {range}.json                  the report of writing, and digests of its files: likewise
    tests                         hashes of test texts
    duplicates-{partition}.arrow  rows of duplicate documents, a record batch per group of ranges
    repeats-{partition}.arrow     repeated paragraphs, likewise

Every file appears whole or not at all, so a killed stage resumes where it stopped. What is marked
as done and has changed since is made again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rungwise.core.storage.folder import Folder, file_digest

STAGING = "staging"
NO_POSITIONS = np.empty((0, 3), np.int64)
# The index is that of the reason of a duplicate, or of a repeated paragraph.
_POSITIONS = pa.schema([("range", pa.int32()), ("row", pa.int32()), ("index", pa.int32())])


@dataclass(frozen=True)
class PositionFiles:
    """Positions in the ranges, (N, 3) range, row and index: a file per partition that found them.

    `group_of` maps each range to its group; a task reads only the positions of its group.
    """

    output: Folder
    name: str
    num_partitions: int
    group_of: np.ndarray

    def write(self, partition: int, positions: np.ndarray) -> None:
        groups = self.group_of[positions[:, 0]]
        positions = positions[np.argsort(groups, kind="stable")]
        ends = np.cumsum(np.bincount(groups, minlength=self.group_of.max(initial=0) + 1))
        batches = [
            pa.record_batch([pa.array(column, pa.int32()) for column in rows.T], schema=_POSITIONS)
            for rows in np.split(positions, ends[:-1])
        ]
        write_tables(self.output, self._file(partition), _POSITIONS, batches)

    def write_empty(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self.write(partition, NO_POSITIONS)

    def read(self, group: int) -> np.ndarray:
        """Return the positions in a group of ranges, sorted."""
        parts = [NO_POSITIONS]
        for partition in range(self.num_partitions):
            with open_tables(self.output, self._file(partition)) as reader:
                batch = reader.get_batch(group)
            parts.append(np.column_stack([column.to_numpy() for column in batch.columns]))
        positions = np.concatenate(parts)
        return positions[np.lexsort(positions.T[::-1])]

    def _file(self, partition: int) -> str:
        return f"{STAGING}/{self.name}-{partition:05d}.arrow"


def write_tables(
    output: Folder, name: str, schema: pa.Schema, tables: Iterable[pa.Table | pa.RecordBatch]
) -> str:
    """Write tables to one file, and return its sha256."""
    with output.staged(name) as path:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for table in tables:
                writer.write(table)
        return file_digest(path)


def open_tables(output: Folder, name: str) -> Any:
    source = output.open(name) if output.remote else pa.memory_map(str(output.local(name)))
    return pa.ipc.open_file(source)
