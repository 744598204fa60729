"""The reference encoder: the `tokenizers` library as it is."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from rungwise.core.errors import DataError


@contextlib.contextmanager
def refuse_panic() -> Iterator[None]:
    """Raise DataError where the tokenizers library gives up on a text: it panics, with an exception
    that is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"the tokenizers library gives up on a text ({error}); simplify the patterns of "
            "tokenizer.json, or leave the text out"
        ) from error


Ids = NDArray[np.uint16 | np.uint32]
_PARALLELISM = "TOKENIZERS_PARALLELISM"


@dataclass(frozen=True)
class Encoded:
    """The tokens of some texts. P texts, N tokens in all. `ids` [N]: of all texts in order; uint16
    if every id of the vocabulary fits, else uint32. `lengths` [P]: the tokens of each text.
    `word_starts` [N]: True where a word (a pre-token of the tokenizer) begins; None unless
    requested."""

    ids: Ids
    lengths: NDArray[np.int64]
    word_starts: NDArray[np.bool_] | None = None


class TextEncoder(Protocol):
    """Encodes texts as ids. Not thread-safe."""

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        """Return the tokens without special ones; with `words`, also where words begin."""
        ...


class ReferenceEncoder:
    """Encodes every text with the `tokenizers` library."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = copy_tokenizer(tokenizer)
        self._dtype = id_type(tokenizer)

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        return self.join(self.encodings(texts.to_pylist(), words), words)

    def join(self, encodings: list[Encoding], words: bool) -> Encoded:
        """Return the tokens of the library's encodings."""
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        tokens = itertools.chain.from_iterable(encoding.ids for encoding in encodings)
        ids = np.fromiter(tokens, self._dtype, int(lengths.sum()))
        if not words:
            return Encoded(ids, lengths)
        starts = [np.empty(0, np.bool_), *map(word_starts, encodings)]
        return Encoded(ids, lengths, np.concatenate(starts))

    def encodings(self, texts: list[str], words: bool) -> list[Encoding]:
        """Return the library's encodings; with `words` they cost more."""
        encode = self._tokenizer.encode_batch if words else self._tokenizer.encode_batch_fast
        with one_thread(), refuse_panic():
            return encode(texts, add_special_tokens=False)


def word_starts(encoding: Encoding) -> NDArray[np.bool_]:
    """Return [N]: True at the first token of each word of `encoding`."""
    # A token without a word is one itself: None becomes NaN, which differs from itself.
    numbers = np.array(encoding.word_ids, np.float64)
    starts = np.ones(len(numbers), np.bool_)
    starts[1:] = numbers[1:] != numbers[:-1]
    return starts


def copy_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with the same model that finds no special tokens and truncates nothing."""
    if any(not token.special for token in tokenizer.get_added_tokens_decoder().values()):
        return disable_extras(Tokenizer.from_str(tokenizer.to_str()))
    # Special tokens are not recognised, so they are left out and the model is shared.
    copy = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        copy.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        copy.pre_tokenizer = tokenizer.pre_tokenizer
    return copy


def disable_extras(tokenizer: Tokenizer) -> Tokenizer:
    """Turn off special tokens, truncation and padding, so that all ids of a text return."""
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def id_type(tokenizer: Tokenizer) -> type[np.uint16 | np.uint32]:
    """Return the smallest type for every id of the vocabulary, which may have gaps."""
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    return np.uint16 if largest <= np.iinfo(np.uint16).max else np.uint32


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep the library to one thread, since a task has one core."""
    before = os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARALLELISM]
        else:
            os.environ[_PARALLELISM] = before
