"""The reference encoder: the `tokenizers` library as it is. Patterns that take it for ever are
refused by a bounded trial: repeated more often each time, what a pattern may match, and then what
it may not. A trial cannot prove that there is none."""

import contextlib
import functools
import itertools
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Encoding, Regex, Tokenizer, normalizers, pre_tokenizers

from rungwise.core.errors import DataError
from rungwise.core.tokens import Ids

_SECONDS = 0.02  # of the processor, for a text of at most a few hundred characters
_COUNTS = (12, 20, 30, 50, 100)  # of repetitions: a slow one is found before the library gives up
_MOST_ATOMS, _WIDEST = 60, 3
_STOPS = ("!", "\n", "\0")
_CHARACTERS = "aAzZ09 _-.,'\n\xe9\u0301\u4e2d"
_ATOM = re.compile(
    r"""\(\?\#[^)]*\) | \(\?(?:<?[=!]|>|<\w+>|[\w-]*:)? | \{\d*,?\d*\} | [()|*+?^$]  # no atom
    | (?P<atom>\\[pP]\{[^}]*\} | \\. | \[(?:\\.|\[(?:\\.|[^\]])*\]|(?<=\[)\^?\]|[^\]])*\] | .)""",
    re.VERBOSE | re.DOTALL,
)


def refuse_slow_patterns(tokenizer: Any, source: str) -> None:
    """Raise DataError for a tokenizer.json, parsed, with a pattern that may take for ever."""
    match tokenizer:
        case {"Regex": str(pattern)}:
            if (text := find_slow_text(pattern)) is not None:
                raise DataError(
                    f"{source}: the pattern {pattern!r:.80} may take for ever, as on {text!r:.60}; "
                    "write it so that a text can be matched in one way only"
                )
        case dict():
            # Not the vocabulary, which has no patterns and millions of entries.
            for key in tokenizer.keys() - {"model", "added_tokens"}:
                refuse_slow_patterns(tokenizer[key], source)
        case list():
            for each in tokenizer:
                refuse_slow_patterns(each, source)


@functools.cache
def find_slow_text(pattern: str) -> str | None:
    """Return a text on which the pattern takes too long; None if none of those tried does."""
    try:
        splitter = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception:  # no pattern, which whoever builds the tokenizer says
        return None
    for text in _texts(pattern):
        start = time.thread_time()
        try:
            with refuse_panic():
                splitter.pre_tokenize_str(text)
        except DataError:
            return text
        if time.thread_time() - start > _SECONDS:
            return text
    return None


def _texts(pattern: str) -> Iterator[str]:
    """Yield a few characters that atoms of the pattern match, repeated, behind those that the atoms
    before match, or behind nothing. What all atoms match stands at the end: without it the library
    may see that there is nothing to search."""
    atoms = [match["atom"] for match in _ATOM.finditer(pattern) if match["atom"]][:_MOST_ATOMS]
    samples = [_samples(atom, pattern) for atom in atoms] or [[""]]
    texts = ["".join(each) for each in zip(*samples, strict=True)]
    units = {
        (before, text[place : place + width]): None
        for text in texts
        for place in range(len(atoms))
        for width in range(1, _WIDEST + 1)
        for before in ("", texts[0][:place])
    }
    ends = ["", *(stop + texts[0] for stop in _STOPS)]
    for (before, unit), end, count in itertools.product(units, ends, _COUNTS):
        yield before + unit * count + end


def _samples(atom: str, pattern: str) -> list[str]:
    """Three characters that an atom matches, not always different ones."""
    try:
        remover = normalizers.Replace(Regex(atom), "")
    except Exception:  # a part of something else, such as a back reference
        return [atom[-1:]] * 3
    letters = sorted({*pattern, *_CHARACTERS})
    matches = [each for each in letters if not remover.normalize_str(each)] or [atom[-1:]]
    return [matches[0], matches[len(matches) // 2], matches[-1]]


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
