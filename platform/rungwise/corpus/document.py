"""A document: ordered sentences with an id and a label; and the Parquet files that hold documents.

A corpus artifact is a set of files `{train,validation}-{shard:05d}.parquet`, one document a row.
Sentences are flat, for that is how most of the platform reads them; `paragraph_starts` holds the
index of the first sentence of each paragraph, so that paragraphs can be had again. `spans` holds
the named stretches of each sentence, such as the entities that ERNIE masks as one (Sun et al. 2019,
arXiv:1904.09223), if the source names any; otherwise it is empty.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.errors import DataError
from rungwise.core.storage import Folder

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("label", pa.string()),
        ("digest", pa.string()),
        ("sentences", pa.list_(pa.string())),
        ("paragraph_starts", pa.list_(pa.int32())),
        ("spans", pa.list_(pa.list_(pa.int32()))),
    ]
)
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Document:
    """One document. `id` tells people where it came from; `digest` is a hash of its text.

    `spans` has an entry a sentence, (start 0, end 0, start 1, end 1, ...) in characters of that
    sentence, in order and apart; it is empty if the document has no spans.
    """

    id: str
    label: str
    sentences: tuple[str, ...]
    paragraph_starts: tuple[int, ...]
    spans: tuple[tuple[int, ...], ...] = ()

    def paragraphs(self) -> Iterator[tuple[str, ...]]:
        """The sentences grouped by paragraph."""
        ends = (*self.paragraph_starts[1:], len(self.sentences))
        for start, end in zip(self.paragraph_starts, ends, strict=True):
            yield self.sentences[start:end]

    @property
    def digest(self) -> str:
        return digest_of(self.sentences)


@dataclass(frozen=True)
class Damage:
    """A part of a file that is skipped: `bytes` at `place` ("line 3", "row 5", "" for all of it).

    `detail` says what is wrong in words, `key` is the config key to change.
    """

    file: str
    place: str
    bytes: int
    detail: str
    key: str

    def __str__(self) -> str:
        where = f"{self.file}, {self.place}" if self.place else self.file
        return f"{where}: {self.detail}; mend the file, or change {self.key}"


@dataclass(slots=True)  # frozen, one would take five times as long to make
class RawDocument:
    """A document as a reader yields it, before clean-up and segmentation.

    A line break in a paragraph ends a sentence; with `segmented` nothing else does. `reason` says
    why there is no text, where the reader knows, and `damage` tells more if the file is to blame.
    `spans` are [start, end) in characters of `text`, the text that the paragraphs were cut from.
    `boilerplate` counts the characters around it that the reader took out.
    """

    id: str
    label: str
    paragraphs: Sequence[str]
    segmented: bool = False
    reason: str = ""
    damage: Damage | None = None
    text: str = ""
    spans: Sequence[tuple[int, int]] = ()
    boilerplate: int = 0


def digest_of(sentences: Sequence[str]) -> str:
    """A hash of the sentences, 32 hexadecimal digits; equal sentences give equal digests."""
    # Clean text holds no line break, so joining by one loses nothing.
    text = "\n".join(sentences).encode("utf-8")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def read_documents(folder: Folder, file: str) -> Iterator[Document]:
    """Read one file of a corpus artifact in its order, a few documents in memory at a time."""
    try:
        stream = folder.open(file)
        parquet = pq.ParquetFile(stream)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"cannot read {folder.path(file)} as a corpus file: {error}") from error
    with stream, parquet:
        columns = ["id", "label", "sentences", "paragraph_starts", "spans"]
        for batch in parquet.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns):
            for row in batch.to_pylist():
                yield Document(
                    row["id"],
                    row["label"],
                    tuple(row["sentences"]),
                    tuple(row["paragraph_starts"]),
                    tuple(tuple(spans) for spans in row["spans"]),
                )
