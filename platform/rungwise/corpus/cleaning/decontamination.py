"""Remove paragraphs that also occur in the test split of a task.

A paragraph is removed if it shares a run of words with a test text (Brown et al. 2020,
arXiv:2005.14165, appendix C). Words are runs of letters and digits in any case, and single
characters of scripts without blanks, so punctuation and line breaks make no difference.

N runs of words (n-grams)

Hash runs of words, to find passages that stand in two texts.

Words are runs of letters and digits in any case, and single characters of scripts without blanks,
so punctuation and line breaks make no difference.

N runs of words or sentences
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile
from rungwise.core.storage.store_errors import explain_connection_errors
from rungwise.corpus.cleaning.characters import DOCUMENT, PARAGRAPH, clean
from rungwise.corpus.cleaning.quality import is_word, is_word_alone
from rungwise.corpus.deduplication.near_duplicates import mix
from rungwise.corpus.readers.streams import UnsoundError, read_pieces

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_CHARACTERS_AT_ONCE = 1 << 20


class WordRuns(NamedTuple):
    """The hash of each run, (N,) uint64, and its first and last line, (N,) int64."""

    hashes: np.ndarray
    first: np.ndarray
    last: np.ndarray


class Words(NamedTuple):
    """The hash of each word, its line and its document, all (words,)."""

    hashes: np.ndarray
    line: np.ndarray
    document: np.ndarray


def hash_runs(words: Words, size: int) -> WordRuns:
    """Hash the runs of `size` words, none of which spans two documents."""
    count = len(words.hashes) - size + 1
    if count <= 0:
        return WordRuns(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))
    hashes = np.zeros(count, np.uint64)
    for offset in range(size):
        hashes *= _FACTOR
        hashes += words.hashes[offset : offset + count]
    whole = words.document[:count] == words.document[size - 1 :]
    return WordRuns(mix(hashes[whole]), words.line[:count][whole], words.line[size - 1 :][whole])


def hash_lines(words: Words, least_words: int) -> WordRuns:
    """Hash each line of at least so many words as a whole."""
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


def hash_words(lines: Sequence[str]) -> Words:
    """Hash the words of sentences with marks between documents."""
    text = "\n".join(lines).lower()
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    inside, alone = is_word(codes), is_word_alone(codes)
    starts = inside.copy()
    starts[1:] &= ~inside[:-1] | alone[1:] | alone[:-1]
    begins, places = np.nonzero(starts)[0], np.nonzero(inside)[0]
    if not len(begins):
        return Words(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))
    # The hash of a word is the sum of its characters' hashes, each with its position.
    letters = places - begins[np.cumsum(starts)[places] - 1]
    letters = mix(codes[places].astype(np.uint64) + (letters.astype(np.uint64) << np.uint64(32)))
    return Words(
        mix(np.add.reduceat(letters, np.searchsorted(places, begins))),
        np.cumsum(codes == ord("\n"))[begins],
        np.cumsum(codes == ord(DOCUMENT))[begins],
    )


PATHS_KEY = "corpus.decontaminate.paths"


class DecontaminationConfig(Config):
    """The test texts to keep out of the corpus, and how long a shared run of words must be."""

    # files, folders and globs; every string of a JSON file (.json, .jsonl), every line of any other
    paths: tuple[str, ...] = Field(min_length=1)
    # words in a shared run; shorter test texts are not searched for
    ngram: int = Field(default=13, ge=2)


class NgramHashes(NamedTuple):
    """The hashes of all runs of `ngram` words in test texts, (N,) uint64, sorted."""

    hashes: np.ndarray
    ngram: int


class Remainder(NamedTuple):
    """The remaining lines, how much was removed, and from which documents."""

    lines: list[str]
    paragraphs: int
    characters: int
    documents: frozenset[int]


def hash_test_texts(files: Iterable[SourceFile], ngram: int) -> NgramHashes:
    """Hash the texts of `files`; raises DataError if none is long enough."""
    # As the corpus is cleaned: without its invisible characters, accents composed.
    texts = ([clean(text).text] for file in files for text in _texts(file))
    batches = map(hash_words, batch_sentences(texts))
    hashes = [np.unique(hash_runs(words, ngram).hashes) for words in batches]
    unique = np.unique(np.concatenate(hashes))
    if not len(unique):
        raise DataError(
            f"{PATHS_KEY}: no text has {ngram} words; name other files or lower "
            "corpus.decontaminate.ngram"
        )
    return NgramHashes(unique, ngram)


def remove_test_texts(lines: list[str], tests: NgramHashes) -> Remainder:
    """Remove paragraphs of tests from `lines`: sentences with marks between documents."""
    hashes, first, last = hash_runs(hash_words(lines), tests.ngram)
    at = np.minimum(np.searchsorted(tests.hashes, hashes), len(tests.hashes) - 1)
    hit = tests.hashes[at] == hashes
    if not hit.any():
        return Remainder(lines, 0, 0, frozenset())
    # A run of words may span paragraphs.
    change = np.zeros(len(lines) + 1, np.int64)
    np.add.at(change, first[hit], 1)
    np.add.at(change, last[hit] + 1, -1)
    is_document = np.array([line == DOCUMENT for line in lines])
    is_mark = is_document | np.array([line == PARAGRAPH for line in lines])
    touched = (np.cumsum(change)[:-1] > 0) & ~is_mark
    paragraph = np.cumsum(is_mark)
    cut = np.isin(paragraph, paragraph[touched]) & ~is_mark
    return Remainder(
        list(compress(lines, ~cut)),
        len(np.unique(paragraph[cut])),
        sum(map(len, compress(lines, cut))),
        frozenset(np.cumsum(is_document)[cut].tolist()),
    )


def find_texts(texts: Sequence[str], documents: Iterable[Sequence[str]], ngram: int) -> np.ndarray:
    """Mark the texts (T,) of which every run of `ngram` words stands in one of the documents, given
    by their sentences. A text of fewer words is not marked."""
    lines = [line for text in texts for line in (" ".join(clean(text).text.split()), DOCUMENT)]
    hashes, first, _ = hash_runs(hash_words(lines), ngram)
    unique, place = np.unique(hashes, return_inverse=True)
    present = np.zeros(len(unique), dtype=bool)
    for batch in batch_sentences(documents):
        present |= np.isin(unique, hash_runs(hash_words(batch), ngram).hashes)
    runs, hits = (
        np.bincount(first // 2, weights, len(texts)) for weights in (None, present[place])
    )
    return (runs > 0) & (hits == runs)


def _texts(file: SourceFile) -> Iterator[str]:
    try:
        with explain_connection_errors(file.uri, PATHS_KEY):
            content = b"".join(read_pieces(file)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{PATHS_KEY}: {file.uri} is not UTF-8 at byte {error.start:,}; expected lines of text "
            "or JSON in UTF-8: convert the file, or name others"
        ) from error
    except (OSError, UnsoundError) as error:
        raise DataError(f"cannot read {file.uri}, of {PATHS_KEY}: {error}") from error
    if ".json" not in file.name.rpartition("/")[2]:
        yield from content.split("\n")
        return
    try:
        yield from _strings(json.loads(content))
    except ValueError:
        for line in filter(str.strip, content.split("\n")):
            try:
                yield from _strings(json.loads(line))
            except ValueError:
                yield line


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for one in value:
                yield from _strings(one)
        case dict():
            yield from _strings(list(value.values()))
