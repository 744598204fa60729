"""Encoders from other packages: nanotoken for WordPiece, gigatoken for byte-level BPE.

Both are many times faster than the memo, but young: encoder.py proves them against the reference
before use. They get no special tokens, so they recognise none in a text.
"""

from importlib import import_module
from types import ModuleType
from typing import Literal

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, models, pre_tokenizers

from rungwise.core.errors import ConfigError, UserError
from rungwise.tokenizer.cutting import find_rule
from rungwise.tokenizer.memo import MemoEncoder, text_bytes
from rungwise.tokenizer.reference import Encoded, id_type, own_copy

Package = Literal["nanotoken", "gigatoken"]


def matching_package(tokenizer: Tokenizer) -> Package | None:
    """Return the package made for `tokenizer`, installed or not."""
    rule = find_rule(tokenizer)
    model, splitter = tokenizer.model, tokenizer.pre_tokenizer
    # WordPiece as BERT's: each mark is a word, so no word begins with "##" and pieces show words.
    if (
        rule == "marks"
        and isinstance(model, models.WordPiece)
        and isinstance(splitter, pre_tokenizers.BertPreTokenizer)
        and model.continuing_subword_prefix == "##"
    ):
        return "nanotoken"
    return "gigatoken" if rule == "classes" and tokenizer.normalizer is None else None


def _import_package(package: Package) -> ModuleType:
    try:
        return import_module(package)
    except ImportError as error:
        raise UserError(
            f"the encoder '{package}' is not installed; run pip install {package}, or choose 'memo'"
        ) from error


class NanoEncoder:
    """Encodes every text with nanotoken, in this thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raise UserError if nanotoken is missing, ConfigError for an unsupported tokenizer."""
        nanotoken = _import_package("nanotoken")
        if matching_package(tokenizer) != "nanotoken":
            raise ConfigError(
                "the encoder 'nanotoken' does WordPiece as BERT's, found another tokenizer; choose "
                "'auto', or train with tokenizer.kind=wordpiece"
            )
        self._encode = nanotoken.WordPieceTokenizer.from_json(
            own_copy(tokenizer).to_str()
        ).encode_batch
        self._dtype = id_type(tokenizer)
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        # [V]: whether each token begins a word; `[UNK]` is a whole word.
        self._begins_word = np.ones(max(vocabulary.values(), default=-1) + 1, np.bool_)
        inner = [index for piece, index in vocabulary.items() if piece.startswith("##")]
        self._begins_word[inner] = False
        unknown = tokenizer.token_to_id(tokenizer.model.unk_token)
        if unknown is not None:
            self._begins_word[unknown] = True

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        ids, ends = self._encode(texts.to_pylist(), add_special_tokens=False, parallel=False)
        starts = np.take(self._begins_word, ids) if words else None
        return Encoded(ids.astype(self._dtype, copy=False), np.diff(ends), starts)


class GigaEncoder:
    """Encodes every text with gigatoken, in this thread; the memo finds word starts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raise UserError if gigatoken is missing, ConfigError for an unsupported tokenizer."""
        gigatoken = _import_package("gigatoken")
        if matching_package(tokenizer) != "gigatoken":
            raise ConfigError(
                "the encoder 'gigatoken' does byte-level BPE as GPT-2's without a normalizer, "
                "found another tokenizer; choose 'auto', or train with tokenizer.kind=byte_bpe "
                "tokenizer.lowercase=false"
            )
        self._awkward = import_module("awkward")
        self._encode = gigatoken.Tokenizer.from_json(own_copy(tokenizer).to_str()).encode_batch
        self._memo = MemoEncoder(tokenizer, "classes")
        self._dtype = id_type(tokenizer)

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        if words:
            return self._memo.encode(texts, words=True)
        offsets, data = text_bytes(texts)
        contents = self._awkward.contents
        characters = contents.NumpyArray(data, parameters={"__array__": "char"})
        strings = contents.ListOffsetArray(
            self._awkward.index.Index64(offsets), characters, parameters={"__array__": "string"}
        )
        layout = self._encode(self._awkward.Array(strings), parallel=False).layout
        ends = np.asarray(layout.offsets.data, np.int64)
        ids = np.asarray(layout.content.data)[ends[0] : ends[-1]]
        return Encoded(ids.astype(self._dtype, copy=False), np.diff(ends))
