"""Find the passages of held-out documents that stand in training documents too.

A held-out sentence stands in training if

- a training sentence has all its words, five or more; or
- it shares a word of a run of 13 words with a training document (Brown et al. 2020,
  arXiv:2005.14165, appendix C); or
- it lies in a paragraph of which 70 % stands in training by these two rules: a near-duplicate.

N passages: runs of words, then sentences
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from rungwise.corpus.cleaning.characters import DOCUMENT
from rungwise.corpus.cleaning.decontamination import (
    batch_sentences,
    hash_lines,
    hash_runs,
    hash_words,
)

STANDS_IN_TRAINING = "stands in training"
TRAINING = -1  # in the place of a range
_RUN_WORDS = 13
_SENTENCE_WORDS = 5
_PARAGRAPH_SHARE = 0.7
# Bytes shuffled per passage: a hash and a place.
ROW_BYTES = 24


class HashFilter:
    """A set of hashes as bits, ten or more for each: of others, it takes a tenth for members.

    Above 256 MiB it stays as large, and takes more of them.
    """

    def __init__(self, bits: np.ndarray) -> None:
        self._bits = bits
        self._mask = np.uint64(8 * len(bits) - 1)

    @classmethod
    def for_hashes(cls, number: int) -> "HashFilter":
        """Return an empty filter for so many hashes."""
        bits = min(max(16, (10 * number).bit_length()), 31)
        return cls(np.zeros(1 << (bits - 3), np.uint8))

    @classmethod
    def from_bytes(cls, content: bytes) -> "HashFilter":
        return cls(np.frombuffer(content, np.uint8))

    def to_bytes(self) -> bytes:
        return self._bits.tobytes()

    def add(self, hashes: np.ndarray) -> None:
        place = hashes & self._mask
        bit = np.left_shift(np.uint8(1), (place & np.uint64(7)).astype(np.uint8))
        np.bitwise_or.at(self._bits, (place >> np.uint64(3)).astype(np.int64), bit)

    def may_hold(self, hashes: np.ndarray) -> np.ndarray:
        place = hashes & self._mask
        byte = self._bits[(place >> np.uint64(3)).astype(np.int64)]
        return (byte >> (place & np.uint64(7)).astype(np.uint8)) & 1 == 1


def hash_passages(documents: Iterable[Sequence[str]]) -> np.ndarray:
    """Hash the passages of documents, given by their sentences: (N,) uint64, in order."""
    hashes = [np.empty(0, np.uint64)]
    for lines in batch_sentences(documents):
        words = hash_words(lines)
        hashes += [hash_runs(words, _RUN_WORDS).hashes, hash_lines(words, _SENTENCE_WORDS).hashes]
    return np.concatenate(hashes)


def select_common(passages: np.ndarray, held_out: HashFilter) -> np.ndarray:
    """Return the distinct hashes of training passages that may stand in held-out documents too."""
    # Sorted, since np.unique of integers builds a table of hashes, which takes far longer.
    common = np.sort(passages[held_out.may_hold(passages)])
    return common[np.append(True, common[1:] != common[:-1])[: len(common)]]


def passage_rows(hashes: np.ndarray, number: int, num_partitions: int) -> pa.Table:
    """Return a row per passage of the held-out text of range `number`, or of TRAINING."""
    return pa.table(
        {
            "partition": (hashes % np.uint64(num_partitions)).astype(np.int64),
            "hash": hashes,
            "range": np.full(len(hashes), number, np.int32),
            "passage": np.arange(len(hashes), dtype=np.int32),
        }
    )


def find_passages(rows: pa.Table) -> np.ndarray:
    """Return the held-out passages of this partition that stand in training, (N, 3): range,
    passage and 0, sorted."""
    hashes, range_, passage = (rows[name].to_numpy() for name in ("hash", "range", "passage"))
    held_out = range_ != TRAINING
    hit = held_out & np.isin(hashes, hashes[~held_out])
    places = np.column_stack([range_[hit], passage[hit], np.zeros(hit.sum())]).astype(np.int64)
    return places[np.lexsort(places.T[::-1])]


def mark_sentences(table: pa.Table, passages: np.ndarray) -> np.ndarray:
    """Mark the sentences (S,) of held-out documents that stand in training.

    `passages`, (N,), are indices into `hash_passages` of the sentences of `table`.
    """
    begin = 0
    marks = [np.empty(0, bool)]
    columns = (table[name].to_pylist() for name in ("sentences", "paragraph_starts"))
    starts_paragraph = [
        index in starts
        for sentences, paragraph_starts in zip(*columns, strict=True)
        for starts in [frozenset(paragraph_starts)]
        for index in [*range(len(sentences)), 0]  # the mark after a document
    ]
    paragraphs = np.cumsum(starts_paragraph)
    line = 0
    for lines in batch_sentences(table["sentences"].to_pylist()):
        words = hash_words(lines)
        runs, whole = hash_runs(words, _RUN_WORDS), hash_lines(words, _SENTENCE_WORDS)
        end = begin + len(runs.hashes) + len(whole.hashes)
        hits = np.isin(np.arange(begin, end), passages)
        in_run, in_sentence = np.split(hits, [len(runs.hashes)])
        change = np.zeros(len(lines) + 1, np.int64)
        np.add.at(change, runs.first[in_run], 1)
        np.add.at(change, runs.last[in_run] + 1, -1)
        mark = np.cumsum(change)[:-1] > 0
        mark[whole.first[in_sentence]] = True
        marks.append(_add_paragraphs(mark, lines, paragraphs[line : line + len(lines)]))
        begin, line = end, line + len(lines)
    return np.concatenate(marks)


def mark_repeats(table: pa.Table, training: Iterable[Sequence[str]]) -> np.ndarray:
    """Mark the sentences (S,) of held-out documents, which `table` holds, that stand in training
    documents, given by their sentences; in memory."""
    passages = hash_passages(table["sentences"].to_pylist())
    members = HashFilter.for_hashes(len(passages))
    members.add(passages)
    repeated = np.isin(passages, select_common(hash_passages(training), members))
    return mark_sentences(table, np.flatnonzero(repeated))


def _add_paragraphs(mark: np.ndarray, lines: Sequence[str], paragraph: np.ndarray) -> np.ndarray:
    """Mark all lines of a paragraph of which most is marked; leave out marks between documents."""
    if not len(lines):
        return mark
    sizes = np.array([len(text) for text in lines])
    owner = paragraph - paragraph[0]
    size, marked = (np.bincount(owner, weights) for weights in (sizes, sizes * mark))
    mark = mark | (marked >= _PARAGRAPH_SHARE * size)[owner]
    return mark[np.array([text != DOCUMENT for text in lines])]
