"""Digests of source files: the object store's tag, or a hash if there is none.

Files are hashed in blocks, in parallel: by threads of this machine, or by tasks of the cluster if
there is one and the files are large enough.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from rungwise.core.storage.source_files import SourceFile, digest_of_blocks
from rungwise.core.storage.store_errors import reached

_THREADS = 16
_BY_TASKS_BYTES = 2 << 30
_TASK_BYTES = 512 << 20

Block = tuple[SourceFile, int]


def digests_of(files: Sequence[SourceFile], key: str) -> list[str]:
    """Return each file's digest, as `SourceFile.digest` does; store errors name `key`."""
    blocks = [(file, n) for file in files if not file.tag for n in range(file.num_blocks)]
    num_bytes = sum(file.size_bytes for file in files if not file.tag)
    if num_bytes >= _BY_TASKS_BYTES and _has_cluster():
        hashes = iter(_by_tasks(blocks, key))
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            hashes = iter(list(pool.map(lambda block: _hashed([block], key)[0], blocks)))
    return [
        file.digest() if file.tag else digest_of_blocks(list(islice(hashes, file.num_blocks)))
        for file in files
    ]


def _has_cluster() -> bool:
    import ray  # late import: models use this package without Ray

    return ray.is_initialized() or "RAY_ADDRESS" in os.environ


def _by_tasks(blocks: Sequence[Block], key: str) -> list[bytes]:
    import ray

    from rungwise.cluster.session import session
    from rungwise.core.configuration.context import ComputeConfig

    with session(ComputeConfig()):
        task = ray.remote(num_cpus=1)(_hashed)
        parts = ray.get([task.remote(packed, key) for packed in _packed(blocks)])
    return [digest for part in parts for digest in part]


def _hashed(blocks: Sequence[Block], key: str) -> list[bytes]:
    digests = []
    for file, number in blocks:
        with reached(file.uri, key):
            digests.append(file.block_digest(number))
    return digests


def _packed(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    packed: list[Block] = []
    num_bytes = 0
    for file, number in blocks:
        packed.append((file, number))
        num_bytes += min(file.size_bytes, SourceFile.BLOCK_BYTES)
        if num_bytes >= _TASK_BYTES:
            yield packed
            packed, num_bytes = [], 0
    if packed:
        yield packed
