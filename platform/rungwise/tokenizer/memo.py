"""The memo encoder: cuts texts into pieces, and tokenises only those that it has not seen before.

A cut must be a border between pre-tokens whatever surrounds it, and the normalizer must not act
across it. Only normalizers and pre-tokenizers proved safe here have rules:

    blanks   before an ASCII blank: nothing composes with it
    marks    also on both sides of ASCII punctuation before an ASCII byte, where each mark stands
             alone; before another byte it may be the base of a composed letter, as in = + U+0338
    classes  also between ASCII letters, digits and punctuation, except after an apostrophe ('s is
             one pre-token): no other alternative of GPT-2's expression mixes two of these
"""

import json
import string
from collections.abc import Mapping
from itertools import repeat
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, models

from rungwise.tokenizer.reference import (
    Encoded,
    ReferenceEncoder,
    copy_tokenizer,
    id_type,
    word_starts,
)
from rungwise.tokenizer.training import EVERY_CHARACTER, SPECIAL_IS_TEXT

CutRule = Literal["blanks", "marks", "classes"]

_BLANK, _LETTER, _DIGIT, _MARK = 1, 2, 3, 4
_CLASSES = np.zeros(256, np.uint8)
_CLASSES[ord(" ")] = _BLANK
_CLASSES[list(string.ascii_letters.encode())] = _LETTER
_CLASSES[list(string.digits.encode())] = _DIGIT
_CLASSES[list(string.punctuation.encode())] = _MARK


def find_cuts(data: NDArray[np.uint8], rule: CutRule) -> NDArray[np.bool_]:
    """Return True at each byte of UTF-8 `data` where a piece may begin."""
    classes = np.take(_CLASSES, data)
    cuts = classes == _BLANK
    left, right = classes[:-1], classes[1:]
    if rule == "marks":
        alone = classes == _MARK
        alone[:-1] &= data[1:] < 0x80
        cuts[1:] |= alone[:-1]
        # A mark after a blank forms one piece with it.
        alone[1:] &= left != _BLANK
        cuts |= alone
    elif rule == "classes":
        cuts[1:] |= (left != right) & (left > _BLANK) & (right > _BLANK) & (data[:-1] != ord("'"))
    return cuts


def is_border(piece: str) -> bool:
    """Whether a piece that was cut off before its blank, if any, is one of the whole text. GPT-2's
    expression takes white space up to the last blank as one pre-token."""
    return piece[:1] != " " or (len(piece) > 1 and not piece[1].isspace())


def find_rule(tokenizer: Tokenizer) -> CutRule | None:
    """Return the rule for `tokenizer`, or None if cutting its texts is not known to be safe."""
    if any(not token.special for token in tokenizer.get_added_tokens_decoder().values()):
        return None
    if any(getattr(tokenizer.model, name, None) for name in ("dropout", "alpha", "nbest_size")):
        # Sampling: no two calls give the same pieces.
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if max(vocabulary.values(), default=-1) >= len(vocabulary):
        # The separator of _PieceTokenizer would get an id in use.
        return None
    # Without the vocabulary, to keep the JSON short.
    shell = Tokenizer(models.WordLevel({}, unk_token=""))
    if tokenizer.normalizer is not None:
        shell.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        shell.pre_tokenizer = tokenizer.pre_tokenizer
    data = json.loads(shell.to_str())
    normalizers = {part["type"] for part in _parts(data["normalizer"], "normalizers")}
    composes = normalizers <= {"NFC", "NFD", "Lowercase"}
    drops_blanks = normalizers <= {"NFC", "NFD", "Lowercase", "StripAccents", "BertNormalizer"}
    match [_split_kind(part) for part in _parts(data["pre_tokenizer"], "pretokenizers")]:
        case ["bert"] if drops_blanks:
            return "marks"
        case ["blank"] | ["blank", "bracket"] if drops_blanks:
            return "blanks"
        case ["metaspace"] | ["metaspace", "bracket"] if composes:
            return "blanks"
        case ["bytes"] if composes:
            return "classes"
        case ["character"] if composes:
            return "marks"
    return None


def _parts(data: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if data is None:
        return []
    if data["type"] == "Sequence":
        return [inner for part in data[key] for inner in _parts(part, key)]
    return [data]


def _split_kind(part: Mapping[str, Any]) -> str:
    match part:
        case {"type": "BertPreTokenizer"}:
            return "bert"
        case {"type": "WhitespaceSplit"}:
            return "blank"
        # Scheme "first" depends on a piece's position in the text.
        case {"type": "Metaspace", "split": True, "prepend_scheme": "always" | "never"}:
            return "metaspace"
        case {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}:
            return "bytes"
        case {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": pattern}:
            # "bracket" is the rule that keeps `[MASK]` as text; it ignores blanks.
            kinds = {EVERY_CHARACTER: "character", SPECIAL_IS_TEXT: "bracket"}
            return kinds.get(pattern.get("Regex", ""), "unknown")
    return "unknown"


_MOST_CHARACTERS = 8_000_000  # of a memo's pieces; a full one takes some 300 MB
_PIECES_A_CALL = 100  # the library is slower again with several hundred
_PRIVATE_USE = range(0xE000, 0xF900)


class MemoEncoder:
    """Encodes by looking up pieces; a full memo is emptied, which changes no id."""

    def __init__(self, tokenizer: Tokenizer, rule: CutRule) -> None:
        self._rule: CutRule = rule
        self._pieces = _PieceTokenizer(tokenizer)
        self._dtype = id_type(tokenizer)
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[str, int] = {}  # of each piece, its place in `lengths`
        self.characters = 0
        self._ids = np.zeros(0, self._dtype)
        self._lengths = np.zeros(0, np.int64)
        self._word_starts = np.zeros(0, np.bool_)

    def encode(self, texts: pa.StringArray, words: bool = False) -> Encoded:
        offsets, data = text_bytes(texts)
        opens_text = np.zeros(len(data), np.bool_)
        opens_text[offsets[:-1][offsets[:-1] < offsets[1:]]] = True
        cuts = opens_text | find_cuts(data, self._rule)
        pieces, numbers = _number_pieces(data, cuts)
        is_unsafe = np.array([not is_border(piece) for piece in pieces], np.bool_)
        if is_unsafe.any():
            begins = np.flatnonzero(cuts)
            text = np.searchsorted(offsets, begins, side="right") - 1
            cuts[begins[np.isin(text, text[is_unsafe[numbers]])]] = False
            cuts |= opens_text
            pieces, numbers = _number_pieces(data, cuts)
        entries = self._look_up(pieces)[numbers]
        counts = self._lengths[entries]
        sources = (np.cumsum(self._lengths) - self._lengths)[entries]
        ends = np.append(0, np.cumsum(counts))
        # [N]: index of each token in those of the memo, consecutive for each piece.
        places = np.repeat(sources - ends[:-1], counts)
        places += np.arange(len(places))
        first_pieces = np.searchsorted(np.flatnonzero(cuts), offsets)  # [P + 1]: of each text
        return Encoded(
            np.take(self._ids, places),
            np.diff(ends[first_pieces]),
            np.take(self._word_starts, places) if words else None,
        )

    def _look_up(self, pieces: list[str]) -> NDArray[np.int64]:
        """Return the entry of each piece; new pieces get one."""
        if self.characters > _MOST_CHARACTERS:
            self._clear()
        entries = np.fromiter(map(self._numbers.get, pieces, repeat(-1)), np.int64, len(pieces))
        missing = np.flatnonzero(entries < 0)
        if len(missing):
            new = [pieces[index] for index in missing.tolist()]
            entries[missing] = len(self._lengths) + np.arange(len(new))
            self._numbers |= zip(new, entries[missing].tolist(), strict=True)
            self.characters += sum(map(len, new))
            ids, lengths, starts = self._pieces.encode(new)
            self._ids = np.concatenate([self._ids, ids.astype(self._dtype)])
            self._lengths = np.concatenate([self._lengths, lengths])
            self._word_starts = np.concatenate([self._word_starts, starts])
        return entries


class _PieceTokenizer:
    """Tokenises many pieces in one call, which costs as much as several words: they are joined by a
    separator that is a special token here, the only one, and the ids are split at it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = copy_tokenizer(tokenizer)
        self._separator = next(
            chr(code) for code in _PRIVATE_USE if tokenizer.token_to_id(chr(code)) is None
        )
        self._tokenizer.add_special_tokens([AddedToken(self._separator, normalized=False)])
        self._cut = self._tokenizer.token_to_id(self._separator)
        self._alone = ReferenceEncoder(tokenizer)

    def encode(
        self, pieces: list[str]
    ) -> tuple[NDArray[np.integer], NDArray[np.int64], NDArray[np.bool_]]:
        """Return all ids, the tokens of each piece, and True at the first token of each word."""
        ids, lengths, starts = [], [], []
        for begin in range(0, len(pieces), _PIECES_A_CALL):
            batch = pieces[begin : begin + _PIECES_A_CALL]
            text = self._separator.join(batch)
            if text.count(self._separator) == len(batch) - 1:
                encoding = self._tokenizer.encode(text, add_special_tokens=False)
                joined = np.array(encoding.ids, np.int64)
                cuts = joined == self._cut
                places = np.concatenate([[-1], np.flatnonzero(cuts), [len(joined)]])
                ids.append(joined[~cuts])
                lengths.append(np.diff(places) - 1)
                starts.append(word_starts(encoding)[~cuts])
            else:
                alone = self._alone.encode(pa.array(batch, pa.string()), words=True)
                ids.append(alone.ids)
                lengths.append(alone.lengths)
                starts.append(alone.word_starts)
        return np.concatenate(ids), np.concatenate(lengths), np.concatenate(starts)


def _number_pieces(
    data: NDArray[np.uint8], cuts: NDArray[np.bool_]
) -> tuple[list[str], NDArray[np.int32]]:
    """Return the distinct pieces of `data`, which begin at `cuts`, and the number of each piece."""
    begins = np.flatnonzero(cuts)
    offsets = pa.py_buffer(np.append(begins, len(data)).astype(np.int32))
    pieces = pa.StringArray.from_buffers(len(begins), offsets, pa.py_buffer(data))
    encoded = pieces.dictionary_encode()
    return encoded.dictionary.to_pylist(), int32_values(encoded.indices)


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
