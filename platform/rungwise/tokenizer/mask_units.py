"""Find where mask units begin: words of the tokenizer or of a Chinese segmenter (whole-word masking
of Cui et al. 2021, arXiv:1906.08101). A token begins a unit unless it lies inside an earlier one.

N tokens, C characters"""

import functools
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time
from tokenizers import Tokenizer

from rungwise.core.arrays import Bools, Ints
from rungwise.core.configuration.config import Config
from rungwise.core.errors import UserError
from rungwise.tokenizer.encoder import Encoded, ReferenceEncoder, TextEncoder

Span = tuple[int, int]  # [start, end) in characters of one text
Segmenter = Callable[[str], Iterable[Span]]  # words that contain a han character

_HAN_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
# The characters that BERT's tokenizer treats as Chinese, for use inside [...].
HAN = "".join(f"{chr(first)}-{chr(last)}" for first, last in _HAN_BLOCKS)
_HAN_CHARACTER = re.compile(f"[{HAN}]")
# Scripts without blanks: han characters, kana, wide marks and forms.
_WIDE = re.compile(f"[{HAN}\u3000-\u30ff\uff00-\uffef]")


def find_blanks(words: Sequence[str]) -> list[str]:
    """Return what stands before each word where its sentence is written out: a blank or nothing.
    There is no blank beside Chinese and Japanese, and none at all in a Chinese text whose words are
    single characters, where 1997 is four of them."""
    if not _WIDE.search("".join(words)):
        return ["", *" " * (len(words) - 1)][: len(words)]
    by_character = all(len(word) == 1 for word in words)
    beside = [_WIDE.match(before[-1:]) or _WIDE.match(word) for before, word in pairwise(words)]
    return ["" if by_character or joins else " " for joins in (True, *beside)][: len(words)]


@functools.cache
def jieba_words() -> Segmenter:
    """Return jieba with its own dictionary, without guesses at unknown words. Raises UserError if
    the package is not installed."""
    try:
        with warnings.catch_warnings():
            # Its regular expressions raise newer syntax warnings.
            warnings.simplefilter("ignore")
            import jieba
    except ImportError as error:
        raise UserError(
            "instances.mask_units.segmenter: jieba needs a package that is not installed; run "
            "pip install 'rungwise[zh]'"
        ) from error
    jieba.setLogLevel(logging.WARNING)
    tokenizer = jieba.Tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        # Its default cache is in a folder that others can write, and is unmarshalled when read.
        tokenizer.tmp_dir = folder  # pyright: ignore[reportAttributeAccessIssue]
        tokenizer.initialize()

    def words(text: str) -> Iterator[Span]:
        end = 0
        for word in tokenizer.cut(text, HMM=False):
            start, end = end, end + len(word)
            if _HAN_CHARACTER.search(word):
                yield start, end

    return words


class MaskUnitsConfig(Config):
    """Units for masking besides the tokenizer's words.

    `jieba` is the segmenter of that name with its own dictionary. Its guesses at unknown words are
    off: they lower its agreement with the gold segmentation of the second SIGHAN bakeoff.
    """

    segmenter: Literal["none", "jieba"] = "none"  # how Chinese words are found


def encode_units(
    texts: pa.StringArray, encoder: TextEncoder, tokenizer: Tokenizer, config: MaskUnitsConfig
) -> Encoded:
    """Return the tokens of `texts` as `encoder` gives them, with `word_starts` where units begin.
    `tokenizer` belongs to `encoder`. Raises UserError if the segmenter is not installed."""
    if config.segmenter == "none":
        return encoder.encode(texts, words=True)
    has_han = pc.match_substring_regex(texts, f"[{HAN}]").to_numpy(zero_copy_only=False)  # pyright: ignore[reportAttributeAccessIssue]
    if not has_han.any():
        return encoder.encode(texts, words=True)
    segmented = _segment(texts.filter(pa.array(has_han)).to_pylist(), tokenizer, jieba_words())
    if has_han.all():
        return segmented
    plain = encoder.encode(texts.filter(pa.array(~has_han)), words=True)
    lengths = _interleave(has_han, segmented.lengths, plain.lengths)
    is_segmented = np.repeat(has_han, lengths)
    return Encoded(
        _interleave(is_segmented, segmented.ids, plain.ids),
        lengths,
        _interleave(is_segmented, segmented.word_starts, plain.word_starts),
    )


def _interleave(mask: Bools, values: Any, others: Any) -> Any:
    """Return `values` where `mask` is True and `others` elsewhere, each in order."""
    result = np.empty(len(mask), values.dtype)
    result[mask], result[~mask] = values, others
    return result


def _segment(texts: list[str], tokenizer: Tokenizer, segmenter: Segmenter) -> Encoded:
    """Encode texts with the library, and derive units from the offsets of tokens."""
    library = ReferenceEncoder(tokenizer)
    encodings = library.encodings(texts, words=True)
    encoded = library.join(encodings, words=True)
    lengths, words = encoded.lengths, encoded.word_starts
    assert words is not None
    offsets = np.array([pair for each in encodings for pair in each.offsets], np.int64)
    offsets = offsets.reshape(-1, 2)
    # Treat all texts as one, with a position that no token covers between them.
    sizes = np.fromiter(map(len, texts), np.int64, len(texts)) + 1
    text_begin = np.cumsum(sizes) - sizes
    offsets += np.repeat(text_begin, lengths)[:, None]
    han = np.array(
        [
            (begin + start, begin + end)
            for text, begin in zip(texts, text_begin.tolist(), strict=True)
            for start, end in segmenter(text)
        ],
        np.int64,
    ).reshape(-1, 2)
    characters = int(sizes.sum())
    inside = _mark_covered(han[:, 0] + 1, han[:, 1], characters)  # without the first character
    in_han = _mark_covered(han[:, 0], han[:, 1], characters)

    start, before_end = offsets[1:, 0], offsets[:-1, 1]
    shares_a_character = start < before_end
    # The segmenter's words replace the tokenizer's, which may be whole runs of han.
    segmented = in_han[start] | in_han[np.maximum(before_end - 1, 0)]
    starts = np.ones(len(words), np.bool_)
    starts[1:] = ~(shares_a_character | inside[start] | (~words[1:] & ~segmented))
    starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
    return Encoded(encoded.ids, lengths, starts)


def _mark_covered(starts: Ints, ends: Ints, characters: int) -> Bools:
    """(C,) True in any [start, end)."""
    steps = np.bincount(starts, minlength=characters + 1)
    steps -= np.bincount(ends, minlength=characters + 1)
    return np.cumsum(steps)[:characters] > 0
