"""Names and texts that MLflow and the databases below it take.

MLflow refuses a whole batch for one name with a character such as `(` or `+`, so each is made
acceptable by itself. The same name always becomes the same one, and different names stay different.
"""

import hashlib
import re

PARAM_CHARACTERS = 6000  # MLflow's own limit
TAG_CHARACTERS = 5000
_NAME_CHARACTERS = 250
_OTHER = re.compile(r"[^/\w.\- :]+")
_DOTS = re.compile(r"(?<![^/])\.+(?![^/])")  # a part of a path such as `..`


def acceptable_name(name: str) -> str:
    """The name of a metric, parameter or tag as MLflow takes it; unchanged if it takes it already.
    Others end with four bytes of their hash, so that `C++` and `C#` stay two."""
    parts = [part for part in _DOTS.sub("-", _OTHER.sub("-", name)).split("/") if part]
    cleaned = "/".join(parts) or "-"
    if cleaned == name and len(name) <= _NAME_CHARACTERS:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{cleaned[: _NAME_CHARACTERS - len(digest) - 1]}-{digest}"


def acceptable_text(text: str, characters: int) -> str:
    """A value as databases take it: without NUL and half surrogate pairs, and cut to a length."""
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return text if len(text) <= characters else text[: characters - 1] + "…"
