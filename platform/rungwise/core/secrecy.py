"""Keep passwords, tokens and signatures of URIs out of records, MLflow, spools and the terminal."""

from __future__ import annotations

import re
from typing import Any

# Before the last @ of what follows ://. A password may hold any character but a blank; where no
# colon stands in front of a slash, an @ behind the slash belongs to a path.
_USER_INFO = re.compile(r"(?<=://)(?:[^/@\s?]*:\S*|[^/@\s?]*)@")
# Values of a query: signed addresses, tokens.
_SECRET_VALUE = re.compile(
    r"([?&;][\w.-]*(?:signature|sig|token|secret|password|passwd|pwd|credential|api-?_?key)=)"
    r"[^&;\s]*",
    re.IGNORECASE,
)


def without_password(text: str) -> str:
    """A URI, or text with URIs in it, without credentials and signatures, to show and store."""
    return _SECRET_VALUE.sub(r"\1...", _USER_INFO.sub("", text))


def without_passwords(value: Any) -> Any:
    """`value`, plain data, with every text in it, keys apart, as `without_password` gives it."""
    if isinstance(value, str):
        return without_password(value)
    if isinstance(value, dict):
        return {key: without_passwords(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_passwords(item) for item in value]
    return value
