"""Gigatoken, an optional package: byte-level BPE several times faster than the memo.

It takes GPT-2's and its like: byte-level BPE without a normalizer. Where words begin it does not
tell; asked for that, the memo encodes instead, with the same ids.
"""

from __future__ import annotations

import json
from importlib import import_module

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from rungwise.core.errors import ConfigError, UserError
from rungwise.tokenizer.cutting import rules_of
from rungwise.tokenizer.memo import MemoEncoder, bytes_of
from rungwise.tokenizer.rust import Encoded, id_type


class GigaEncoder:
    """Every text goes through gigatoken, in this thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises UserError if gigatoken is missing, ConfigError if it cannot do `tokenizer`."""
        try:
            self._awkward = import_module("awkward")
            gigatoken = import_module("gigatoken")
        except ImportError as error:
            raise UserError(
                "the encoder 'gigatoken' needs a package that is not installed; run "
                "pip install 'rungwise[fast]', or choose 'memo'"
            ) from error
        data = json.loads(tokenizer.to_str())
        rules = rules_of(tokenizer)
        model, normalizer = data["model"], data["normalizer"]
        if rules is None or rules.punctuation != "classes" or normalizer is not None:
            what = "a normalizer" if normalizer is not None else f"{model['type']} of this form"
            raise ConfigError(
                "the encoder 'gigatoken' does byte-level BPE as GPT-2's, found "
                f"{what}; choose 'memo', or train with tokenizer.kind=byte_bpe "
                "tokenizer.lowercase=false"
            )
        # Text is text: without their names no special token is found in it.
        data |= {"added_tokens": [], "post_processor": None}
        self._encode = gigatoken.Tokenizer.from_json(json.dumps(data)).encode_batch
        self._memo = MemoEncoder(tokenizer, rules)
        self._dtype = id_type(tokenizer)

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        """See Encoder."""
        if words:
            return self._memo.encode(texts, words=True)
        offsets, data = bytes_of(texts)
        contents = self._awkward.contents
        characters = contents.NumpyArray(data, parameters={"__array__": "char"})
        strings = contents.ListOffsetArray(
            self._awkward.index.Index64(offsets), characters, parameters={"__array__": "string"}
        )
        found = self._encode(self._awkward.Array(strings), parallel=False).layout
        ends = np.asarray(found.offsets.data, np.int64)
        ids = np.asarray(found.content.data)[ends[0] : ends[-1]]
        return Encoded(ids.astype(self._dtype, copy=False), np.diff(ends))
