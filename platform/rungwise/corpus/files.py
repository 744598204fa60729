"""The files that the sources match: their digests, which identify a corpus, and the ranges in which
they are read: consecutive bytes of one file, or several whole files, of one source. The cuts depend
only on the config and the listing. A record belongs to the range of its first byte."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.storage.folder import is_mappable
from rungwise.core.storage.source_files import (
    SourceFile,
    digest_files,
    find_files,
    hash_files,
    match_files,
)
from rungwise.corpus.config import (
    ArrowSource,
    CorpusConfig,
    FileSource,
    JsonLinesSource,
    ParquetSource,
    PydocsSource,
    TextSource,
    WikiTextSource,
    has_ascii_breaks,
    identity,
    source_key,
    source_names,
)
from rungwise.corpus.readers import pydocs, streams

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
    named: list[Range] = []
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
            named.append(replace(range, key=fingerprint(facts, KEY_CHARACTERS)))
    return named
