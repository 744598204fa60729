"""Encoders: Arrow strings in, the ids of all tokens out, as one flat array.

Three backends give the same ids on every text. `rust` is the `tokenizers` library as it is and the
reference; `memo` looks up the words it has seen (memo.py); `gigatoken` is an optional package for
byte-level BPE. Text that contains `[MASK]` and the like is text, never a special token. An encoder
uses one core; on a cluster each task has its own.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from tokenizers import Tokenizer

from rungwise.core.storage import Folder
from rungwise.tokenizer.cutting import rules_of
from rungwise.tokenizer.files import FILE
from rungwise.tokenizer.memo import MemoEncoder
from rungwise.tokenizer.rust import Encoded, RustEncoder, TextEncoder

__all__ = ["Backend", "Encoded", "TextEncoder", "cached_encoder", "encoder_of"]

Backend = Literal["memo", "rust", "gigatoken"]
_CACHED = 2  # older memos are dropped, since each may take 300 MB
_cache: dict[tuple[str, Backend], TextEncoder] = {}


def encoder_of(tokenizer: Tokenizer, backend: Backend = "memo") -> TextEncoder:
    """An encoder for `tokenizer`, which must not be trained again; all give the same ids.

    With "memo" a tokenizer whose texts cannot safely be cut gets the reference encoder. Raises
    UserError if gigatoken is not installed or does not support this tokenizer.
    """
    if backend == "gigatoken":
        from rungwise.tokenizer.giga import GigaEncoder

        return GigaEncoder(tokenizer)
    if backend == "memo" and (rules := rules_of(tokenizer)) is not None:
        return MemoEncoder(tokenizer, rules)
    return RustEncoder(tokenizer)


def cached_encoder(folder: Folder, backend: Backend = "memo") -> TextEncoder:
    """The encoder of the artifact in `folder`, kept in this process with its memo.

    Ray gives a worker process one task after the other, and each would start with an empty memo.
    """
    data = folder.read_bytes(FILE)
    key = (hashlib.sha256(data).hexdigest(), backend)
    if key not in _cache:
        while len(_cache) >= _CACHED:
            del _cache[next(iter(_cache))]
        _cache[key] = encoder_of(Tokenizer.from_str(data.decode("utf-8")), backend)
    return _cache[key]
