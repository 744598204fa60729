"""Rules for cutting a text into pieces that, tokenised alone, give the tokens of the whole.

A cut must be a border between pre-tokens whatever surrounds it, and the normalizer must not act
across it. Only kinds of normalizers and pre-tokenizers proved safe here have rules; the texts of
others stay whole.

    blanks   before an ASCII blank: a border for BERT's, GPT-2's, SentencePiece's and all
             pre-tokenizers trained here; nothing composes with it
    marks    also on both sides of ASCII punctuation before an ASCII byte, where each mark stands
             alone; before another byte it may be the base of a composed letter, as in = + U+0338
    classes  also between ASCII letters, digits and punctuation, except after an apostrophe ('s is
             one pre-token): no other alternative of GPT-2's expression mixes two of these
"""

import json
import string
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

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
    """Whether a piece that was cut off before its blank, if any, is one of the whole text.

    GPT-2's expression takes white space up to the last blank as one pre-token.
    """
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
        # The separator of memo.py would get an id in use.
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
