"""Digests of the files of a source: the store's tags, and hashes of what has none.

A file of more than one block is hashed block by block, so that many hands do it: the threads of
this machine, or tasks of the cluster if there is one to join and the bytes are worth it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from rungwise.core.source_files import SourceFile, digest_of_blocks
from rungwise.core.store_errors import reached

_THREADS = 16
_BY_TASKS_BYTES = 2 << 30
_TASK_BYTES = 512 << 20

Block = tuple[SourceFile, int]


def digests_of(files: Sequence[SourceFile], key: str) -> list[str]:
    """The digest of each file, as `SourceFile.digest` gives it; errors of a store name `key`."""
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
    import ray  # models import this package, and take no part in a cluster

    return ray.is_initialized() or "RAY_ADDRESS" in os.environ


def _by_tasks(blocks: Sequence[Block], key: str) -> list[bytes]:
    import ray

    from rungwise.cluster.session import session
    from rungwise.core.context import ComputeConfig

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
    """The blocks in their order, as many together as a task takes."""
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
