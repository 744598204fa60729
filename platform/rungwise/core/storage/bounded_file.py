"""A local file for what another machine sends: bounded in bytes and in time."""

import io
import time
from pathlib import Path
from typing import Any

from rungwise.core.errors import DataError, UserError

_PATIENCE_SECONDS = 600.0
_SLOWEST_BYTES_PER_SECOND = 10_000


class BoundedFile(io.FileIO):
    """A file that takes at most `size` bytes, so that a server that sends without end fills no
    disk, and no slower than the slowest line, so that one that drips holds nobody up."""

    def __init__(self, path: Path, mode: str, size: int, source: str) -> None:
        super().__init__(path, mode)
        self._size, self._source = size, source
        self._deadline = time.monotonic() + _PATIENCE_SECONDS + size / _SLOWEST_BYTES_PER_SECOND

    def write(self, data: Any, /) -> int:
        """Raises DataError beyond the size, UserError beyond the time."""
        if self.tell() + len(data) > self._size:
            raise DataError(
                f"{self._source}: expected {self._size:,} bytes, and more came; nothing was kept"
            )
        if time.monotonic() > self._deadline:
            raise UserError(
                f"{self._source}: {self.tell():,} of {self._size:,} bytes have come, slower than "
                f"{_SLOWEST_BYTES_PER_SECOND:,} a second; try again later"
            )
        return super().write(data)
