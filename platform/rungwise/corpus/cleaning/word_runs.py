"""Hash runs of words, to find passages that stand in two texts.

Words are runs of letters and digits in any case, and single characters of scripts without blanks,
so punctuation and line breaks make no difference.

N runs of words or sentences
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rungwise.corpus.cleaning.characters import DOCUMENT
from rungwise.corpus.cleaning.quality import is_word, is_word_alone
from rungwise.corpus.deduplication.near_duplicates import mix

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_CHARACTERS_AT_ONCE = 1 << 20


class WordRuns(NamedTuple):
    """The hash of each run, (N,) uint64, and its first and last line, (N,) int64."""

    hashes: np.ndarray
    first: np.ndarray
    last: np.ndarray


class _Words(NamedTuple):
    """The hash of each word, its line and its document, all (words,)."""

    hashes: np.ndarray
    line: np.ndarray
    document: np.ndarray


def hash_runs(lines: Sequence[str], size: int) -> WordRuns:
    """Hash the runs of `size` words; `lines` are sentences with marks between documents, which no
    run spans."""
    words = _hash_words(lines)
    count = len(words.hashes) - size + 1
    if count <= 0:
        return WordRuns(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))
    hashes = np.zeros(count, np.uint64)
    for offset in range(size):
        hashes *= _FACTOR
        hashes += words.hashes[offset : offset + count]
    whole = words.document[:count] == words.document[size - 1 :]
    return WordRuns(mix(hashes[whole]), words.line[:count][whole], words.line[size - 1 :][whole])


def hash_lines(lines: Sequence[str], least_words: int) -> WordRuns:
    """Hash each line of at least so many words as a whole."""
    words = _hash_words(lines)
    begins = np.flatnonzero(np.diff(words.line, prepend=-1))
    if not len(begins):
        return WordRuns(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))
    sizes = np.diff(begins, append=len(words.line))
    places = (np.arange(len(words.line)) - np.repeat(begins, sizes)).astype(np.uint64)
    hashes = np.add.reduceat(mix(words.hashes + places * _FACTOR), begins)
    long = sizes >= least_words
    # The number of words keeps a line apart from a run of as many words.
    hashes = mix(hashes + mix(sizes.astype(np.uint64)))[long]
    line = words.line[begins][long]
    return WordRuns(hashes, line, line)


def batch_sentences(documents: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    """Join the sentences of documents to batches of a megabyte, with marks between documents."""
    batch: list[str] = []
    characters = 0
    for sentences in documents:
        batch += [*sentences, DOCUMENT]
        characters += sum(map(len, sentences))
        if characters >= _CHARACTERS_AT_ONCE:
            yield batch
            batch, characters = [], 0
    yield batch


def _hash_words(lines: Sequence[str]) -> _Words:
    text = "\n".join(lines).lower()
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    inside, alone = is_word(codes), is_word_alone(codes)
    starts = inside.copy()
    starts[1:] &= ~inside[:-1] | alone[1:] | alone[:-1]
    begins, places = np.nonzero(starts)[0], np.nonzero(inside)[0]
    if not len(begins):
        return _Words(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))
    # The hash of a word is the sum of its characters' hashes, each with its position.
    letters = places - begins[np.cumsum(starts)[places] - 1]
    letters = mix(codes[places].astype(np.uint64) + (letters.astype(np.uint64) << np.uint64(32)))
    return _Words(
        mix(np.add.reduceat(letters, np.searchsorted(places, begins))),
        np.cumsum(codes == ord("\n"))[begins],
        np.cumsum(codes == ord(DOCUMENT))[begins],
    )
