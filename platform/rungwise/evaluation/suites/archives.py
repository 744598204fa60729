"""The files of published test sets as they are downloaded: plain, .gz, or in a .zip or .tar.gz."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from rungwise.core.errors import DataError
from rungwise.core.outside import matching
from rungwise.core.store_errors import reached


def json_lines(paths: Sequence[str], key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where it stands and the object of each line of all files that end in .jsonl.

    `key` is that of the paths in the config. Raises DataError for a file or a line that cannot be
    read, and where there is none.
    """
    found = False
    for name, data in members(paths, key):
        if not name.endswith((".jsonl", ".jsonl.gz")):
            continue
        for number, line in enumerate(text_of(name, data).splitlines(), start=1):
            if not line.strip():
                continue
            found = True
            where = f"{name}:{number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(
                    f"{where}: expected JSON, found none ({error}); change {key}"
                ) from None
            if not isinstance(row, dict):
                raise DataError(f"{where}: expected a JSON object, found {line:.40}; change {key}")
            yield where, row
    if not found:
        raise DataError(
            f"{key}: expected files of JSON Lines (*.jsonl), found none in {', '.join(paths)}; "
            f"change {key}"
        )


def text_of(name: str, data: bytes) -> str:
    """The text of a file. Raises DataError if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: expected UTF-8, found {error.reason}; fetch it again") from None


def members(paths: Sequence[str], key: str) -> Iterator[tuple[str, bytes]]:
    """The name and the bytes of each file that `paths` match, or that is in an archive of them.

    Raises DataError for one that is damaged; `key` is that of the paths in the config.
    """
    for file in matching(paths, key):
        with reached(file.uri, key), file.open() as stream:
            data = stream.read()
        try:
            yield file.name, gzip.decompress(data) if file.name.endswith(".gz") else data
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{file.uri}: cannot be unpacked ({error}); fetch it again") from error
