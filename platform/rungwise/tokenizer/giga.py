"""Gigatoken, an optional package: byte-level BPE several times faster than the memo.

It supports byte-level BPE without a normalizer, such as GPT-2's. It does not tell where words
begin; asked for that, the memo encodes instead, with the same ids.
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
    """Encodes every text with gigatoken, in this thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raise UserError if gigatoken is missing, ConfigError if `tokenizer` is unsupported."""
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
        # Without the names of special tokens none is recognised in a text.
        data |= {"added_tokens": [], "post_processor": None}
        self._encode = gigatoken.Tokenizer.from_json(json.dumps(data)).encode_batch
        self._memo = MemoEncoder(tokenizer, rules)
        self._dtype = id_type(tokenizer)

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        """Encode texts; see TextEncoder."""
        if words:
            return self._memo.encode(texts, words=True)
        offsets, data = bytes_of(texts)
        contents = self._awkward.contents
        characters = contents.NumpyArray(data, parameters={"__array__": "char"})
        strings = contents.ListOffsetArray(
            self._awkward.index.Index64(offsets), characters, parameters={"__array__": "string"}
        )
        layout = self._encode(self._awkward.Array(strings), parallel=False).layout
        ends = np.asarray(layout.offsets.data, np.int64)
        ids = np.asarray(layout.content.data)[ends[0] : ends[-1]]
        return Encoded(ids.astype(self._dtype, copy=False), np.diff(ends))
