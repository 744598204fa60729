"""The files that the sources match, and their digests: the object store's tag, or a hash.

A corpus is identified by `input_digests`, the names and digests of its files, not by their paths: a
moved corpus keeps its identity, changed bytes make a new one. Files are hashed in blocks, in
parallel: by threads of this machine, or by tasks of the cluster if there is one and the files are
large enough.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from rungwise.core.errors import ConfigError, DataError
from rungwise.core.public_data import how_to_get
from rungwise.core.storage.source_files import (
    SourceFile,
    data_files,
    digest_of_blocks,
    find_files,
    from_here,
)
from rungwise.core.storage.store_errors import explain_connection_errors
from rungwise.corpus.cleaning.decontamination import PATHS_KEY, DecontaminationConfig
from rungwise.corpus.config import CorpusConfig, FileSource, PydocsSource, source_key
from rungwise.corpus.readers import pydocs

_THREADS = 16
_BY_TASKS_BYTES = 2 << 30


def input_digests(config: CorpusConfig) -> dict[str, Any]:
    """Return digests of the files of each source; raises ConfigError or DataError if none."""
    digests: dict[str, Any] = {}
    for index, source in enumerate(config.sources):
        if isinstance(source, PydocsSource):
            digest = pydocs.package_versions(source.packages, source_key(index, "packages"))
        else:
            digest = _digest(list_source_files(source, index), source_key(index, "paths"))
        digests[f"sources.{index}"] = digest
    if config.decontaminate:
        digests["decontaminate"] = _digest(list_test_files(config.decontaminate), PATHS_KEY)
    return digests


def _digest(files: Sequence[SourceFile], key: str) -> dict[str, Any]:
    hashes = zip(files, hash_files(files, key), strict=True)
    lines = "".join(f"{file.name}\0{digest}\n" for file, digest in hashes)
    return {
        "files": len(files),
        "bytes": sum(file.size_bytes for file in files),
        "sha256": hashlib.sha256(lines.encode()).hexdigest(),
    }


def list_test_files(config: DecontaminationConfig) -> list[SourceFile]:
    """Return the files of test texts, sorted, without repeats."""
    return sorted(_match(config.paths, PATHS_KEY).values(), key=lambda file: file.uri)


def list_source_files(source: FileSource, index: int) -> list[SourceFile]:
    """Return the files that source `index` matches, sorted, without repeats."""
    key = source_key(index, "paths")
    files = _match(source.paths, key, only_arrow=source.kind == "arrow")
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


def _match(paths: Sequence[str], key: str, *, only_arrow: bool = False) -> dict[str, SourceFile]:
    """Return the files that match `paths`, by URI; raises ConfigError if a path matches none."""
    files: dict[str, SourceFile] = {}
    for pattern in paths:
        with explain_connection_errors(pattern, key):
            matches = data_files(find_files(pattern))
            if only_arrow:  # a repository of the hub has a README, too
                matches = [file for file in matches if file.name.endswith(".arrow")]
        if not matches:
            raise ConfigError(
                f"{key}: no file matches {pattern!r}{from_here(pattern)}; expected a file, "
                f"folder or glob{how_to_get(pattern)}"
            )
        for file in matches:
            try:
                file.uri.encode()
            except UnicodeEncodeError:  # Python holds the odd bytes as lone surrogates
                raise ConfigError(
                    f"{key}: the name of the file {file.uri!a} is not UTF-8; rename it"
                ) from None
            files.setdefault(file.uri, file)
    return files


def hash_files(files: Sequence[SourceFile], key: str) -> list[str]:
    """Return each file's digest, as `SourceFile.digest` does; store errors name `key`."""
    blocks = [(file, n) for file in files if not file.tag for n in range(file.num_blocks)]
    num_bytes = sum(file.size_bytes for file in files if not file.tag)
    if num_bytes >= _BY_TASKS_BYTES and _has_cluster():
        hashes = iter(_hash_by_tasks(blocks, key))
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            hashes = iter(list(pool.map(lambda block: _hash_block(block, key), blocks)))
    return [
        file.digest() if file.tag else digest_of_blocks(list(islice(hashes, file.num_blocks)))
        for file in files
    ]


def _has_cluster() -> bool:
    import ray  # late import: models use this package without Ray

    return ray.is_initialized() or "RAY_ADDRESS" in os.environ


def _hash_by_tasks(blocks: Sequence[tuple[SourceFile, int]], key: str) -> list[bytes]:
    from rungwise.cluster.session import session
    from rungwise.cluster.tasks import pack_items, run_tasks
    from rungwise.core.configuration.overrides import ComputeConfig

    items = list(enumerate(blocks))
    sizes = [min(file.size_bytes, SourceFile.BLOCK_BYTES) for file, _ in blocks]
    with session(ComputeConfig()):
        hashes = dict(
            run_tasks(
                pack_items(items, sizes),
                lambda pack: ((at, _hash_block(block, key).hex()) for at, block in pack),
            )
        )
    return [bytes.fromhex(hashes[at]) for at in range(len(blocks))]


def _hash_block(block: tuple[SourceFile, int], key: str) -> bytes:
    file, number = block
    with explain_connection_errors(file.uri, key):
        return file.block_digest(number)
