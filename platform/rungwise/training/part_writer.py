"""The thread that writes a worker's part of a checkpoint while training goes on."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.training.parallel import Group
from rungwise.training.state import Piece
from rungwise.training.tensor_files import write_file

T = TypeVar("T")

_STORE_SECONDS = 180.0  # how long a store may be unavailable before a save fails
_PAUSE_SECONDS = 1.0


class PartWriter:
    """One save in progress: a thread with a copy of everything it needs.

    `folder` is that of the step and this attempt. The leader's thread calls `commit` with the
    descriptions of all workers' parts once they are there.
    """

    def __init__(
        self,
        step: int,
        folder: Folder,
        pieces: dict[str, Piece],
        group: Group,
        commit: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        self._folder = folder
        self._pieces = pieces
        self._group = group
        self._commit = commit
        self.step = step
        self.seconds = self.stall_seconds = 0.0
        self.bytes = 0
        self.error: Exception | None = None
        self.written = threading.Event()  # this worker's part is written, or has failed
        self.cancelled = threading.Event()  # another worker's part has failed
        self.thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        began = time.perf_counter()
        group = self._group
        try:
            part = self._retry(self._write_part)
            self.written.set()
            if group.leads:
                parts = [part]
                for rank in range(1, group.world_size):
                    parts.append(self._retry(lambda rank=rank: self._wait_for_part(rank)))
                if not self.cancelled.is_set():
                    self._retry(lambda: self._commit(parts))
        except Exception as error:  # raised by `settle`
            self.error = error
        finally:
            self.seconds = time.perf_counter() - began
            self._pieces.clear()
            self.written.set()

    def _retry(self, write: Callable[[], T]) -> T:
        """The result of `write`, retried for some minutes if a store is unavailable.

        The store itself gives up within seconds if connections are refused. Here nobody waits until
        the next save.
        """
        deadline = time.monotonic() + _STORE_SECONDS
        while True:
            try:
                return write()
            except UserError:
                remote = self._folder.remote
                if not remote or time.monotonic() > deadline or self.cancelled.wait(_PAUSE_SECONDS):
                    raise

    def _write_part(self) -> dict[str, Any]:
        name = self._file_name(self._group.rank)
        tensors = {key: piece.local.contiguous() for key, piece in self._pieces.items()}
        with self._folder.staged(name) as path:
            write_file(tensors, path)
            digest, self.bytes = file_digest(path), path.stat().st_size
        part = {
            "file": name,
            "sha256": digest,
            "bytes": self.bytes,
            "tensors": {
                key: [piece.start, len(piece.local) if piece.shape else 1, list(piece.shape)]
                for key, piece in self._pieces.items()
            },
        }
        if not self._group.leads:
            self._folder.write_bytes(f"{name}.json", json.dumps(part).encode())
        return part

    def _wait_for_part(self, rank: int) -> dict[str, Any]:
        name = f"{self._file_name(rank)}.json"
        pause = 0.02
        while not self._folder.exists(name):
            if self.cancelled.wait(pause):
                return {}
            pause = min(1.0, pause * 1.5)
        return json.loads(self._folder.read_bytes(name))

    def _file_name(self, rank: int) -> str:
        return f"part-{rank:05d}-of-{self._group.world_size:05d}.safetensors"
