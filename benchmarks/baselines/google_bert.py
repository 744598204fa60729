"""A peer: the procedure of google-research/bert `create_pretraining_data`, in plain Python.

Written anew from what it is known to do, as far as its speed needs: the tokenizer goes character by
character, documents are lists of lists of strings, masks are drawn once and stored, every document
is gone through `dupe_factor` times. The output has the framing of its record files (a length, a
checksum, the bytes, a checksum; the checksum here is CRC-32) with fixed-width little-endian arrays
in place of protocol buffers, which is cheaper than what it does, so the figure flatters the peer.
"""

import random
import struct
import unicodedata
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

_UNKNOWN = "[UNK]"
# First and last code point of the blocks of Chinese characters, those for compatibility included.
_HAN_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def is_whitespace(character: str) -> bool:
    """Blanks, tabs and line breaks, and what Unicode calls a space separator."""
    return character in " \t\n\r" or unicodedata.category(character) == "Zs"


def is_control(character: str) -> bool:
    """Control and format characters, but not those that count as white space."""
    return character not in "\t\n\r" and unicodedata.category(character) in ("Cc", "Cf")


def is_punctuation(character: str) -> bool:
    """Every ASCII sign that is neither letter nor digit, and what Unicode calls punctuation."""
    code = ord(character)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(character).startswith("P")


def _is_han(character: str) -> bool:
    code = ord(character)
    return any(first <= code <= last for first, last in _HAN_BLOCKS)


class BasicTokenizer:
    """Words and single punctuation signs; Chinese characters stand alone."""

    def __init__(self, lowercase: bool) -> None:
        self._lowercase = lowercase

    def tokenize(self, text: str) -> list[str]:
        """The words of `text` in order."""
        words: list[str] = []
        for word in self._clean(text).split():
            if self._lowercase:
                word = self._without_accents(word.lower())
            words.extend(self._split_at_punctuation(word))
        return " ".join(words).split()

    def _clean(self, text: str) -> str:
        characters: list[str] = []
        for character in text:
            code = ord(character)
            if code in (0, 0xFFFD) or is_control(character):
                continue
            if is_whitespace(character):
                characters.append(" ")
            elif _is_han(character):
                characters.extend((" ", character, " "))
            else:
                characters.append(character)
        return "".join(characters)

    def _without_accents(self, text: str) -> str:
        decomposed = unicodedata.normalize("NFD", text)
        return "".join(sign for sign in decomposed if unicodedata.category(sign) != "Mn")

    def _split_at_punctuation(self, word: str) -> list[str]:
        parts: list[list[str]] = []
        begins = True
        for character in word:
            if is_punctuation(character):
                parts.append([character])
                begins = True
            else:
                if begins:
                    parts.append([])
                begins = False
                parts[-1].append(character)
        return ["".join(part) for part in parts]


class WordpieceTokenizer:
    """The longest piece first, from the left; a word that cannot be covered is unknown."""

    def __init__(self, vocabulary: dict[str, int], longest_word: int = 200) -> None:
        self._vocabulary = vocabulary
        self._longest_word = longest_word

    def tokenize(self, text: str) -> list[str]:
        """The pieces of the words of `text`, which stand between blanks."""
        pieces: list[str] = []
        for word in text.split():
            pieces.extend(self._pieces(word))
        return pieces

    def _pieces(self, word: str) -> list[str]:
        if len(word) > self._longest_word:
            return [_UNKNOWN]
        pieces: list[str] = []
        begin = 0
        while begin < len(word):
            end = len(word)
            while end > begin:
                piece = word[begin:end] if begin == 0 else "##" + word[begin:end]
                if piece in self._vocabulary:
                    break
                end -= 1
            else:
                return [_UNKNOWN]
            pieces.append(piece)
            begin = end
        return pieces


class FullTokenizer:
    """Both, one after the other."""

    def __init__(
        self, vocabulary: dict[str, int], lowercase: bool, longest_word: int = 200
    ) -> None:
        self.vocabulary = vocabulary
        self._basic = BasicTokenizer(lowercase)
        self._wordpiece = WordpieceTokenizer(vocabulary, longest_word)

    def tokenize(self, text: str) -> list[str]:
        """The pieces of `text`; no special token is added."""
        pieces: list[str] = []
        for word in self._basic.tokenize(text):
            pieces.extend(self._wordpiece.tokenize(word))
        return pieces

    def ids(self, pieces: Iterable[str]) -> list[int]:
        """The number of each piece."""
        return [self.vocabulary[piece] for piece in pieces]


def read_vocabulary(path: Path) -> dict[str, int]:
    """`vocab.txt`: one piece a line, numbered from 0."""
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")  # a piece may be U+2028
    return {line.rstrip("\r"): number for number, line in enumerate(lines)}


@dataclass(frozen=True)
class Settings:
    """The defaults of its command line, but for the copies of every document (10)."""

    sequence_length: int = 128
    max_predictions: int = 20
    dupe_factor: int = 1
    masked_share: float = 0.15
    short_rate: float = 0.1
    seed: int = 12345


@dataclass
class _Instance:
    tokens: list[str]
    segments: list[int]
    random_next: bool
    positions: list[int]
    targets: list[str]


def create(
    paths: Sequence[Path], output: Path, tokenizer: FullTokenizer, settings: Settings
) -> int:
    """Text files (a sentence a line, a blank line between documents) to one file of records.

    Returns the number of records.
    """
    rng = random.Random(settings.seed)
    documents = _read(paths, tokenizer)
    rng.shuffle(documents)
    words = list(tokenizer.vocabulary)
    instances: list[_Instance] = []
    for _ in range(settings.dupe_factor):
        for number in range(len(documents)):
            instances.extend(_build_instances(documents, number, words, settings, rng))
    rng.shuffle(instances)
    with output.open("wb") as stream:
        for instance in instances:
            _write_record(stream, _encoded(instance, tokenizer, settings.sequence_length, settings))
    return len(instances)


def _read(paths: Sequence[Path], tokenizer: FullTokenizer) -> list[list[list[str]]]:
    documents: list[list[list[str]]] = [[]]
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                text = line.strip()
                if not text:
                    documents.append([])
                elif pieces := tokenizer.tokenize(text):
                    documents[-1].append(pieces)
        documents.append([])
    return [document for document in documents if document]


def _build_instances(
    documents: list[list[list[str]]],
    number: int,
    words: list[str],
    settings: Settings,
    rng: random.Random,
) -> list[_Instance]:
    document = documents[number]
    room = settings.sequence_length - 3
    # Drawn once a document, not once a pair.
    target = rng.randint(2, room) if rng.random() < settings.short_rate else room
    instances: list[_Instance] = []
    chunk: list[list[str]] = []
    length = 0
    at = 0
    while at < len(document):
        chunk.append(document[at])
        length += len(document[at])
        at += 1
        if at < len(document) and length < target:
            continue
        a_count = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
        a = list(chain.from_iterable(chunk[:a_count]))
        random_next = len(chunk) == 1 or rng.random() < 0.5
        if random_next:
            b = _random_next(documents, number, target - len(a), rng)
            at -= len(chunk) - a_count  # what B did not use is gathered again
        else:
            b = list(chain.from_iterable(chunk[a_count:]))
        _truncate(a, b, room, rng)
        instances.append(_masked(a, b, random_next, words, settings, rng))
        chunk, length = [], 0
    return instances


def _random_next(
    documents: list[list[list[str]]], number: int, wanted: int, rng: random.Random
) -> list[str]:
    other = number
    for _ in range(10):  # it gives up after ten tries and may then take the same document
        other = rng.randint(0, len(documents) - 1)
        if other != number:
            break
    document = documents[other]
    b: list[str] = []
    for sentence in document[rng.randint(0, len(document) - 1) :]:
        b.extend(sentence)
        if len(b) >= wanted:
            break
    return b


def _truncate(a: list[str], b: list[str], room: int, rng: random.Random) -> None:
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def _masked(
    a: list[str],
    b: list[str],
    random_next: bool,
    words: list[str],
    settings: Settings,
    rng: random.Random,
) -> _Instance:
    tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
    segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
    candidates = [at for at, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    rng.shuffle(candidates)
    # The share is of all tokens, the special ones too.
    count = max(1, round(len(tokens) * settings.masked_share))
    positions = sorted(candidates[: min(settings.max_predictions, count)])
    targets = [tokens[at] for at in positions]
    for at in positions:
        if rng.random() < 0.8:
            tokens[at] = "[MASK]"
        elif rng.random() < 0.5:
            tokens[at] = words[rng.randint(0, len(words) - 1)]
    return _Instance(tokens, segments, random_next, positions, targets)


def _encoded(
    instance: _Instance, tokenizer: FullTokenizer, length: int, settings: Settings
) -> bytes:
    ids = tokenizer.ids(instance.tokens)
    padding = [0] * (length - len(ids))
    unused = [0] * (settings.max_predictions - len(instance.positions))
    numbers = [
        *ids,
        *padding,
        *([1] * len(ids)),
        *padding,
        *instance.segments,
        *padding,
        *instance.positions,
        *unused,
        *tokenizer.ids(instance.targets),
        *unused,
        int(instance.random_next),
    ]
    weights = [1.0] * len(instance.positions) + [0.0] * len(unused)
    return struct.pack(f"<{len(numbers)}i{len(weights)}f", *numbers, *weights)


def _write_record(stream: BinaryIO, data: bytes) -> None:
    head = struct.pack("<Q", len(data))
    stream.write(head)
    stream.write(struct.pack("<I", zlib.crc32(head)))
    stream.write(data)
    stream.write(struct.pack("<I", zlib.crc32(data)))
