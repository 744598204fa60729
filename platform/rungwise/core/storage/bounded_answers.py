"""Bounds for the answers of an HTTP client (httpx): no drip and no endless text."""

from collections.abc import Iterator

import httpx2

from rungwise.core.errors import DataError
from rungwise.core.storage.bounded_file import Pace

_MOST_BYTES = 64 << 20  # of an answer that is no file
_INTERFACE = "/api/"


class _BoundedStream(httpx2.SyncByteStream):
    """The pieces of an answer as they come from the network, before a client collects them."""

    def __init__(self, stream: httpx2.SyncByteStream, source: str, is_file: bool) -> None:
        self._stream, self._source, self._is_file = stream, source, is_file

    def __iter__(self) -> Iterator[bytes]:
        num_bytes, pace = 0, Pace(self._source)
        for piece in self._stream:
            num_bytes += len(piece)
            pace.check(num_bytes)
            if num_bytes > _MOST_BYTES and not self._is_file:
                raise DataError(f"{self._source}: the answer is longer than {_MOST_BYTES:,} bytes")
            yield piece

    def close(self) -> None:
        self._stream.close()


def bound_answers(client: httpx2.Client) -> None:
    """Bound the time that each answer to `client` takes, and the bytes of those that are no
    file."""
    hooks = client.event_hooks["response"]
    if _bound not in hooks:
        hooks.append(_bound)


def _bound(response: httpx2.Response) -> None:
    assert isinstance(response.stream, httpx2.SyncByteStream), "it has not been read"
    url = response.request.url
    is_file = not url.path.startswith(_INTERFACE)
    response.stream = _BoundedStream(response.stream, str(url.copy_with(query=None)), is_file)
