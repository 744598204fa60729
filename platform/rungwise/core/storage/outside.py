"""Files from outside that a stage reads: those that match a key's patterns, and their digest."""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rungwise.core.errors import ConfigError, DataError
from rungwise.core.public_data import how_to_get
from rungwise.core.storage import archives
from rungwise.core.storage.source_files import SourceFile, data_files, from_here
from rungwise.core.storage.store_errors import explain_connection_errors

# Files (also .gz), folders and globs, local, s3:// or hf://, and members of .zip and .tar; one or a
# list.
Paths = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    Field(min_length=1),
]


def list_matching_files(patterns: Sequence[str], key: str) -> list[SourceFile]:
    """List the files that `patterns` match, sorted, each once; `key` is their key in the config.
    Raises ConfigError if a pattern matches nothing, DataError if all files are empty."""
    files: dict[str, SourceFile] = {}
    for pattern in patterns:
        with explain_connection_errors(pattern, key):
            matched = data_files(archives.find(pattern))
        if not matched:
            raise ConfigError(
                f"{key}: no file matches {pattern!r}{from_here(pattern)}; expected a file, "
                f"folder or glob{how_to_get(pattern)}"
            )
        files |= {file.uri: file for file in matched if file.uri not in files}
    if not any(file.size_bytes for file in files.values()):
        empty = f"{len(files)} empty files that match {', '.join(patterns)}"
        raise DataError.at(key, "data", empty, f"change {key}")
    return sorted(files.values(), key=lambda file: (file.name, file.uri))


def digest(patterns: Sequence[str], key: str) -> dict[str, Any]:
    """The number of matching files, their size, and one digest of their names and bytes."""
    files, sha256 = list_matching_files(patterns, key), hashlib.sha256()
    for file in files:
        with explain_connection_errors(file.uri, key):
            sha256.update(f"{file.name}\0{file.digest()}\n".encode())
    return {
        "files": len(files),
        "bytes": sum(file.size_bytes for file in files),
        "sha256": sha256.hexdigest(),
    }
