"""Bounds for what another machine sends: in bytes, and in time."""

import io
import shutil
import time
from pathlib import Path
from typing import Any

from rungwise.core.errors import DataError, UserError

_PATIENCE_SECONDS = 600.0
_SLOWEST_BYTES_PER_SECOND = 10_000


class Pace:
    """The slowest pace at which a source may send, after some patience at the beginning, so that
    one that drips holds nobody up."""

    def __init__(self, source: str) -> None:
        self._source, self._begin = source, time.monotonic()

    def check(self, num_bytes: int) -> None:
        """Raise UserError if no more than `num_bytes` have come by now, and that is too slow."""
        seconds = time.monotonic() - self._begin - _PATIENCE_SECONDS
        if num_bytes < seconds * _SLOWEST_BYTES_PER_SECOND:
            raise UserError(
                f"{self._source}: {num_bytes:,} bytes have come, slower than "
                f"{_SLOWEST_BYTES_PER_SECOND:,} a second; try again later"
            )


class BoundedFile(io.FileIO):
    """A local file that takes at most `size` bytes, at no less than the slowest pace, so that a
    server that sends without end fills no disk. Raises UserError if there is no room for `size`."""

    def __init__(self, path: Path, mode: str, size: int, source: str) -> None:
        super().__init__(path, mode)
        self._size, self._source, self._pace = size, source, Pace(source)
        free = shutil.disk_usage(path.parent).free
        if size - self.tell() > free:
            self.close()
            raise UserError(
                f"{source}: no room for its {size:,} bytes in {path.parent}: {free:,} are free"
            )

    def write(self, data: Any, /) -> int:
        """Raises DataError beyond the size, UserError below the pace."""
        if self.tell() + len(data) > self._size:
            raise DataError(
                f"{self._source}: expected {self._size:,} bytes, and more came; nothing was kept"
            )
        self._pace.check(self.tell() + len(data))
        return super().write(data)
