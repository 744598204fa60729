"""Build a corpus that fits in memory in this process, in the same steps as the stage."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from rungwise.core.errors import DataError
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building import held_out
from rungwise.corpus.building.range_builder import RangeBuilder
from rungwise.corpus.building.shards import ShardWriter
from rungwise.corpus.config import Rules
from rungwise.corpus.deduplication import documents, near_duplicates, overlap
from rungwise.corpus.document import RawDocument, read_documents
from rungwise.corpus.summary import CorpusSummary, RangeReport, repeats_most, summarise_reports


def write_corpus(
    ranges: Iterable[Iterable[RawDocument]], rules: Rules, source: str, output: Folder
) -> CorpusSummary:
    """Write each range, all of one source, to its own files in `output`.

    Raises DataError if two documents have the same id.
    """
    builders, tables = [], []
    for raw in ranges:
        builders.append(RangeBuilder(rules, source))
        tables.append(list(builders[-1].tables(raw)))
    keys = [builder.keys for builder in builders]
    rows = [documents.key_rows(each, number, 1) for number, each in enumerate(keys)]
    if rules.near_duplicates is not None:
        bands = pa.concat_tables([near_duplicates.band_rows(each, 1) for each in keys])
        marks = near_duplicates.mark_duplicates(bands, rules.near_duplicates.similarity)
        rows.append(documents.mark_rows(marks, 1))
    fraction = rules.held_out_fraction
    threshold = held_out.fraction_threshold(fraction)
    decision = documents.decide(pa.concat_tables(rows), rules.deduplicate, threshold)
    if decision.same_name:
        number, row = decision.same_name[0]
        id_ = pa.concat_tables(tables[number])["id"][row].as_py()
        raise DataError(f"two documents of {source} have the id {id_!r}; ids must differ")
    no_repeats = np.empty((0, 2), np.int64)
    duplicates = [
        decision.duplicates[decision.duplicates[:, 0] == number, 1:]
        for number in range(len(tables))
    ]

    def count(longest: int, begin: int, width: int) -> list[held_out.Bucket]:
        return held_out.add_buckets(
            held_out.count_buckets(each, rows[:, 0], longest, begin, width)
            for each, rows in zip(keys, duplicates, strict=True)
        )

    writer = ShardWriter(rules, held_out.choose_split(fraction, [decision], count), output)
    reports, parts = zip(
        *(
            writer.write_training(number, source, each, rows, no_repeats)
            for number, (each, rows) in enumerate(zip(tables, duplicates, strict=True))
        ),
        strict=True,
    )
    passages = [overlap.hash_passages(part["sentences"].to_pylist()) for part in parts]
    members = overlap.HashFilter.for_hashes(sum(map(len, passages)))
    for hashes in passages:
        members.add(hashes)
    training = (
        document.sentences
        for report in reports
        for file in report.files
        for document in read_documents(output, file.file)
    )
    rows = [overlap.passage_rows(overlap.hash_training(training, members), overlap.TRAINING, 1)]
    rows += [overlap.passage_rows(hashes, number, 1) for number, hashes in enumerate(passages)]
    repeats = overlap.find_passages(pa.concat_tables(rows))

    def write_held_out(keep_repeats: bool) -> list[RangeReport]:
        return [
            writer.write_held_out(
                number, source, part, repeats[repeats[:, 0] == number, 1], keep_repeats
            )
            for number, part in enumerate(parts)
        ]

    validation = write_held_out(rules.overlap == "keep")
    if repeats_most(validation):
        for report in validation:
            for file in report.sha256:
                output.remove(file)
        validation = write_held_out(keep_repeats=True)
    written = [one for pair in zip(reports, validation, strict=True) for one in pair]
    return summarise_reports([*(builder.report for builder in builders), *written], fraction)
