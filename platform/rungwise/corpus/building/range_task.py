"""Process one range: read it to a staging file, report its keys, write what is kept.

    {output}/staging/{range}.text.arrow    all documents, uncompressed, in source order
    {output}/staging/{range}.keys.arrow    their keys and the report of reading: marks it as done
    {output}/staging/{range}.json          the report of writing: marks it as done
    {output}/staging/tests                 hashes of test texts
    {output}/staging/lost-{part}.arrow     lost documents, a record batch per group of ranges
    {output}/staging/repeated-{part}.arrow repeated paragraphs, likewise

Every file appears whole or not at all, so a killed stage resumes where it stopped. Text stays in
its range; only keys are compared with other ranges.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from rungwise.core.storage.folder import Folder
from rungwise.corpus.building.range_builder import TEXT_SCHEMA, RangeBuilder
from rungwise.corpus.building.ranges import Range, read_range
from rungwise.corpus.building.shards import write_range
from rungwise.corpus.cleaning.decontamination import NgramHashes, hash_test_texts
from rungwise.corpus.config import CorpusConfig, source_names
from rungwise.corpus.files import list_test_files

STAGING = "staging"
# Kinds of places: lost documents (index: reason) and repeated paragraphs (index: paragraph).
LOST, REPEATED = "lost", "repeated"
_TESTS_FILE = f"{STAGING}/tests"
_PLACES_SCHEMA = pa.schema([("range", pa.int32()), ("row", pa.int32()), ("index", pa.int32())])


@dataclass(frozen=True)
class RangeTask:
    """Reads and writes the ranges of an artifact; holds what they share."""

    config: CorpusConfig
    output: Folder

    def read(self, range: Range) -> dict[str, Any]:
        """Stage the documents of a range unless already staged; return the report."""
        if self.output.exists(_keys_file(range.number)):
            return self._report(range.number)
        builder = RangeBuilder(self.config, self._source_of(range), self._tests)
        documents = read_range(range, self.config)
        _write_ipc(self.output, _text_file(range.number), TEXT_SCHEMA, builder.tables(documents))
        report = builder.report
        keys = builder.keys.replace_schema_metadata({"report": json.dumps(report)})
        _write_ipc(self.output, _keys_file(range.number), keys.schema, [keys])
        return report

    def keys(self, number: int) -> pa.Table:
        """Return the keys of a staged range."""
        with _opened(self.output, _keys_file(number)) as reader:
            return reader.read_all()

    def name_of(self, number: int, row: int) -> str:
        for table in self.tables(number):
            if row < table.num_rows:
                return table["id"][row].as_py()
            row -= table.num_rows
        raise IndexError(row)

    def places(self, kind: str, num_parts: int, group: int) -> np.ndarray:
        """Return the places in a group of ranges, (N, 3): range, row, index, sorted."""
        parts = [np.empty((0, 3), np.int64)]
        for part in range(num_parts):
            with _opened(self.output, _places_file(kind, part)) as reader:
                batch = reader.get_batch(group)
            parts.append(np.column_stack([column.to_numpy() for column in batch.columns]))
        places = np.concatenate(parts)
        return places[np.lexsort(places.T[::-1])]

    def write(
        self, range: Range, lost: np.ndarray, repeated: np.ndarray, last_held_out: int
    ) -> dict[str, Any]:
        """Write the files of a range unless already written; return the report.

        `lost` and `repeated` may hold other ranges too.
        """
        marker = f"{STAGING}/{range.number:05d}.json"
        if self.output.exists(marker):
            return json.loads(self.output.read_bytes(marker))
        report = write_range(
            self.tables(range.number),
            lost[lost[:, 0] == range.number, 1:],
            repeated[repeated[:, 0] == range.number, 1:],
            number=range.number,
            source=self._source_of(range),
            last_held_out=last_held_out,
            minimum_characters=self.config.minimum_characters,
            shard_megabytes=self.config.shard_megabytes,
            output=self.output,
        )
        self.output.write_bytes(marker, json.dumps(report).encode())
        return report

    def stage_tests(self) -> None:
        """Stage the hashes of the test texts, if any, for `read`."""
        config = self.config.decontaminate
        if config is not None and not self.output.exists(_TESTS_FILE):
            hashes = hash_test_texts(list_test_files(config), config.ngram).hashes
            self.output.write_bytes(_TESTS_FILE, hashes.tobytes())

    @cached_property
    def _tests(self) -> NgramHashes | None:
        config = self.config.decontaminate
        if config is None:
            return None
        return NgramHashes(
            np.frombuffer(self.output.read_bytes(_TESTS_FILE), np.uint64), config.ngram
        )

    def _source_of(self, range: Range) -> str:
        return source_names(self.config.sources)[range.source]

    def _report(self, number: int) -> dict[str, Any]:
        with _opened(self.output, _keys_file(number)) as reader:
            return json.loads(reader.schema.metadata[b"report"])

    def tables(self, number: int) -> Iterator[pa.Table]:
        """Yield the documents of a staged range."""
        with _opened(self.output, _text_file(number)) as reader:
            for batch in range(reader.num_record_batches):
                yield pa.Table.from_batches([reader.get_batch(batch)])


def write_places(
    output: Folder, kind: str, part: int, places: np.ndarray, group_of: np.ndarray
) -> None:
    """Write the places of one partition, (N, 3): a record batch per group of ranges.

    `group_of` maps each range to its group.
    """
    groups = group_of[places[:, 0]]
    places = places[np.argsort(groups, kind="stable")]
    ends = np.cumsum(np.bincount(groups, minlength=group_of.max(initial=0) + 1))
    batches = [
        pa.record_batch(
            [
                pa.array(column, column_type)
                for column, column_type in zip(rows.T, _PLACES_SCHEMA.types, strict=True)
            ],
            schema=_PLACES_SCHEMA,
        )
        for rows in np.split(places, ends[:-1])
    ]
    _write_ipc(output, _places_file(kind, part), _PLACES_SCHEMA, batches)


def _places_file(kind: str, part: int) -> str:
    return f"{STAGING}/{kind}-{part:05d}.arrow"


def _write_ipc(
    output: Folder,
    name: str,
    schema: pa.Schema,
    parts: Iterable[pa.Table | pa.RecordBatch],
) -> None:
    with (
        output.staged(name) as path,
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        for part in parts:
            writer.write(part)


def _opened(output: Folder, name: str) -> Any:
    source = output.open(name) if output.remote else pa.memory_map(str(output.local(name)))
    return pa.ipc.open_file(source)


def _text_file(number: int) -> str:
    return f"{STAGING}/{number:05d}.text.arrow"


def _keys_file(number: int) -> str:
    return f"{STAGING}/{number:05d}.keys.arrow"
