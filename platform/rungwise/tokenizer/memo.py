"""The memo encoder: cuts a text into pieces and tokenises only those not seen before.

Real text repeats its words: 4 in 100 pieces of the first 8 MB of English are new, later 1 in 100.
Texts are cut (cutting.py) by offsets, Arrow numbers the pieces, a dict finds known ones, and numpy
gathers all ids. A library call costs as much as several words, so new pieces are joined by a
separator, a special token there, and the ids split at it. The ids always equal those of the whole
text in the library; where that is not certain, the whole text goes to the library.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer

from rungwise.tokenizer.cutting import Rules
from rungwise.tokenizer.reference import Encoded, ReferenceEncoder, id_type, own_copy, word_starts

_TEXT_BYTES_AT_ONCE = 8 << 20
_PIECES_A_CALL = 100  # the library is slower again with several hundred
_LONGEST_PIECE = 256  # characters; a text with a longer one is encoded whole
_WHOLE = 0  # the entry that means "tokenise this text whole"
_PRIVATE_USE = range(0xE000, 0xF900)


@dataclass(frozen=True)
class MemoLimits:
    """The limits at which a memo is emptied; a full one took 250 to 370 MB."""

    entries: int = 1_000_000
    characters: int = 64_000_000
    tokens: int = 16_000_000


class MemoEncoder:
    """Encodes by looking up pieces in a memo; `limits` affect memory, not results."""

    def __init__(
        self, tokenizer: Tokenizer, rules: Rules, limits: MemoLimits = MemoLimits()
    ) -> None:
        self._rules = rules
        self._whole = ReferenceEncoder(tokenizer)
        self._pieces = _PieceTokenizer(tokenizer, self._whole)
        self._dtype = id_type(tokenizer)
        self._limits = limits
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[str, int] = {}
        self.characters = 0
        self._begins = np.zeros(1, np.int64)  # [entries]: begin of the tokens in _ids
        self._counts = np.zeros(1, np.int64)  # [entries]: number of tokens
        self._ids = np.zeros(0, self._dtype)
        self._starts = np.zeros(0, np.bool_)

    @property
    def entries(self) -> int:
        return len(self._numbers)

    @property
    def tokens(self) -> int:
        return len(self._ids)

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        parts = [self._encode_some(some, words) for some in _split(texts)]
        if len(parts) == 1:
            return parts[0]
        starts = [part.word_starts for part in parts if part.word_starts is not None]
        return Encoded(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate(starts) if words else None,
        )

    def _encode_some(self, texts: pa.StringArray, words: bool) -> Encoded:
        offsets, data = text_bytes(texts)
        data = self._rules.normalize(data)
        flags = self._rules.find_cuts(data)
        flags[offsets[:-1][offsets[:-1] < offsets[1:]]] = True
        begins = np.flatnonzero(flags)
        offsets_of_pieces = pa.py_buffer(np.append(begins, len(data)).astype(np.int32))
        pieces = pa.StringArray.from_buffers(len(begins), offsets_of_pieces, pa.py_buffer(data))
        pieces = pieces.dictionary_encode()
        codes = int32_values(pieces.indices)  # [pieces]: index into the distinct ones
        numbers = self._look_up(pieces.dictionary)
        counts = self._counts[numbers][codes]
        sources = self._begins[numbers][codes]
        first_pieces = np.searchsorted(begins, offsets)  # [P + 1]: of each text
        ids, starts = self._ids, self._starts
        if (numbers == _WHOLE).any():
            unsafe = np.flatnonzero((numbers == _WHOLE)[codes])
            which = np.unique(np.searchsorted(first_pieces, unsafe, side="right") - 1)
            whole = self._whole.encode(texts.take(pa.array(which)), words)
            # The first piece of each of these texts stands for all its tokens.
            place = len(ids)
            for text, length in zip(which.tolist(), whole.lengths.tolist(), strict=True):
                begin, end = first_pieces[text], first_pieces[text + 1]
                counts[begin:end] = 0
                counts[begin], sources[begin] = length, place
                place += length
            ids = np.concatenate([ids, whole.ids])
            if words:
                assert whole.word_starts is not None
                starts = np.concatenate([starts, whole.word_starts])
        ends = np.append(0, np.cumsum(counts))
        # [N]: index of each token in `ids`: consecutive for each piece.
        places = np.repeat(sources - ends[:-1], counts)
        places += np.arange(len(places))
        encoded = Encoded(
            np.take(ids, places),
            np.diff(ends[first_pieces]),
            np.take(starts, places) if words else None,
        )
        if (
            self.entries > self._limits.entries
            or self.characters > self._limits.characters
            or self.tokens > self._limits.tokens
        ):
            self._clear()
        return encoded

    def _look_up(self, pieces: pa.StringArray) -> NDArray[np.int64]:
        keys = pieces.to_pylist()
        entries = np.fromiter(map(self._numbers.get, keys, repeat(-1)), np.int64, len(keys))
        missing = np.flatnonzero(entries < 0)
        if len(missing):
            entries[missing] = self._learn([keys[index] for index in missing.tolist()])
        return entries

    def _learn(self, keys: list[str]) -> list[int]:
        """Add entries for new pieces; too long or unsafely cut ones get _WHOLE."""
        numbers_of = self._numbers
        next_number = len(self._counts)
        new: list[str] = []
        numbers: list[int] = []
        for key in keys:
            # Where blanks make no tokens, "word" and " word" share an entry.
            word = key if self._rules.blank_is_text else key.lstrip(" ")
            number = numbers_of.get(word)
            if number is None:
                if not self._rules.is_safe_before(word) or len(word) > _LONGEST_PIECE:
                    numbers.append(_WHOLE)
                    continue
                number = numbers_of[word] = next_number + len(new)
                new.append(word)
            numbers_of[key] = number
            self.characters += len(key)
            numbers.append(number)
        if new:
            ids, counts, starts = self._pieces.encode(new)
            begins = len(self._ids) + np.cumsum(counts) - counts
            self._ids = np.concatenate([self._ids, ids.astype(self._dtype)])
            self._starts = np.concatenate([self._starts, starts])
            self._begins = np.concatenate([self._begins, begins])
            self._counts = np.concatenate([self._counts, counts])
        return numbers


class _PieceTokenizer:
    """Tokenises many pieces in one call."""

    def __init__(self, tokenizer: Tokenizer, alone: ReferenceEncoder) -> None:
        # The separator is the only special token, so no other is recognised in a text.
        self._tokenizer = own_copy(tokenizer)
        self._separator = next(
            chr(code) for code in _PRIVATE_USE if tokenizer.token_to_id(chr(code)) is None
        )
        self._tokenizer.add_special_tokens([AddedToken(self._separator, normalized=False)])
        self._cut = self._tokenizer.token_to_id(self._separator)
        self._alone = alone

    def encode(
        self, pieces: list[str]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return all ids, the tokens of each piece, and True at the first token of each word."""
        ids: list[NDArray[np.int64]] = []
        counts: list[NDArray[np.int64]] = []
        starts: list[NDArray[np.bool_]] = []
        for begin in range(0, len(pieces), _PIECES_A_CALL):
            batch = pieces[begin : begin + _PIECES_A_CALL]
            text = self._separator.join(batch)
            if text.count(self._separator) == len(batch) - 1:
                encoding = self._tokenizer.encode(text, add_special_tokens=False)
                piece_ids = np.array(encoding.ids, np.int64)
                cuts = piece_ids == self._cut
                places = np.concatenate([[-1], np.flatnonzero(cuts), [len(piece_ids)]])
                ids.append(piece_ids[~cuts])
                counts.append(np.diff(places) - 1)
                starts.append(word_starts(encoding)[~cuts])
            else:
                alone = self._alone.encode(pa.array(batch, pa.string()), words=True)
                assert alone.word_starts is not None
                ids.append(alone.ids.astype(np.int64))
                counts.append(alone.lengths)
                starts.append(alone.word_starts)
        return np.concatenate(ids), np.concatenate(counts), np.concatenate(starts)


def _split(texts: pa.StringArray) -> Iterator[pa.StringArray]:
    """Yield slices of about _TEXT_BYTES_AT_ONCE, whose pieces fit a processor's cache."""
    offsets, _ = text_bytes(texts)
    if len(texts) == 0:
        yield texts
    begin = 0
    while begin < len(texts):
        end = int(np.searchsorted(offsets, offsets[begin] + _TEXT_BYTES_AT_ONCE, side="right"))
        end = max(begin + 1, min(end - 1, len(texts)))
        yield texts.slice(begin, end - begin)
        begin = end


def text_bytes(texts: pa.StringArray) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the offsets of the texts, [P + 1], in their joined bytes, and these, not copied."""
    assert texts.null_count == 0, "a text is missing"
    _, offsets_buffer, data_buffer = texts.buffers()
    if len(texts) == 0 or offsets_buffer is None:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset :][: len(texts) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.zeros(0, np.uint8)
    return (offsets - offsets[0]).astype(np.int64), data[offsets[0] : offsets[-1]]


def int32_values(numbers: pa.Int32Array) -> NDArray[np.int32]:
    """View `numbers`, without nulls. `to_numpy` would import pandas: a quarter second."""
    buffer = numbers.buffers()[1]
    assert buffer is not None or len(numbers) == 0, "numbers without values"
    values = np.frombuffer(buffer, np.int32) if buffer else np.zeros(0, np.int32)
    return values[numbers.offset :][: len(numbers)]
