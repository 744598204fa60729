"""The corpus config: its source blocks, the files they match, and the digest of those files.

`identity` is the config without its paths and `outside` the digests that replace them, so a corpus
that moves is the same corpus and one whose bytes change is another. Both run before anything is
built, and refuse a source that matches no file or only empty ones.
"""

from __future__ import annotations

import codecs
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from rungwise.core.config import Config
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.source_files import SourceFile, find_files
from rungwise.core.store_errors import reached
from rungwise.corpus import pydocs
from rungwise.corpus.decontamination import PATHS_KEY, DecontaminationConfig
from rungwise.corpus.digests import digests_of
from rungwise.corpus.paragraphs import DuplicateParagraphConfig
from rungwise.corpus.quality import QualityConfig
from rungwise.corpus.signatures import NearDuplicateConfig

# The layout of a text's lines: hard-wrapped with blank lines between paragraphs, a paragraph each,
# or a sentence each, taken as it is.
Lines = Literal["wrapped", "paragraph", "sentence"]

DETECT = "detect"


@dataclass(frozen=True)
class Codec:
    """`splittable` if its line breaks are the bytes of ASCII, and nothing else is."""

    is_utf8: bool
    splittable: bool


@functools.cache
def codec_of(encoding: str) -> Codec:
    """Look an encoding up by its name; ValueError if Python knows none of that name."""
    if encoding == DETECT:
        return Codec(is_utf8=True, splittable=True)
    try:
        sample = "\r\n =".encode(encoding)
    except LookupError:
        raise ValueError(
            f"expected a text encoding that Python knows, such as utf-8, latin-1 or gb18030, or "
            f"{DETECT}"
        ) from None
    name = codecs.lookup(encoding).name
    return Codec(name in ("utf-8", "utf-8-sig"), sample.endswith(b"\r\n =") and name != "utf-7")


class _Source(Config):
    # Of the source, which no other has; its kind, and its number if there are several of a kind.
    name: str | None = Field(default=None, min_length=1)
    licence: str | None = (
        None  # of the text, in any words, for the cards of models; changes no text
    )


class _Files(_Source):
    # Files, folders and globs, local or s3://; a name that exists is no glob. .gz, .bz2, .xz and
    # .zst are unpacked.
    paths: tuple[str, ...] = Field(min_length=1)


class _Encoded(_Files):
    renamed: ClassVar[Mapping[str, str]] = {"invalid_utf8": "encoding (such as latin-1 or detect)"}
    # That of Python's codecs; detect takes what is not UTF-8 for what charset-normalizer says.
    encoding: str = "utf-8"

    @field_validator("encoding")
    @classmethod
    def _known(cls, encoding: str) -> str:
        if encoding != DETECT:
            codec_of(encoding)
        return encoding


class TextSource(_Encoded):
    """Plain text."""

    kind: Literal["text"] = "text"
    documents: Literal["file", "chunk", "blank_line", "line"] = "file"
    chunk_kilobytes: float = Field(default=64, gt=0)  # of a file, to begin a document after
    lines: Lines = "wrapped"
    # Of books: take out the header and the licence of Project Gutenberg.
    boilerplate: Literal["gutenberg"] | None = None
    label: str | None = None  # of every document; the name of the source if unset

    @model_validator(mode="after")
    def _boilerplate_of_files(self) -> TextSource:
        if self.boilerplate and self.documents != "file":
            raise ValueError(
                f"boilerplate={self.boilerplate} is taken out of whole files; set documents=file "
                f"(now {self.documents}) or leave boilerplate out"
            )
        return self


class WikiTextSource(_Encoded):
    """WikiText: ` = Title = ` opens an article, ` = = Section = = ` a section."""

    kind: Literal["wikitext"] = "wikitext"
    label: str | None = None  # of every document; the name of the source if unset


class _Fields(Config):
    text_field: str = "text"
    id_field: str | None = None
    label_field: str | None = None
    spans_field: str | None = None  # a list of [start, end) in characters of the text
    lines: Lines = "paragraph"


class JsonLinesSource(_Fields, _Encoded):
    """One JSON object a line, one document an object."""

    kind: Literal["jsonl"] = "jsonl"


class ParquetSource(_Fields, _Files):
    """One document a row."""

    kind: Literal["parquet"] = "parquet"


class ArrowSource(_Fields, _Files):
    """One document a row of Arrow files, such as a Hugging Face dataset saved by save_to_disk."""

    kind: Literal["arrow"] = "arrow"


class WarcSource(_Encoded):
    """One document a record of plain text in a web archive, such as the WET of Common Crawl."""

    kind: Literal["warc"] = "warc"
    lines: Lines = "paragraph"


class PydocsSource(_Source):
    """The documentation that is on every machine that can run rungwise; see pydocs.py."""

    kind: Literal["pydocs"] = "pydocs"
    packages: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], ...] = Field(
        default=pydocs.DEFAULT_PACKAGES, min_length=1
    )


FileSource = (
    TextSource | WikiTextSource | JsonLinesSource | ParquetSource | ArrowSource | WarcSource
)
Source = Annotated[FileSource | PydocsSource, Field(discriminator="kind")]


class Rules(Config):
    """The rules for documents, wherever they come from."""

    minimum_characters: int = Field(default=50, ge=1)  # a shorter document is dropped
    deduplicate: bool = True  # drop documents whose text was seen already
    near_duplicates: NearDuplicateConfig | None = None  # drop documents like another
    quality: QualityConfig | None = None  # drop documents that break its rules
    held_out_fraction: float = Field(default=0.05, gt=0, lt=1)  # goes to validation
    # Read at once, and of text in an output shard. A task that builds instances of one stays under
    # 1 GiB up to the limit.
    shard_megabytes: float = Field(default=8.0, gt=0, le=256)
    seed: int = 0


class CorpusConfig(Rules):
    """The corpus block."""

    sources: tuple[Source, ...] = Field(min_length=1)
    # Take out paragraphs that stand in the corpus again, such as licences and menus.
    duplicate_paragraphs: DuplicateParagraphConfig | None = None
    # Take out paragraphs that share a run of words with the texts of these files.
    decontaminate: DecontaminationConfig | None = None
    # A larger document is skipped: a worker has to hold one.
    maximum_document_megabytes: float = Field(default=32.0, gt=0)
    # Where a part of a file cannot be read: skip it and list it, or stop the stage.
    on_error: Literal["skip", "stop"] = "skip"
    skip_limit: float = Field(default=0.01, ge=0, le=1)  # share of the bytes that may be skipped

    @model_validator(mode="after")
    def _names_differ(self) -> CorpusConfig:
        names_of(self.sources)
        return self


def names_of(sources: Sequence[Source]) -> list[str]:
    """The name of each source, all different; ValueError if they are not."""
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


def key_of(index: int, name: str) -> str:
    """The config key of the field `name` of source number `index`, for a message."""
    return f"corpus.sources.{index}.{name}"


def identity(config: CorpusConfig) -> dict[str, Any]:
    """The part of the config that decides the result: neither paths nor licences."""
    plain = config.model_dump(mode="json")
    for source in plain["sources"]:
        source.pop("paths", None)
        source.pop("licence")
        if source.get("documents") != "chunk":
            source.pop("chunk_kilobytes", None)  # decides nothing
    if plain["decontaminate"]:
        del plain["decontaminate"]["paths"]
    return plain


def outside(config: CorpusConfig) -> dict[str, Any]:
    """Digests of the files each source reads now; ConfigError or DataError if there are none."""
    digests: dict[str, Any] = {}
    for index, source in enumerate(config.sources):
        if isinstance(source, PydocsSource):
            digests[f"sources.{index}"] = pydocs.versions(
                source.packages, key_of(index, "packages")
            )
        else:
            files = files_of(source, index)
            digests[f"sources.{index}"] = _digest_of(files, key_of(index, "paths"))
    if config.decontaminate:
        files = files_of_tests(config.decontaminate)
        digests["decontaminate"] = _digest_of(files, PATHS_KEY)
    return digests


def _digest_of(files: Sequence[SourceFile], key: str) -> dict[str, Any]:
    named = zip(files, digests_of(files, key), strict=True)
    lines = "".join(f"{file.name}\0{digest}\n" for file, digest in named)
    return {
        "files": len(files),
        "bytes": sum(file.size_bytes for file in files),
        "sha256": hashlib.sha256(lines.encode()).hexdigest(),
    }


def files_of_tests(config: DecontaminationConfig) -> list[SourceFile]:
    """The files of test texts, sorted, each once."""
    return sorted(_matched(config.paths, PATHS_KEY).values(), key=lambda file: file.uri)


def files_of(source: FileSource, index: int) -> list[SourceFile]:
    """The files that source number `index` matches, sorted, each once."""
    key = key_of(index, "paths")
    files = _matched(source.paths, key, only_arrow=source.kind == "arrow")
    if not any(file.size_bytes for file in files.values()):
        raise DataError(
            f"{key}: the corpus is empty: {len(files)} files match {', '.join(source.paths)} and "
            "none holds a byte"
        )
    by_name: dict[str, str] = {}
    for file in files.values():
        if (other := by_name.setdefault(file.name, file.uri)) != file.uri:
            raise ConfigError(
                f"{key}: two files are called {file.name} in this source, {other} and {file.uri}, "
                "so their documents could not be told apart; name a folder above both, or make "
                "them two sources"
            )
    return sorted(files.values(), key=lambda file: file.name)


def _matched(paths: Sequence[str], key: str, *, only_arrow: bool = False) -> dict[str, SourceFile]:
    """The files that match any of `paths`, by their URI; ConfigError if one matches none."""
    files: dict[str, SourceFile] = {}
    for pattern in paths:
        with reached(pattern, key):
            matched = [file for file in find_files(pattern) if not only_arrow or _is_arrow(file)]
        if not matched:
            raise ConfigError(
                f"{key}: no file matches {pattern!r}; expected a file, folder or glob"
            )
        for file in matched:
            files.setdefault(file.uri, file)
    return files


def _is_arrow(file: SourceFile) -> bool:
    # Hugging Face puts JSON files, and caches of what was computed, beside a dataset's own.
    name = file.name.rpartition("/")[2]
    return name.endswith(".arrow") and not name.startswith("cache-")
