"""Encoders: Arrow strings in, the ids of all tokens out, as one flat array.

All backends give the same ids. `rust`, the `tokenizers` library, is the reference; `memo` looks up
known words (memo.py); `nanotoken` and `gigatoken` are optional packages (fast.py), chosen by
choice.py if correct. `[MASK]` and the like in a text never become special tokens. An encoder uses
one core.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from tokenizers import Tokenizer

from rungwise.core.storage.folder import Folder
from rungwise.tokenizer.cutting import find_rules
from rungwise.tokenizer.fast import GigaEncoder, NanoEncoder, Package
from rungwise.tokenizer.files import FILE
from rungwise.tokenizer.memo import MemoEncoder
from rungwise.tokenizer.rust import Encoded, RustEncoder, TextEncoder

__all__ = ["Backend", "Encoded", "EncoderChoice", "TextEncoder", "cached_encoder", "make_encoder"]

Backend = Literal["rust", "memo"] | Package


@dataclass(frozen=True)
class EncoderChoice:
    """A backend, the verified version if it is a package, and why it is not faster (`notice`). Sent
    to every worker, so that verification runs once per stage."""

    backend: Backend = "memo"
    version: str = ""
    notice: str | None = None


_CACHED = 2  # each may take 300 MB; the oldest is dropped
_cache: dict[tuple[str, EncoderChoice], TextEncoder] = {}


def make_encoder(tokenizer: Tokenizer, backend: Backend = "memo") -> TextEncoder:
    """Return an encoder for `tokenizer`, which must not be trained further.

    With "memo", a tokenizer whose texts cannot be cut safely gets the reference. Raises UserError
    if a package is not installed, ConfigError if it does not support this tokenizer.
    """
    if backend == "nanotoken":
        return NanoEncoder(tokenizer)
    if backend == "gigatoken":
        return GigaEncoder(tokenizer)
    if backend == "memo" and (rules := find_rules(tokenizer)) is not None:
        return MemoEncoder(tokenizer, rules)
    return RustEncoder(tokenizer)


def cached_encoder(folder: Folder, choice: EncoderChoice = EncoderChoice()) -> TextEncoder:
    """Return the encoder of the artifact in `folder`, kept in this process with its memo.

    A Ray worker process runs one task after another; each would start with an empty memo. If the
    installed version of a package is not the verified one, the memo encodes.
    """
    data = folder.read_bytes(FILE)
    key = (hashlib.sha256(data).hexdigest(), choice)
    if key not in _cache:
        while len(_cache) >= _CACHED:
            del _cache[next(iter(_cache))]
        trusted = not choice.version or choice.version == installed_version(choice.backend)
        _cache[key] = make_encoder(
            Tokenizer.from_str(data.decode("utf-8")), choice.backend if trusted else "memo"
        )
    return _cache[key]


def installed_version(package: str) -> str:
    """Return the version of a package, or "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
