"""The corpus config: its source blocks, the files they match, and the digest of those files.

`identity` is the config without its paths and `outside` the digests that replace them, so a corpus
that moves is the same corpus and one whose bytes change is another. Both run before anything is
built, and refuse a source that matches no file or only empty ones.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

from pydantic import Field

from rungwise.core.config import Config
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.storage import SourceFile, find_files, reached
from rungwise.corpus import pydocs
from rungwise.corpus.quality import QualityConfig
from rungwise.corpus.signatures import NearDuplicateConfig

# A file that is not UTF-8 is left out and named, or stops the stage, or has its invalid bytes
# replaced, or is read as latin-1.
InvalidUtf8 = Literal["drop", "refuse", "replace", "latin-1"]
# The layout of a text's lines: hard-wrapped with blank lines between paragraphs, a paragraph each,
# or a sentence each, taken as it is.
Lines = Literal["wrapped", "paragraph", "sentence"]

_DIGESTS_AT_ONCE = 16


class _Files(Config):
    name: str | None = None  # of the source; from its paths if unset
    paths: tuple[str, ...] = Field(min_length=1)  # files, folders and globs, local or s3://


class TextSource(_Files):
    """Plain text, or .gz of it."""

    kind: Literal["text"] = "text"
    documents: Literal["file", "blank_line", "line"] = "file"
    lines: Lines = "wrapped"
    label: str | None = None  # of every document; the name of its file if unset
    invalid_utf8: InvalidUtf8 = "drop"


class WikiTextSource(_Files):
    """WikiText: ` = Title = ` opens an article, ` = = Section = = ` a section."""

    kind: Literal["wikitext"] = "wikitext"
    label: str | None = "wikitext"
    invalid_utf8: InvalidUtf8 = "drop"


class JsonLinesSource(_Files):
    """One JSON object a line, one document an object."""

    kind: Literal["jsonl"] = "jsonl"
    text_field: str = "text"
    id_field: str | None = None
    label_field: str | None = None
    spans_field: str | None = None  # a list of [start, end) in characters of the text
    lines: Lines = "paragraph"
    invalid_utf8: InvalidUtf8 = "drop"


class ParquetSource(_Files):
    """One document a row."""

    kind: Literal["parquet"] = "parquet"
    text_field: str = "text"
    id_field: str | None = None
    label_field: str | None = None
    spans_field: str | None = None  # a list of [start, end) in characters of the text
    lines: Lines = "paragraph"


class PydocsSource(Config):
    """The documentation that is on every machine that can run rungwise; see pydocs.py."""

    kind: Literal["pydocs"] = "pydocs"
    name: str | None = None  # of the source; pydocs if unset
    packages: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], ...] = Field(
        default=pydocs.DEFAULT_PACKAGES, min_length=1
    )


FileSource = TextSource | WikiTextSource | JsonLinesSource | ParquetSource
Source = Annotated[FileSource | PydocsSource, Field(discriminator="kind")]


class Rules(Config):
    """What is done with documents, wherever they come from."""

    minimum_characters: int = Field(default=50, ge=1)  # a shorter document is dropped
    deduplicate: bool = True  # drop documents whose text was seen already
    near_duplicates: NearDuplicateConfig | None = None  # drop documents like another
    quality: QualityConfig | None = None  # drop documents that break its rules
    held_out_fraction: float = Field(default=0.05, gt=0, lt=1)  # goes to validation
    # Source read at once, and text of an output shard. A task that builds instances of a shard
    # stays under 1 GiB up to the limit.
    shard_megabytes: float = Field(default=8.0, gt=0, le=256)
    seed: int = 0


class CorpusConfig(Rules):
    """The corpus block."""

    sources: tuple[Source, ...] = Field(min_length=1)
    # A larger document is dropped: UTF-8 text of one, which a worker has to hold.
    maximum_document_megabytes: float = Field(default=32.0, gt=0)
    # A part of a file that cannot be read is skipped and listed, or stops the stage.
    on_error: Literal["skip", "stop"] = "skip"
    skip_limit: float = Field(default=0.01, ge=0, le=1)  # share of the bytes that may be skipped


def names_of(config: CorpusConfig) -> tuple[str, ...]:
    """The name of each source, all different."""
    names = []
    for index, source in enumerate(config.sources):
        name = source.name
        if name is None and isinstance(source, PydocsSource):
            name = source.kind
        elif name is None:
            name = source.paths[0].rstrip("/").rpartition("/")[2] or source.kind
        names.append(name if name not in names else f"{name}-{index}")
    return tuple(names)


def key_of(index: int, name: str) -> str:
    """The config key of the field `name` of source number `index`, for a message."""
    return f"corpus.sources.{index}.{name}"


def identity(config: CorpusConfig) -> dict[str, Any]:
    """The part of the config that decides the result: all but the paths."""
    plain = config.model_dump(mode="json")
    for source in plain["sources"]:
        source.pop("paths", None)
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
            digests[f"sources.{index}"] = {
                "files": len(files),
                "bytes": sum(file.size_bytes for file in files),
                "sha256": _digest(files, index),
            }
    return digests


def files_of(source: FileSource, index: int) -> list[SourceFile]:
    """The files that source number `index` matches, sorted, each once."""
    key = key_of(index, "paths")
    files: dict[str, SourceFile] = {}
    for pattern in source.paths:
        with reached(pattern, key):
            matched = find_files(pattern)
        if not matched:
            raise ConfigError(
                f"{key}: no file matches {pattern!r}; expected a file, folder or glob"
            )
        for file in matched:
            files.setdefault(file.uri, file)
    if not any(file.size_bytes for file in files.values()):
        raise DataError(
            f"{key}: the corpus is empty: {len(files)} files match {', '.join(source.paths)} and "
            "none holds a byte"
        )
    return sorted(files.values(), key=lambda file: (file.name, file.uri))


def _digest(files: list[SourceFile], index: int) -> str:
    digest = hashlib.sha256()

    def digest_of(file: SourceFile) -> str:
        with reached(file.uri, key_of(index, "paths")):
            return file.digest()

    with ThreadPoolExecutor(_DIGESTS_AT_ONCE) as pool:
        for file, file_digest in zip(files, pool.map(digest_of, files), strict=True):
            digest.update(f"{file.name}\0{file_digest}\n".encode())
    return digest.hexdigest()
