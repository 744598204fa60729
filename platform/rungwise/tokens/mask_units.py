"""Find where mask units begin, the units that are masked as one: a bit per token in each shard.

A unit is a word (pre-token) of the tokenizer, or a span of characters that belong together:

    Chinese words      han characters are single tokens, so a segmenter finds the words
                       (whole-word masking of Cui et al. 2021, arXiv:1906.08101)
    phrases, entities  spans of the corpus, or the phrases of a list (ERNIE, Sun et al. 2019,
                       arXiv:1904.09223)

A token begins a unit unless it lies inside an earlier one. A token across the border of two units
therefore merges them, and so do overlapping spans. Texts with only the tokenizer's words go
through the encoder, which is several times faster.

P texts, N tokens, S spans, C characters
"""

from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time
from numpy.typing import NDArray
from pydantic import model_validator
from tokenizers import Tokenizer

from rungwise.core.configuration.config import Config
from rungwise.core.errors import DataError
from rungwise.tokenizer.reference import Encoded, ReferenceEncoder, TextEncoder
from rungwise.tokens.segmenters import HAN, Segmenter, jieba_words, read_entries, word_list_words


class MaskUnitsConfig(Config):
    """Units for masking besides the tokenizer's words.

    `jieba` is the segmenter of that name with its own dictionary. Its guesses at unknown words are
    off: they lower its agreement with the gold segmentation of the second SIGHAN bakeoff.
    `word_list` takes the longest word of a list from left to right.
    """

    segmenter: Literal["none", "jieba", "word_list"] = "none"  # how Chinese words are found
    word_list: str | None = None  # UTF-8 file with a word per line, for segmenter word_list
    phrases: str | None = None  # UTF-8 file with a phrase per line, matched in any case; null: none

    @model_validator(mode="after")
    def _list_for_segmenter(self) -> Self:
        if (self.segmenter == "word_list") != (self.word_list is not None):
            raise ValueError(
                "segmenter: word_list and the path word_list need each other, found "
                f"segmenter {self.segmenter!r} and word_list {self.word_list!r}"
            )
        return self


def encode_units(
    texts: pa.StringArray,
    encoder: TextEncoder,
    tokenizer: Tokenizer,
    config: MaskUnitsConfig,
    spans: pa.ListArray | None = None,
) -> Encoded:
    """Return the tokens of `texts` as `encoder` gives them, with `word_starts` where units begin.

    `tokenizer` belongs to `encoder`. `spans` has per text a list start 0, end 0, start 1, ..., in
    its characters. Raises DataError for an invalid span or an unreadable list, and UserError if the
    segmenter is not installed.
    """
    units = np.concatenate([_spans(texts, spans), _phrases(texts, config)])
    has_units = np.zeros(len(texts), dtype=np.bool_)
    has_units[units[:, 0]] = True
    if config.segmenter != "none":
        has_units |= pc.match_substring_regex(texts, f"[{HAN}]").to_numpy(zero_copy_only=False)  # pyright: ignore[reportAttributeAccessIssue]
    if not has_units.any():
        return encoder.encode(texts, words=True)
    units[:, 0] = (np.cumsum(has_units) - 1)[units[:, 0]]
    segmenter = jieba_words() if config.segmenter == "jieba" else None
    if config.word_list is not None:
        segmenter = word_list_words(read_entries("word_list", config.word_list))
    selection = texts.filter(pa.array(has_units)).to_pylist()
    with_units = _encode_with_units(selection, tokenizer, segmenter, units)
    if has_units.all():
        return with_units
    plain = encoder.encode(texts.filter(pa.array(~has_units)), words=True)
    lengths = _interleave(has_units, with_units.lengths, plain.lengths)
    is_unit_text = np.repeat(has_units, lengths)
    return Encoded(
        _interleave(is_unit_text, with_units.ids, plain.ids),
        lengths,
        _interleave(is_unit_text, with_units.word_starts, plain.word_starts),
    )


def _interleave(mask: NDArray[np.bool_], values: Any, others: Any) -> Any:
    """Return `values` where `mask` is True and `others` elsewhere, each in order."""
    result = np.empty(len(mask), values.dtype)
    result[mask], result[~mask] = values, others
    return result


def _encode_with_units(
    texts: list[str],
    tokenizer: Tokenizer,
    segmenter: Segmenter | None,
    units: NDArray[np.int64],  # (S, 3) text, start, end
) -> Encoded:
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
            for start, end in (segmenter(text) if segmenter else ())
        ],
        np.int64,
    ).reshape(-1, 2)
    spans = np.concatenate([units[:, 1:] + text_begin[units[:, 0], None], han])
    characters = int(sizes.sum())
    inside = _mark_covered(spans[:, 0] + 1, spans[:, 1], characters)  # without the first character
    in_han = _mark_covered(han[:, 0], han[:, 1], characters)

    start, before_end = offsets[1:, 0], offsets[:-1, 1]
    shares_a_character = start < before_end
    # The segmenter's words replace the tokenizer's, which may be whole runs of han.
    segmented = in_han[start] | in_han[np.maximum(before_end - 1, 0)]
    starts = np.ones(len(words), np.bool_)
    starts[1:] = ~(shares_a_character | inside[start] | (~words[1:] & ~segmented))
    starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
    return Encoded(encoded.ids, lengths, starts)


def _mark_covered(
    starts: NDArray[np.int64], ends: NDArray[np.int64], characters: int
) -> NDArray[np.bool_]:
    """(C,) True in any [start, end)."""
    steps = np.bincount(starts, minlength=characters + 1)
    steps -= np.bincount(ends, minlength=characters + 1)
    return np.cumsum(steps)[:characters] > 0


def _spans(texts: pa.StringArray, spans: pa.ListArray | None) -> NDArray[np.int64]:
    """Return the spans that came with the texts, (S, 3): text, start, end."""
    if spans is None:
        return np.empty((0, 3), np.int64)
    assert len(spans) == len(texts), f"{len(spans)} lists of spans for {len(texts)} texts"
    counts = spans.value_lengths().fill_null(0).to_numpy()
    odd = np.flatnonzero(counts % 2)
    if len(odd):
        raise DataError(
            f"spans: expected pairs of a start and an end, found {counts[odd[0]]} numbers for "
            f"{_quote(texts[odd[0]])}"
        )
    pairs = spans.flatten().to_numpy().reshape(-1, 2)
    text = np.repeat(np.arange(len(texts)), counts // 2)
    characters = pc.utf8_length(texts).to_numpy()[text]  # pyright: ignore[reportAttributeAccessIssue]
    bad = np.flatnonzero(
        (pairs[:, 0] < 0) | (pairs[:, 0] >= pairs[:, 1]) | (pairs[:, 1] > characters)
    )
    if len(bad):
        start, end = pairs[bad[0]]
        raise DataError(
            f"spans: expected 0 <= start < end <= {characters[bad[0]]}, the characters of "
            f"{_quote(texts[text[bad[0]]])}; found [{start}, {end})"
        )
    return np.column_stack([text, pairs]).astype(np.int64)


def _quote(text: pa.StringScalar) -> str:
    content = text.as_py()
    return repr(content if len(content) <= 40 else content[:37] + "...")


def _phrases(texts: pa.StringArray, config: MaskUnitsConfig) -> NDArray[np.int64]:
    """Find the phrases of the list in the texts, (S, 3): text, start, end."""
    matches: list[tuple[int, int, int]] = []
    if config.phrases is not None:
        entries = read_entries("phrases", config.phrases)
        for index, text in enumerate(texts.to_pylist()):
            matches += [(index, start, end) for start, end in entries.matches(text)]
    return np.array(matches, np.int64).reshape(-1, 3)
