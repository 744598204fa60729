"""Keep passwords, tokens and signatures of URIs out of records, MLflow, spools and the terminal."""

from __future__ import annotations

import re
from typing import Any

# Everything up to the last @ after ://, since a password may contain any character but a blank.
# An @ after a slash belongs to a path unless a colon precedes the slash.
_USER_INFO = re.compile(r"(?<=://)(?:[^/@\s?]*:\S*|[^/@\s?]*)@")
# Secret values in a query: signatures of signed URLs, tokens.
_SECRET_VALUE = re.compile(
    r"([?&;][\w.-]*(?:signature|sig|token|secret|password|passwd|pwd|credential|api-?_?key)=)"
    r"[^&;\s]*",
    re.IGNORECASE,
)


def without_password(text: str) -> str:
    """Remove credentials and signatures from a URI, or from the URIs in a text."""
    return _SECRET_VALUE.sub(r"\1...", _USER_INFO.sub("", text))


def without_passwords(value: Any) -> Any:
    """Apply `without_password` to every string in plain data except keys."""
    if isinstance(value, str):
        return without_password(value)
    if isinstance(value, dict):
        return {key: without_passwords(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_passwords(item) for item in value]
    return value
