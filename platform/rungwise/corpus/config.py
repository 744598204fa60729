"""The corpus config: its source blocks, and the rules for documents; and the files that the sources
match: their digests, which identify a corpus, and the ranges in which they are read, consecutive
bytes of one file, or several whole files, of one source. The cuts depend only on the config and the
listing. A record belongs to the range of its first byte."""

import codecs
import functools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.configuration.config import Config
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.storage.folder import is_mappable
from rungwise.core.storage.source_files import (
    SourceFile,
    digest_files,
    find_files,
    hash_files,
    match_files,
)
from rungwise.corpus.readers import pydocs, streams

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


KEY_CHARACTERS = 32
# Rules that are applied after reading.
_LATER = ("sources", "shard_megabytes", "deduplicate", "overlap", "skip_limit")


def input_digests(config: CorpusConfig) -> dict[str, Any]:
    """Return digests of the files of each source; raises ConfigError or DataError if none."""
    digests: dict[str, Any] = {}
    for index, source in enumerate(config.sources):
        if isinstance(source, PydocsSource):
            digest = pydocs.package_versions(source.packages, source_key(index, "packages"))
        else:
            digest = digest_files(list_source_files(source, index), source_key(index, "paths"))
        digests[f"sources.{index}"] = digest
    return digests


def list_source_files(source: FileSource, index: int) -> list[SourceFile]:
    """Return the files that source `index` matches, sorted, without repeats. Raises DataError if
    none holds a byte, ConfigError if two have one name."""
    key = source_key(index, "paths")
    files = match_files(source.paths, key, find_files)
    if source.kind == "arrow":  # a repository of the hub has a README, too
        files = [file for file in files if file.name.endswith(".arrow")]
    if not any(file.size_bytes for file in files):
        raise DataError(
            f"{key}: the corpus is empty: {len(files)} files match {', '.join(source.paths)} and "
            "none holds a byte"
        )
    by_name: dict[str, str] = {}
    for file in files:
        if (other := by_name.setdefault(file.name, file.uri)) != file.uri:
            raise ConfigError(
                f"{key}: two files are called {file.name} in this source, {other} and {file.uri}, "
                "so their documents could not be told apart; name a folder above both, or make "
                "them two sources"
            )
    return files


@dataclass(frozen=True)
class Range:
    """Bytes [begin, end) of one file, or several whole files if `end` is None. `number` counts the
    ranges of a corpus; `source` is the index of the source; `key` is a digest of what the result of
    reading follows from, so that a corpus that grows reads what is new."""

    number: int
    source: int
    files: tuple[SourceFile, ...]
    begin: int = 0
    end: int | None = None
    key: str = ""

    @property
    def num_bytes(self) -> int:
        if self.end is not None:
            return self.end - self.begin
        return sum(file.size_bytes for file in self.files)


def list_ranges(config: CorpusConfig) -> list[Range]:
    """Cut the sources into ranges of about `shard_megabytes`, by source, name and place. Raises
    ConfigError or DataError for a source without files or bytes."""
    step = max(1, int(config.shard_megabytes * 1e6))
    ranges: list[Range] = []
    for index, source in enumerate(config.sources):
        pack: list[SourceFile] = []
        pack_bytes = 0
        if isinstance(source, PydocsSource):
            files = pydocs.list_modules(source.packages, source_key(index, "packages"))
        else:
            files = list_source_files(source, index)
        # None ends the list and closes the last pack.
        for file in [*files, None]:
            weight = 0 if file is None else streams.estimate_unpacked_bytes(file)
            # A remainder of less than half a range joins the last one.
            cuts = round(weight / step) if file and _is_splittable(file, source) else 1
            if pack and (file is None or cuts > 1 or pack_bytes + weight > step):
                ranges.append(Range(len(ranges), index, tuple(pack)))
                pack, pack_bytes = [], 0
            if file is not None and cuts > 1:
                for cut in range(cuts):
                    end = file.size_bytes if cut == cuts - 1 else (cut + 1) * step
                    ranges.append(Range(len(ranges), index, (file,), cut * step, end))
            elif file is not None:
                pack.append(file)
                pack_bytes += weight
                # Modules are those of installed packages, which do not grow one by one.
                if not isinstance(source, PydocsSource) and _ends_range(file, weight / step):
                    ranges.append(Range(len(ranges), index, tuple(pack)))
                    pack, pack_bytes = [], 0
    return ranges


def _ends_range(file: SourceFile, share: float) -> bool:
    """Whether a range of whole files ends with this one, which has a `share` of its bytes: drawn by
    its name, after half a range in the mean. A new file then moves the borders next to it alone."""
    return zlib.crc32(file.name.encode()) < 2 * share * 2**32


def _is_splittable(file: SourceFile, source: FileSource | PydocsSource) -> bool:
    if streams.compression_suffix(file.name):
        return False
    match source:
        case TextSource():
            whole = source.documents == "file" or source.boilerplate
            return not whole and has_ascii_breaks(source.encoding)
        case WikiTextSource() | JsonLinesSource():
            return has_ascii_breaks(source.encoding)
        case ParquetSource():
            return True
        case ArrowSource():
            # Batches before a cut are skipped, which is free only in a mapped file.
            return is_mappable(file.uri)
        case _:
            return False


def name_ranges(ranges: Sequence[Range], config: CorpusConfig, version: int) -> list[Range]:
    """Return the ranges with their keys. `version` is that of the stage."""
    plain = identity(config)
    rules = {name: value for name, value in plain.items() if name not in _LATER}
    result: list[Range] = []
    for index, (source, name) in enumerate(
        zip(config.sources, source_names(config.sources), strict=True)
    ):
        own = [range for range in ranges if range.source == index]
        files = list(dict.fromkeys(file for range in own for file in range.files))
        if isinstance(source, PydocsSource):
            versions = pydocs.package_versions(source.packages, source_key(index, "packages"))
            digests = [fingerprint(versions)] * len(files)
        else:
            digests = hash_files(files, source_key(index, "paths"))
        # With its place, since what could not be read is named with it.
        contents = {
            file: [file.uri, file.name, file.size_bytes, digest]
            for file, digest in zip(files, digests, strict=True)
        }
        settings = [version, rules, index, name, plain["sources"][index]]
        for range in own:
            facts = [settings, [contents[file] for file in range.files], range.begin, range.end]
            result.append(replace(range, key=fingerprint(facts, KEY_CHARACTERS)))
    return result
