"""Open and download objects of a store: complete, and all bytes from one version.

botocore retries refused, reset and unanswered requests, s3fs a body that breaks off, and this
module checks the length and ETag of everything read. A store that stays unreachable raises one
UserError after about two minutes (store_errors.py)."""

import functools
import io
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec

from rungwise.core.errors import DataError, UserError
from rungwise.core.storage import hub

# Bytes per request: large enough to hide the latency.
_RANGE_BYTES = 8 << 20
_RANGES_AT_ONCE = 8
# s3fs retries five times, with growing pauses, after botocore gives up: 20 attempts a request.
_ATTEMPTS = 4
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 30
_SHORT_ANSWERS = 3


def is_remote(uri: str) -> bool:
    """True for `s3://...` and other URLs, False for local paths."""
    return "://" in uri and not uri.startswith("file://")


def is_mappable(uri: str) -> bool:
    """Whether the file is on this machine's disk, or is copied there to be read."""
    return hub.is_hub(uri) or not is_remote(uri)


def file_on_disk(uri: str) -> str:
    """The path of a file that `is_mappable`; fetches a file of the hub that is not there."""
    return str(hub.local_copy(uri)) if hub.is_hub(uri) else uri.removeprefix("file://")


def open_stream(uri: str, tag: str = "") -> io.BufferedReader:
    """Open a seekable stream of a file or an object. Raises DataError if its ETag is not `tag`."""
    if is_mappable(uri):
        return open(file_on_disk(uri), "rb")
    fs, path = filesystem(uri)
    return _open_object(fs, path, tag)


def download(fs: Any, path: str, before: dict[str, Any], target: Path) -> None:
    """Download an object to `target`. Raises DataError if it was replaced since info `before`."""
    with _open_object(fs, path, object_tag(before)) as stream, target.open("wb") as file:
        shutil.copyfileobj(stream, file, _RANGES_AT_ONCE * _RANGE_BYTES)


def _open_object(fs: Any, path: str, tag: str) -> io.BufferedReader:
    # s3fs sends the current tag with every range, so that no two versions are mixed.
    opened = fs.open(path, "rb", cache_type="none")
    if tag and object_tag(opened.details) not in (tag, ""):  # a server of files tells none here
        raise DataError(f"{path} has changed since it was listed; run again")
    fetch = opened.cache.fetcher

    def fetch_ranges(start: int, end: int) -> bytes:
        end = min(end, opened.size)

        def fetch_range(first: int) -> bytes:
            return _whole(fetch, first, min(first + _RANGE_BYTES, end), path)

        firsts = range(start, end, _RANGE_BYTES)
        if len(firsts) < 2:
            return b"".join(map(fetch_range, firsts))
        with ThreadPoolExecutor(_RANGES_AT_ONCE) as pool:
            return b"".join(pool.map(fetch_range, firsts))

    opened.cache.fetcher = fetch_ranges
    return io.BufferedReader(opened, _RANGE_BYTES)


def _whole(fetch: Callable[[int, int], bytes], start: int, end: int, uri: str) -> bytes:
    """Fetch a range, retrying if fewer bytes arrive. Raises DataError if they never do."""
    size, data = end - start, b""
    for _ in range(_SHORT_ANSWERS):
        data = fetch(start, end)
        if len(data) == size:
            return data
    raise DataError(
        f"{uri}: asked {_SHORT_ANSWERS} times for {size:,} bytes, the store sent {len(data):,}; "
        "check the store and whatever stands before it"
    )


def object_tag(info: dict[str, Any]) -> str:
    """The ETag in an object's `info`; empty for a file."""
    return str(info.get("ETag") or "").strip('"')


def filesystem(uri: str) -> tuple[Any, str]:
    """The fsspec file system of a path or URL, and the path on it. Raises UserError for a URL
    without a bucket, or of a kind that fsspec or this environment does not know."""
    if not is_remote(uri):
        return fsspec.core.url_to_fs(uri)
    if hub.is_hub(uri):
        pinned = hub.pin(uri)
        return hub.HubFiles(pinned), pinned.removeprefix(hub.SCHEME)
    if not uri.partition("://")[2].strip("/"):
        raise UserError(f"{uri}: expected a bucket, as in s3://BUCKET/FOLDER")
    # Worker processes may write what this one reads, so listings must not be cached.
    options: dict[str, Any] = {"use_listings_cache": False}
    if uri.startswith(("s3://", "s3a://")):
        _retry_checksums()
        options["config_kwargs"] = {
            "connect_timeout": _CONNECT_SECONDS,
            "read_timeout": _ANSWER_SECONDS,
            "retries": {
                "mode": os.environ.get("AWS_RETRY_MODE", "standard"),
                "total_max_attempts": int(os.environ.get("AWS_MAX_ATTEMPTS", _ATTEMPTS)),
            },
        }
    try:
        return fsspec.core.url_to_fs(uri, **options)
    except (ImportError, ValueError) as error:
        raise UserError(f"{uri}: {error}") from error


@functools.cache
def _retry_checksums() -> None:
    """Make s3fs retry a body that fails its checksum, as a truncated one does."""
    from botocore.exceptions import FlexibleChecksumError
    from s3fs.core import add_retryable_error

    add_retryable_error(FlexibleChecksumError)
