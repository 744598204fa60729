"""Segmenters: find Chinese words by jieba or a word list, and phrases by a list.

Chinese has no blanks between words. `jieba` (an optional package) finds the likeliest segmentation
by a dictionary; a list takes its longest entry from left to right. Both are deterministic.
"""

import functools
import itertools
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from rungwise.core.errors import DataError, UserError
from rungwise.core.storage.source_files import SourceFile, find_files
from rungwise.core.storage.store_errors import explain_connection_errors
from rungwise.tokenizer import CLEAN_UP
from rungwise.tokenizer.files import read_text

Span = tuple[int, int]  # [start, end) in characters of one text
Segmenter = Callable[[str], Iterable[Span]]  # words that contain a han character

_KEY = "instances.mask_units"
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
# A han character, a word of another script, or a mark.
_ATOM = re.compile(rf"[{HAN}]|[^\W{HAN}]+|[^\w\s]")


def find_blanks(words: Sequence[str]) -> list[str]:
    """Return what stands before each word where its sentence is written out: a blank or nothing.

    There is no blank beside Chinese and Japanese, and none at all in a Chinese text whose words are
    single characters, where 1997 is four of them.
    """
    by_character = all(len(word) == 1 for word in words) and any(map(_WIDE.match, words))
    beside = [
        bool(_WIDE.match(before[-1:]) or _WIDE.match(word)) for before, word in pairwise(words)
    ]
    return ["" if by_character or joins else " " for joins in (True, *beside)][: len(words)]


class Entries:
    """The words or phrases of a list, matched in any case."""

    def __init__(self, lines: Iterable[str]) -> None:
        matches = (_ATOM.findall(line) for line in lines)
        self._entries = {tuple(map(str.casefold, atoms)) for atoms in matches if atoms}
        self._longest: dict[str, int] = {}
        for atoms in self._entries:
            self._longest[atoms[0]] = max(len(atoms), self._longest.get(atoms[0], 0))

    def __len__(self) -> int:
        return len(self._entries)

    def matches(self, text: str) -> Iterator[Span]:
        """Yield the longest entry at each position from left to right, without overlaps.

        An entry matches whole words and marks; each han character is a word.
        """
        atom_matches = list(_ATOM.finditer(text))
        atoms = [match[0].casefold() for match in atom_matches]
        at = 0
        while at < len(atoms):
            size = min(self._longest.get(atoms[at], 0), len(atoms) - at)
            while size and tuple(atoms[at : at + size]) not in self._entries:
                size -= 1
            if size:
                yield atom_matches[at].start(), atom_matches[at + size - 1].end()
            at += max(size, 1)


def read_entries(name: str, path: str) -> Entries:
    """Read the list at `path`, an entry per line; `name` is its key, for messages.

    Raises DataError if the file is missing, not UTF-8 or has no entry.
    """
    file = _find_file(name, path)
    return _read_file(name, file, file.digest())


def list_digest(name: str, path: str) -> str:
    """Return the digest of the list; raises DataError if there is no such file."""
    return _find_file(name, path).digest()


def _find_file(name: str, path: str) -> SourceFile:
    with explain_connection_errors(path, f"{_KEY}.{name}"):
        files = find_files(path)
    if len(files) != 1:
        count = f"{len(files)} files" if files else "nothing"
        raise DataError(f"{_KEY}.{name}: expected the path of a file, found {count} at {path!r}")
    return files[0]


@functools.lru_cache(maxsize=4)  # a worker reads the same list for each of its shards
def _read_file(name: str, file: SourceFile, digest: str) -> Entries:
    lines = read_text(file, f"{_KEY}.{name}").splitlines()
    entries = Entries(map(CLEAN_UP.normalize_str, lines))  # as the text was cleaned
    if not len(entries):
        raise DataError(f"{_KEY}.{name}: expected an entry a line in {file.uri}, found none")
    return entries


def word_list_words(entries: Entries) -> Segmenter:
    """Return a segmenter by entries; other han characters are single words."""

    def words(text: str) -> Iterator[Span]:
        end = 0
        for start, stop in itertools.chain(entries.matches(text), [(len(text), len(text))]):
            for single in _HAN_CHARACTER.finditer(text, end, start):
                yield single.span()
            if _HAN_CHARACTER.search(text, start, stop):
                yield start, stop
            end = stop

    return words


@functools.cache
def jieba_words() -> Segmenter:
    """Return jieba with its own dictionary, without guesses at unknown words.

    Raises UserError if the package is not installed.
    """
    try:
        with warnings.catch_warnings():
            # Its regular expressions raise newer syntax warnings.
            warnings.simplefilter("ignore")
            import jieba
    except ImportError as error:
        raise UserError(
            f"{_KEY}.segmenter: jieba needs a package that is not installed; run "
            "pip install 'rungwise[zh]', or choose word_list"
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
