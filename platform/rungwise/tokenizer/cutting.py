"""Rules for cutting a text into pieces that, tokenised alone, give the tokens of the whole.

A cut must be a border between pre-tokens whatever surrounds it, and the normalizer must not act
across it. Only kinds of normalizers and pre-tokenizers proved safe here have rules; the texts of
others stay whole.

- Before an ASCII blank: a border for BERT's, GPT-2's, SentencePiece's and all pre-tokenizers
  trained here; nothing composes with it. GPT-2's expression takes ` ?\\p{L}+` and runs of white
  space up to the last one, so there only if no white space follows; else not `is_safe_before`.
- On both sides of ASCII punctuation before an ASCII byte, where punctuation always stands alone.
  (Before another byte it may be the base of a composed letter, as in `=` + U+0338.)
- Between ASCII letters, digits and punctuation for GPT-2's expression, except after an apostrophe
  (`'s` is one pre-token). No other alternative of the expression mixes two of these classes.
- On both sides of han characters U+4E00 to U+9FFF where each stands alone.
"""

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from rungwise.tokenizer.training import EVERY_CHARACTER, SPECIAL_IS_TEXT

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]

_BLANK, _LETTER, _DIGIT, _PUNCTUATION = 1, 2, 3, 4
_APOSTROPHE = ord("'")
# U+4E00 to U+9FFF in UTF-8: E4 B8 80 to E9 BF BF.
_FIRST_HAN, _LAST_HAN, _SECOND_OF_FIRST_HAN = 0xE4, 0xE9, 0xB8
_CLASSES = np.zeros(256, np.uint8)
_CLASSES[ord(" ")] = _BLANK
_CLASSES[ord("a") : ord("z") + 1] = _CLASSES[ord("A") : ord("Z") + 1] = _LETTER
_CLASSES[ord("0") : ord("9") + 1] = _DIGIT
_CLASSES[list(string.punctuation.encode())] = _PUNCTUATION
_LETTERS, _CASE_BIT = 26, np.uint8(0x20)


@dataclass(frozen=True)
class Rules:
    """The cutting rules of one tokenizer.

    `punctuation`: "alone" if each ASCII mark is a pre-token, "classes" for GPT-2's expression.
    `blank_is_text`: a blank is a token or part of one. `lowercase`: lower-casing ASCII letters
    first does not change the result.
    """

    punctuation: Literal["alone", "classes"] | None = None
    han: bool = False
    blank_is_text: bool = True
    lowercase: bool = False

    def normalize(self, data: Bytes) -> Bytes:
        """Lower-case `data` if that changes no token, so that more pieces are equal."""
        if not self.lowercase:
            return data
        capital = (data - ord("A")) < _LETTERS  # bytes below "A" wrap round to large ones
        return np.bitwise_or(data, capital * _CASE_BIT, dtype=np.uint8)

    def find_cuts(self, data: Bytes) -> Flags:
        """Return True at each byte of UTF-8 `data` where a piece may begin."""
        classes = np.take(_CLASSES, data)
        flags = classes == _BLANK
        if self.punctuation == "alone":
            alone = classes == _PUNCTUATION
            alone[:-1] &= data[1:] < 0x80
            flags[1:] |= alone[:-1]
            # A mark after a blank forms one piece with it.
            alone[1:] &= classes[:-1] != _BLANK
            flags |= alone
        elif self.punctuation == "classes":
            left, right = classes[:-1], classes[1:]
            flags[1:] |= (
                (left != right) & (left > _BLANK) & (right > _BLANK) & (data[:-1] != _APOSTROPHE)
            )
        if self.han and (lead := (data >= _FIRST_HAN) & (data <= _LAST_HAN)).any():
            lead[:-1] &= (data[:-1] > _FIRST_HAN) | (data[1:] >= _SECOND_OF_FIRST_HAN)
            flags |= lead
            flags[3:] |= lead[:-3]
        return flags

    def is_safe_before(self, piece: str) -> bool:
        """Whether the cut before `piece` is a border; if not, the text must stay whole."""
        return not (
            self.punctuation == "classes"
            and piece[0] == " "
            and (len(piece) == 1 or piece[1].isspace())
        )


def find_rules(tokenizer: Tokenizer) -> Rules | None:
    """Return the rules of `tokenizer`, or None if cutting its texts is not known to be safe."""
    if any(not token.special for token in tokenizer.get_added_tokens_decoder().values()):
        return None
    if any(getattr(tokenizer.model, name, None) for name in ("dropout", "alpha", "nbest_size")):
        # Sampling: no two calls give the same pieces.
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if max(vocabulary.values(), default=-1) >= len(vocabulary):
        # The separator of memo.py would get an id in use.
        return None
    # Without the vocabulary, to keep the JSON short.
    shell = Tokenizer(models.WordLevel({}, unk_token=""))
    if tokenizer.normalizer is not None:
        shell.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        shell.pre_tokenizer = tokenizer.pre_tokenizer
    data = json.loads(shell.to_str())
    parts = _parts(data["normalizer"], "normalizers")
    kinds = {part["type"] for part in parts}
    splits = [_split_kind(part) for part in _parts(data["pre_tokenizer"], "pretokenizers")]
    composes = kinds <= {"NFC", "NFD", "Lowercase"}
    drops_blanks = kinds <= {"NFC", "NFD", "Lowercase", "StripAccents", "BertNormalizer"}
    bert = next((part for part in parts if part["type"] == "BertNormalizer"), None)
    if splits == ["bert"] and drops_blanks:
        only_bert = kinds == {"BertNormalizer"}
        return Rules(
            punctuation="alone",
            han=only_bert and bert is not None and bert["handle_chinese_chars"],
            blank_is_text=False,
            lowercase=only_bert and bert is not None and bert["lowercase"],
        )
    if splits in (["blank"], ["blank", "bracket"]) and drops_blanks:
        return Rules(blank_is_text=False)
    if splits in (["metaspace"], ["metaspace", "bracket"]) and composes:
        return Rules()
    if splits == ["bytes"] and composes:
        return Rules(punctuation="classes")
    if splits == ["character"] and composes:
        return Rules(punctuation="alone", han=True)
    return None


def _parts(data: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if data is None:
        return []
    if data["type"] == "Sequence":
        return [inner for part in data[key] for inner in _parts(part, key)]
    return [data]


def _split_kind(part: Mapping[str, Any]) -> str:
    kind = part["type"]
    if kind == "BertPreTokenizer":
        return "bert"
    if kind == "WhitespaceSplit":
        return "blank"
    # Scheme "first" depends on a piece's position in the text.
    if kind == "Metaspace" and part["split"] and part["prepend_scheme"] in ("always", "never"):
        return "metaspace"
    if kind == "ByteLevel" and part["use_regex"] and not part["add_prefix_space"]:
        return "bytes"
    if kind == "Split" and part["behavior"] == "Isolated" and not part["invert"]:
        pattern = part["pattern"].get("Regex", "")
        if pattern == EVERY_CHARACTER:
            return "character"
        # The rule that keeps `[MASK]` as text; it ignores blanks.
        if pattern == SPECIAL_IS_TEXT:
            return "bracket"
    return "unknown"
