"""Notes: what a killed stage leaves for its next attempt, checked before it is trusted.

No record lists these files. A note has a digest of its own and those of the files that it marks as
done. If one of them was damaged or edited, the note counts as missing and its work is done again.
"""

import json
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rungwise.core.stages.artifact import seal, unseal
from rungwise.core.storage.folder import Folder

logger = logging.getLogger(__name__)

_NO_FILES: Mapping[str, str] = MappingProxyType({})


def write_note(
    output: Folder, name: str, content: Any, files: Mapping[str, str] = _NO_FILES
) -> None:
    """Write a note of plain JSON data that marks `files`, sha256 by name, as done."""
    note = seal({"content": content, "files": dict(files)})
    output.write_bytes(name, json.dumps(note).encode())


def read_note(output: Folder, name: str) -> Any:
    """Return the content of a note; None if there is none, or it or a file of its was changed."""
    if not output.exists(name):
        return None
    try:
        note = unseal(json.loads(output.read_bytes(name)))
        if all(output.sha256(file) == digest for file, digest in note["files"].items()):
            return note["content"]
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        pass
    logger.warning("%s or a file of its was damaged: its work is done again", output.path(name))
    return None
