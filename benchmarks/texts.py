"""The text that the instance benchmarks read: about 25 MB of real English, and any multiple of it.

The English is Reuters, Gutenberg, Brown and WikiText-2 from the folder of real data; where that is
not there, the documentation of the installed packages. A third of the documents is held out, for
figures on text that no memo has seen.

Growth needs more text than there is, so it is repeated and changed: in each copy one word in a
hundred is a new one, made of the halves of two others. Real text of that size would hold fewer new
words (Heaps' law), so a memo of words is not flattered.

Everything is written with the platform's own corpus functions: Parquet shards with a record, so
that a stage can read them; and as plain text, a sentence a line, for the peers.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import REPOSITORY
from rungwise.core.stages import artifact
from rungwise.core.stages.artifact import Artifact, Summary
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building import stage
from rungwise.corpus.building.held_out import HeldOutSplit
from rungwise.corpus.building.range_builder import RangeBuilder, read_range
from rungwise.corpus.building.range_task import write_training_shards
from rungwise.corpus.config import (
    CorpusConfig,
    DocumentRules,
    FileSource,
    TextSource,
    WikiTextSource,
    list_ranges,
)
from rungwise.corpus.document import RawDocument, read_documents
from rungwise.corpus.readers import pydocs
from rungwise.corpus.summary import CorpusSummary, RangeReport, summarise_reports

HELD_OUT = 1 / 3
SHARD_MEGABYTES = 8.0  # what a corpus shard holds by default
CHANGED_WORDS = 0.01


def real_data() -> Path | None:
    """The folder of real corpora and vocabularies, if there is one; see tests/conftest.py."""
    for place in (os.environ.get("RUNGWISE_DATA"), REPOSITORY.parent / "shared" / "data"):
        if place and Path(place).is_dir():
            return Path(place)
    return None


def english(limit_bytes: int) -> Iterator[RawDocument]:
    """Documents until `limit_bytes` of text have passed; every source gives its share."""
    data = real_data()
    if data is None:
        print("no real data (set RUNGWISE_DATA): the text is the documentation of Python packages")
        streams = [
            pydocs.read_modules(
                pydocs.list_modules(pydocs.DEFAULT_PACKAGES, "packages"), "packages"
            )
        ]
    else:
        streams = [raw_documents(source) for source in sources(data)]
    # A document of each source in turn, so that a short text is mixed too.
    passed = 0
    while streams and passed < limit_bytes:
        for stream in list(streams):
            document = next(stream, None)
            if document is None:
                streams.remove(stream)
                continue
            passed += sum(map(len, document.paragraphs))
            yield document


def sources(data: Path) -> list[FileSource]:
    folder = data / "corpora" / "en"
    return [
        TextSource(
            paths=(f"{folder}/reuters21578",),
            documents="blank_line",
            lines="paragraph",
            label="reuters",
        ),
        TextSource(
            paths=(f"{folder}/brown/brown.txt.gz",),
            documents="blank_line",
            lines="sentence",
            label="brown",
        ),
        TextSource(paths=(f"{folder}/gutenberg",), encoding="detect", label="gutenberg"),
        WikiTextSource(paths=(f"{folder}/wikitext-2-raw",)),
    ]


def raw_documents(source: FileSource) -> Iterator[RawDocument]:
    config = CorpusConfig(sources=(source,))
    for each in list_ranges(config):
        yield from read_range(each, config)


def write_corpus(documents: Iterable[RawDocument], folder: Path) -> Artifact:
    """A finished corpus artifact in `folder`, both splits, without a cluster."""
    place = Folder(str(folder))
    rules = DocumentRules(held_out_fraction=HELD_OUT, shard_megabytes=SHARD_MEGABYTES)
    return finish("corpus", place, stage.write_corpus([documents], rules, "benchmark", place))


def finish(stage: str, folder: Folder, summary: Summary) -> Artifact:
    """Finish the artifact of a stage, without a pipeline."""
    record = {
        "stage": stage,
        "label": "benchmark",
        "fingerprint": "benchmark",
        "summary": summary.model_dump(mode="json"),
        "finished": "",
    }
    return artifact.finish(folder, record, summary.sha256)


def files(corpus: Artifact, split: str) -> list[str]:
    """The names of the files of one split."""
    return CorpusSummary.of(corpus).file_names(split)


def size(corpus: Artifact, split: str) -> int:
    """Bytes of text in one split."""
    return getattr(CorpusSummary.of(corpus).bytes, split)


@dataclass(frozen=True)
class Plain:
    """One split as files of the peers."""

    sentences: Path  # a sentence a line, a blank line between documents
    documents: Path  # Parquet with one column, `text`


def write_plain(corpus: Artifact, split: str, folder: Path) -> Plain:
    """Both layouts, documents in the order of the corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = Plain(folder / f"{split}.txt", folder / f"{split}-documents.parquet")
    texts: list[str] = []
    with plain.sentences.open("w", encoding="utf-8") as stream:
        for file in files(corpus, split):
            for document in read_documents(corpus.folder, file):
                stream.write("\n".join(document.sentences) + "\n\n")
                texts.append(" ".join(document.sentences))
    pq.write_table(pa.table({"text": texts}), plain.documents)
    return plain


def write_repeated(base: Artifact, folder: Path, megabytes: float) -> Artifact:
    """At least `megabytes` of training text: files of `base` copied, each time with new words.

    A copy is written before the next is made, so memory holds one.
    """
    target, rules = Folder(str(folder)), DocumentRules(shard_megabytes=SHARD_MEGABYTES)
    no_positions = np.empty((0, 2), np.int64)
    reports: list[list[RangeReport]] = [[], []]  # of reading and writing
    num_bytes = copy = 0
    while True:
        for row in CorpusSummary.of(base).files:
            if num_bytes >= megabytes * 1e6:
                return finish("corpus", target, summarise_reports([*reports[0], *reports[1]]))
            builder = RangeBuilder(rules, "benchmark")
            tables = builder.tables(changed(base, row.file, copy))
            part = f"part-{len(reports[0]):05}"
            split, place = HeldOutSplit(threshold=0), target / part
            report = write_training_shards(
                "benchmark", tables, no_positions, rules, split, place
            ).report
            report.files = [
                file.model_copy(update={"file": f"{part}/{file.file}"}) for file in report.files
            ]
            num_bytes += sum(file.bytes for file in report.files)
            reports[0].append(builder.report)
            reports[1].append(report)
        copy += 1


def changed(base: Artifact, file: str, copy: int) -> Iterator[RawDocument]:
    """The documents of one file with one word in a hundred changed, each copy in its own way."""
    rng = Random(f"{file} {copy}")
    for document in read_documents(base.folder, file):
        words = "\n".join(document.sentences).split(" ")
        changes = round(len(words) * CHANGED_WORDS + rng.random() - 0.5)
        for _ in range(changes):
            at = rng.randrange(len(words))
            left, right = words[at], words[rng.randrange(len(words))]
            if "\n" not in left + right:
                words[at] = left[: (len(left) + 1) // 2] + right[len(right) // 2 :]
        text = " ".join(words)
        yield RawDocument(f"{document.id}#{copy}", document.label, (text,), segmented=True)
