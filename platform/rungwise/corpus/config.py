"""The corpus config: its source blocks, and the rules for documents."""

import codecs
import functools
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rungwise.core.configuration.config import Config
from rungwise.corpus.readers import pydocs

# Line layout: hard-wrapped with blank lines between paragraphs, a paragraph or sentence per line.
LineLayout = Literal["wrapped", "paragraph", "sentence"]

DETECT = "detect"
_OF_NAMES = ("idna", "punycode")  # codecs of hosts in the internet


@functools.cache
def has_ascii_breaks(encoding: str) -> bool:
    """Whether line breaks are the bytes of ASCII, and those bytes mean nothing else; raises
    ValueError if Python does not know the encoding."""
    if encoding == DETECT:
        return True
    try:
        name, sample = codecs.lookup(encoding).name, "\r\n =".encode(encoding)
    except (LookupError, UnicodeError):
        name, sample = "", b""
    if name in ("", *_OF_NAMES):
        raise ValueError(
            f"expected a text encoding that Python knows, such as utf-8, latin-1 or gb18030, or "
            f"{DETECT}"
        )
    return sample.endswith(b"\r\n =") and name != "utf-7"


class _Source(Config):
    # unique name of the source; null: its kind, with its index (text-0) if several share the kind
    name: str | None = Field(default=None, min_length=1)
    licence: str | None = None  # of the text, in any words, for model cards; changes no text
    # of its documents to read, drawn by their ids; a smaller share is a part of a larger one
    share: float = Field(default=1.0, gt=0, le=1)


class _Files(_Source):
    # Files, folders and globs, local, s3:// or hf://; an existing name is not a glob. Text in .gz,
    # .bgz, .bz2, .xz and .zst is unpacked.
    paths: tuple[str, ...] = Field(min_length=1)


class _Encoded(_Files):
    # a Python codec, or detect: charset-normalizer guesses the encoding of files that are not UTF-8
    encoding: str = "utf-8"

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str) -> str:
        has_ascii_breaks(encoding)
        return encoding


class TextSource(_Encoded):
    """Plain text."""

    kind: Literal["text"] = "text"
    # a document is a whole file, a chunk of one, a block between blank lines, or a line
    documents: Literal["file", "chunk", "blank_line", "line"] = "file"
    # size of a chunk, if documents is chunk; a line or paragraph of twice as much is cut
    chunk_kilobytes: float = Field(default=64, gt=0)
    # a line is part of a wrapped paragraph, a paragraph, or a sentence
    lines: LineLayout = "wrapped"
    # gutenberg: remove the header and licence of Project Gutenberg books
    boilerplate: Literal["gutenberg"] | None = None
    label: str | None = None  # label of every document; null: the name of the source

    @model_validator(mode="after")
    def _boilerplate_of_files(self) -> Self:
        if self.boilerplate and self.documents not in ("file", "chunk"):
            raise ValueError(
                f"boilerplate={self.boilerplate} is taken out of whole files; set documents=file "
                f"or chunk (now {self.documents}) or leave boilerplate out"
            )
        return self


class WikiTextSource(_Encoded):
    """WikiText: ` = Title = ` opens an article, ` = = Section = = ` a section."""

    kind: Literal["wikitext"] = "wikitext"
    label: str | None = None  # label of every document; null: the name of the source


class _Fields(Config):
    text_field: str = "text"  # field with the text
    id_field: str | None = None  # field with the document's id; null: its place in the file
    label_field: str | None = None  # field with the document's label; null: the name of the source
    # a line is part of a wrapped paragraph, a paragraph, or a sentence
    lines: LineLayout = "paragraph"


class JsonLinesSource(_Fields, _Encoded):
    """JSON Lines: one object per line, one document per object."""

    kind: Literal["jsonl"] = "jsonl"


class ParquetSource(_Fields, _Files):
    """Parquet files, one document per row."""

    kind: Literal["parquet"] = "parquet"


class ArrowSource(_Fields, _Files):
    """Arrow files, such as a Hugging Face dataset saved by save_to_disk, one document per row."""

    kind: Literal["arrow"] = "arrow"


class WarcSource(_Encoded):
    """Plain-text records of a web archive, such as Common Crawl's WET, one document per record."""

    kind: Literal["warc"] = "warc"
    # a line is part of a wrapped paragraph, a paragraph, or a sentence
    lines: LineLayout = "paragraph"


class PydocsSource(_Source):
    """Documentation that is on every machine that can run rungwise; see pydocs.py."""

    kind: Literal["pydocs"] = "pydocs"
    # stdlib and installed packages; their docstrings are read, and nothing is run
    packages: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], ...] = Field(
        default=pydocs.DEFAULT_PACKAGES, min_length=1
    )


FileSource = (
    TextSource | WikiTextSource | JsonLinesSource | ParquetSource | ArrowSource | WarcSource
)
Source = Annotated[FileSource | PydocsSource, Field(discriminator="kind")]


class DocumentRules(Config):
    """The rules for documents, wherever they come from."""

    # drop shorter documents; a character of Chinese or Japanese counts as five
    minimum_characters: int = Field(default=50, ge=1)
    deduplicate: bool = True  # drop documents whose text was seen already
    near_duplicates: bool = False  # drop documents that share 80 % of their text with another
    quality: bool = False  # drop documents that do not look like prose
    held_out_fraction: float = Field(default=0.05, gt=0, lt=1)  # share of the bytes, to validate on
    # sentences of held-out documents that stand in training: leave them out (unless more than half
    # of the held-out text does), or keep them; counted in either case
    overlap: Literal["leave_out", "keep"] = "leave_out"
    # size of an output shard and of a read; up to the limit, building its instances takes less than
    # 1 GiB
    shard_megabytes: float = Field(default=8.0, gt=0, le=256)
    seed: int = 0  # draws the held-out documents


class CorpusConfig(DocumentRules):
    """The text to train on, and which documents are left out."""

    sources: tuple[Source, ...] = Field(min_length=1)
    # skip larger documents, since a worker must hold a whole one in memory
    maximum_document_megabytes: float = Field(default=32.0, gt=0)
    # largest share of the bytes that may be skipped because they cannot be read
    skip_limit: float = Field(default=0.01, ge=0, le=1)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        source_names(self.sources)
        return self


def source_names(sources: Sequence[Source]) -> list[str]:
    """Return the name of each source; raises ValueError if two are equal."""
    kinds = [source.kind for source in sources]
    names = []
    for index, source in enumerate(sources):
        alone = kinds.count(source.kind) == 1
        name = source.name or (source.kind if alone else f"{source.kind}-{index}")
        if name in names:
            raise ValueError(
                f"two sources are called {name!r}; give each of corpus.sources a name of its own"
            )
        names.append(name)
    return names


def source_key(index: int, name: str) -> str:
    """Return the config key of a field of source `index`, for messages."""
    return f"corpus.sources.{index}.{name}"


def identity(config: CorpusConfig) -> dict[str, Any]:
    """Return the part of the config that decides the result: neither paths nor licences."""
    plain = config.model_dump(mode="json")
    for source in plain["sources"]:
        source.pop("paths", None)
        source.pop("licence")
        if source["share"] == 1:
            del source["share"]  # recipes from before it have the same corpus
        if source.get("documents") != "chunk":
            source.pop("chunk_kilobytes", None)  # has no effect
    return plain
