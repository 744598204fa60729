"""Read published test sets as downloaded: plain, .gz, or in a .zip or .tar.gz."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from rungwise.core.errors import DataError
from rungwise.core.storage.outside import matching
from rungwise.core.storage.store_errors import reached
from rungwise.tasks.formats.base import split_lines


def json_lines(paths: Sequence[str], key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (location, object) for each line of all .jsonl files; `key` names the paths in errors.

    Raises DataError for a file or line that cannot be read, or if there is none.
    """
    is_empty = True
    for name, data in members(paths, key):
        if not name.endswith((".jsonl", ".jsonl.gz")):
            continue
        for number, line in enumerate(split_lines(read_text(name, data)), start=1):
            if not line.strip():
                continue
            is_empty = False
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
    if is_empty:
        raise DataError(
            f"{key}: expected files of JSON Lines (*.jsonl), found none in {', '.join(paths)}; "
            f"change {key}"
        )


def read_text(name: str, data: bytes) -> str:
    """Decode a file. Raises DataError if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: expected UTF-8, found {error.reason}; fetch it again") from None


def members(paths: Sequence[str], key: str) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of each file that `paths` match, in archives too; `key` names the paths.

    Raises DataError for a damaged file.
    """
    for file in matching(paths, key):
        with reached(file.uri, key), file.open() as stream:
            data = stream.read()
        try:
            yield file.name, gzip.decompress(data) if file.name.endswith(".gz") else data
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{file.uri}: cannot be unpacked ({error}); fetch it again") from error
