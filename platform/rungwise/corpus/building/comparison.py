"""Compare the documents of all ranges on Ray Data: keys are shuffled by value into partitions.

Digests, names, signature bands, digests of paragraphs and hashes of held-out passages are rows of
at most fifty bytes. One task decides each partition and writes the positions of what it found, for
the tasks that write shards.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rungwise.cluster.shuffle import Rows, group_parts, list_rows, map_packs, unite
from rungwise.cluster.tasks import Packs
from rungwise.corpus.building.held_out import fraction_threshold
from rungwise.corpus.building.range_task import NO_POSITIONS, STAGING, PositionFiles, RangeTask
from rungwise.corpus.deduplication import documents, near_duplicates, overlap, paragraphs
from rungwise.corpus.deduplication.documents import DocumentDecision, Position
from rungwise.corpus.deduplication.near_duplicates import NearDuplicateConfig
from rungwise.corpus.summary import RangeReport

# A row of near-duplicate bands, without its signature.
_BAND_ROW_BYTES = 32
_FILTER_FILE = f"{STAGING}/filter"
# Text of a word with its blank, or of a character of Chinese and its like: each begins a passage.
_BYTES_A_PASSAGE = 3
# Bytes compared by one task. More bytes than the most partitions hold make them larger: a write
# task reads from every partition.
_PARTITION_BYTES = 64 << 20
_MOST_PARTITIONS = 256


@dataclass(frozen=True)
class DocumentComparison:
    """Compares the ranges of a corpus. `packs` are the numbers of the ranges that a task reads,
    `group_of`, (ranges,), the group of each range, equal within a pack."""

    task: RangeTask
    packs: Packs[int]
    group_of: np.ndarray

    def find_duplicates(self, num_documents: int) -> tuple[list[DocumentDecision], PositionFiles]:
        """Return the decisions on all partitions, without positions, and the files of these."""
        config = self.task.config
        moved_bytes = 2 * num_documents * documents.ROW_BYTES
        num_partitions = choose_partitions(moved_bytes)
        threshold = fraction_threshold(config.held_out_fraction)

        def rows(numbers: list[int]) -> Iterator[pa.Table]:
            for number in numbers:
                yield documents.key_rows(self.task.keys(number), number, num_partitions)

        def decide(partition: pa.Table) -> tuple[np.ndarray, Any]:
            decision = documents.decide(partition, config.deduplicate, threshold)
            return decision.duplicates, decision[1:]

        keys = map_packs(self.packs, rows)
        if config.near_duplicates is not None:
            marks = self._marks(config.near_duplicates, num_documents, num_partitions)
            keys = unite(keys, marks)
        answers, files = self._decide("duplicates", keys, moved_bytes, decide)
        decisions: list[DocumentDecision] = []
        for count, size, held_out, smallest, same_name in answers:
            pair = same_name and (Position(*same_name[0]), Position(*same_name[1]))
            decisions.append(DocumentDecision(NO_POSITIONS, count, size, held_out, smallest, pair))
        return decisions, files

    def find_repeats(self, text_bytes: float, duplicates: PositionFiles) -> PositionFiles:
        """Return the files of the repeated paragraphs in the documents that stay."""
        config = self.task.config.duplicate_paragraphs
        if config is None:
            return PositionFiles(self.task.output, "repeats", 0, self.group_of)
        # An upper bound: a paragraph has at least so many bytes, a character of Chinese, which
        # counts as five, three.
        moved_bytes = text_bytes / (0.6 * config.minimum_characters) * paragraphs.ROW_BYTES
        num_partitions = choose_partitions(moved_bytes)

        def rows(numbers: list[int]) -> Iterator[pa.Table]:
            positions = duplicates.read(int(self.group_of[numbers[0]]))
            for number in numbers:
                yield paragraphs.paragraph_rows(
                    self.task.tables(number),
                    positions[positions[:, 0] == number, 1],
                    number,
                    config.minimum_characters,
                    num_partitions,
                )

        def decide(partition: pa.Table) -> tuple[np.ndarray, Any]:
            return paragraphs.find_repeats(partition, config.maximum_occurrences), None

        return self._decide("repeats", map_packs(self.packs, rows), moved_bytes, decide)[1]

    def find_overlap(self, reports: dict[int, RangeReport], num_bytes: int) -> PositionFiles:
        """Return the files of the held-out passages that stand in training.

        `reports` are those of writing the training split; `num_bytes` of text are held out.
        """
        passages = num_bytes // _BYTES_A_PASSAGE
        members = overlap.HashFilter.for_hashes(passages)
        for number in reports:
            members.add(self.task.held_out_passages(number))
        self.task.output.write_bytes(_FILTER_FILE, members.to_bytes())
        moved_bytes = 2 * passages * overlap.ROW_BYTES
        num_partitions = choose_partitions(moved_bytes)
        names = {number: [file.file for file in report.files] for number, report in reports.items()}

        def rows(numbers: list[int]) -> Iterator[pa.Table]:
            members = overlap.HashFilter.from_bytes(self.task.output.read_bytes(_FILTER_FILE))
            for number in numbers:
                documents = self.task.training_documents(names[number])
                hashes = overlap.hash_training(documents, members)
                yield overlap.passage_rows(hashes, overlap.TRAINING, num_partitions)
                hashes = self.task.held_out_passages(number)
                yield overlap.passage_rows(hashes, number, num_partitions)

        def decide(partition: pa.Table) -> tuple[np.ndarray, Any]:
            return overlap.find_passages(partition), None

        return self._decide("overlap", map_packs(self.packs, rows), moved_bytes, decide)[1]

    def _decide(
        self,
        name: str,
        keys: Rows,
        moved_bytes: float,
        decide: Callable[[pa.Table], tuple[np.ndarray, Any]],
    ) -> tuple[list[Any], PositionFiles]:
        """Apply `decide` to each partition of `keys`: return its answers, and the files of the
        positions."""
        num_partitions = choose_partitions(moved_bytes)
        files = PositionFiles(self.task.output, name, num_partitions, self.group_of)

        def write(partition: pa.Table) -> pa.Table:
            # Empty if there are no keys at all.
            numbers = partition["partition"].to_pylist()[:1]
            answers = []
            for number in numbers:
                positions, answer = decide(partition)
                files.write(number, positions)
                answers.append(json.dumps(answer))
            return pa.table(
                {"partition": pa.array(numbers, pa.int64()), "answer": pa.array(answers, "str")}
            )

        groups = group_parts(keys, "partition", num_partitions, moved_bytes, write)
        rows = list(list_rows(groups))
        files.write_empty(set(range(num_partitions)) - {row["partition"] for row in rows})
        return [json.loads(row["answer"]) for row in rows], files

    def _marks(
        self, config: NearDuplicateConfig, num_documents: int, num_key_partitions: int
    ) -> Rows:
        """Return rows that mark the near-duplicates among all documents."""
        row_bytes = config.permutations + _BAND_ROW_BYTES
        moved_bytes = num_documents * near_duplicates.choose_banding(config).bands * row_bytes
        num_partitions = choose_partitions(moved_bytes)

        def rows(numbers: list[int]) -> Iterator[pa.Table]:
            for number in numbers:
                yield near_duplicates.band_rows(self.task.keys(number), num_partitions)

        def mark(partition: pa.Table) -> pa.Table:
            marks = near_duplicates.mark_duplicates(partition, config.similarity)
            return documents.mark_rows(marks, num_key_partitions)

        bands = map_packs(self.packs, rows)
        return group_parts(bands, "partition", num_partitions, moved_bytes, mark)


def choose_partitions(moved_bytes: float) -> int:
    """Return the number of partitions for so many bytes of rows."""
    return min(max(1, math.ceil(moved_bytes / _PARTITION_BYTES)), _MOST_PARTITIONS)
