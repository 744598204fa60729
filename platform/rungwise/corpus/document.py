"""Documents: sentences in order with an id and a label, and the Parquet files that hold them, one
a row."""

import contextlib
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import SummaryPart
from rungwise.core.storage.folder import Folder

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("label", pa.string()),
        ("digest", pa.string()),
        ("sentences", pa.list_(pa.string())),
        ("paragraph_starts", pa.list_(pa.int32())),
    ]
)
_ROWS_AT_ONCE = 256
ItemT = TypeVar("ItemT")
# Han and kana.
_IDEOGRAPHS = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


@dataclass(frozen=True)
class Document:
    """One document. `id` tells people its origin; `digest` is a hash of its text."""

    id: str
    label: str
    sentences: tuple[str, ...]
    paragraph_starts: tuple[int, ...]

    def paragraphs(self) -> Iterator[tuple[str, ...]]:
        ends = (*self.paragraph_starts[1:], len(self.sentences))
        for start, end in zip(self.paragraph_starts, ends, strict=True):
            yield self.sentences[start:end]

    def select(self, stays: Sequence[bool]) -> "Document":
        """Return the document with only the sentences that stay."""
        before = [0, *itertools.accumulate(map(int, stays))]
        starts = {before[start] for start in self.paragraph_starts} - {before[-1]}
        sentences = tuple(itertools.compress(self.sentences, stays))
        return replace(self, sentences=sentences, paragraph_starts=tuple(sorted(starts)))

    @property
    def digest(self) -> str:
        return text_digest(self.sentences)


class DocumentDamage(SummaryPart):
    """A skipped part of a file: `bytes` at `place` ("line 3", "row 5", "" for all of it). `reason`
    is the kind of fault, `detail` describes it, `key` is the config key to change."""

    file: str
    place: str
    bytes: int
    reason: str
    detail: str
    key: str

    def __str__(self) -> str:
        where = f"{self.file}, {self.place}" if self.place else self.file
        return f"{where}: {self.detail}; mend the file, or change {self.key}"


@dataclass(slots=True)  # not frozen: that takes five times as long to create
class RawDocument:
    """A document as a reader yields it, before clean-up and segmentation. A line break in a
    paragraph ends a sentence; with `segmented`, nothing else does. `damage` says why there is no
    text. `encoding` was detected, and is not UTF-8."""

    id: str
    label: str
    paragraphs: Sequence[str]
    segmented: bool = False
    damage: DocumentDamage | None = None
    encoding: str = ""

    @property
    def reason(self) -> str:
        return self.damage.reason if self.damage else ""


def batch_by_size(
    items: Iterable[ItemT], size: Callable[[ItemT], int], most: int
) -> Iterator[list[ItemT]]:
    """Yield items in lists that end with the one that brings their size to `most` or more."""
    batch: list[ItemT] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= most:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def text_length(text: str) -> int:
    """Return the length that minimum lengths count: in characters, of which one of Chinese or
    Japanese, itself a word or half of one, counts as five."""
    return len(text) if text.isascii() else len(text) + 4 * len(_IDEOGRAPHS.findall(text))


def text_digest(sentences: Sequence[str]) -> str:
    """Hash the sentences to 32 hexadecimal digits."""
    # Clean text has no line breaks, so the join is unambiguous.
    text = "\n".join(sentences).encode("utf-8")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


@contextlib.contextmanager
def open_corpus_file(folder: Folder, file: str) -> Iterator[pq.ParquetFile]:
    """Open a corpus file; raises DataError where it cannot be read."""
    try:
        with folder.open(file) as stream, pq.ParquetFile(stream) as parquet:
            yield parquet
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"cannot read {folder.path(file)} as a corpus file: {error}") from error


def read_documents(folder: Folder, file: str) -> Iterator[Document]:
    """Yield the documents of a corpus file in order, a few in memory at a time."""
    with open_corpus_file(folder, file) as parquet:
        columns = ["id", "label", "sentences", "paragraph_starts"]
        for batch in parquet.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns):
            for row in batch.to_pylist():
                yield Document(
                    row["id"], row["label"], tuple(row["sentences"]), tuple(row["paragraph_starts"])
                )
