"""Find the passages of held-out documents that stand in training documents too, and take them out:
sentences of five words or more, runs of 13 words (Brown et al. 2020, arXiv:2005.14165, appendix C),
and paragraphs of which 70 % stands in training by these. Words are runs of letters and digits in
any case, and single characters of scripts without blanks.

N passages of documents in order: of each the runs of words, then the sentences"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rungwise.core.randomness import mix
from rungwise.corpus.cleaning.text import DOCUMENT, clean, is_word, is_word_alone
from rungwise.corpus.document import Document, batch_by_size, text_length

STANDS_IN_TRAINING = "stands in training"
PASSAGES_SCHEMA = pa.schema([("passages", pa.list_(pa.uint64()))])  # a row per document
TRAINING = -1  # in the place of a range
_RUN_WORDS = 13
_SENTENCE_WORDS = 5
_PARAGRAPH_SHARE = 0.7
ROW_BYTES = 24  # shuffled per passage: a hash and a place
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BATCH_CHARACTERS = 1 << 20
_SLICE_CHARACTERS = 1 << 16  # the arrays of more leave the processor's cache
_HASHES_AT_ONCE = 1 << 15  # new memory for more costs more than the look-up
_GAP = re.compile("[ \n]")
_NONE = np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64)


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
        return WordRuns(*_NONE)
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
        return WordRuns(*_NONE)
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

    def count_characters(sentences: Sequence[str]) -> int:
        return sum(map(len, sentences))

    for batch in batch_by_size(documents, count_characters, _BATCH_CHARACTERS):
        yield [line for sentences in batch for line in (*sentences, DOCUMENT)]


def hash_words(lines: Sequence[str]) -> Words:
    """Hash the words of sentences with marks between documents."""
    text = "\n".join([line.lower() for line in lines])
    # In slices between words, since the arrays take dozens of bytes a character.
    hashes, places = [_NONE[0]], [_NONE[1]]
    begin = line = 0
    while begin < len(text):
        gap = _GAP.search(text, begin + _SLICE_CHARACTERS)
        end = gap.end() if gap else len(text)
        words, breaks = _hash_slice(text[begin:end])
        hashes.append(words)
        places.append(breaks + line)
        line += text.count("\n", begin, end)
        begin = end
    line_of = np.concatenate(places)
    document_of = np.cumsum(np.array([line == DOCUMENT for line in lines], bool))
    return Words(np.concatenate(hashes), line_of, document_of[line_of])


def _hash_slice(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash of each word, and the number of line breaks before it."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    inside, alone = is_word(codes), is_word_alone(codes)
    starts = inside.copy()
    starts[1:] &= ~inside[:-1] | alone[1:] | alone[:-1]
    places = np.flatnonzero(inside)
    first = np.flatnonzero(starts[places])
    if not len(first):
        return _NONE[:2]
    # The hash of a word is the sum of its characters' hashes, each with its position.
    letters = np.arange(len(places)) - np.repeat(first, np.diff(first, append=len(places)))
    letters = mix(codes[places].astype(np.uint64) + (letters.astype(np.uint64) << np.uint64(32)))
    breaks = np.searchsorted(np.flatnonzero(codes == ord("\n")), places[first])
    return mix(np.add.reduceat(letters, first)), breaks


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


def make_filter(number: int) -> np.ndarray:
    """Return an empty filter for so many hashes (Bloom 1970): bits, uint8, of which each sets two.
    Of others, it takes a hundredth for members; above 256 MiB it stays as large, and takes more."""
    bits = min(max(16, (20 * number).bit_length()), 31)
    return np.zeros(1 << (bits - 3), np.uint8)


_SHIFTS = np.array([0, 32], np.uint64)  # to the bits of a hash that give its first and second place


def _find_bits(members: np.ndarray, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the byte of each hash in a filter, and the number of its bit there."""
    place = (hashes & np.uint64(8 * len(members) - 1)).view(np.int64)
    return place >> 3, place.astype(np.uint8) & 7


def _find_members(members: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Return the indices (N,) of the hashes that a filter takes for members."""
    byte, bit = _find_bits(members, hashes)
    index = np.flatnonzero((members.take(byte) >> bit & 1).view(bool))
    byte, bit = _find_bits(members, hashes[index] >> _SHIFTS[1])  # the second look is at few
    return index[(members.take(byte) >> bit & 1).view(bool)]


def add_hashes(members: np.ndarray, hashes: np.ndarray) -> None:
    """Add hashes to a filter."""
    for shift in _SHIFTS:
        byte, bit = _find_bits(members, hashes >> shift)
        bits = np.uint8(1) << bit
        while len(byte):  # of several bits of one byte, the last one is set
            members[byte] |= bits
            is_unset = members[byte] & bits == 0
            byte, bits = byte[is_unset], bits[is_unset]


class Passages(NamedTuple):
    """The hashes of the passages of D documents, (N,) uint64, and where each ends, (D,) int64."""

    hashes: np.ndarray
    ends: np.ndarray


def _hash_batch(lines: Sequence[str]) -> tuple[WordRuns, np.ndarray]:
    """Hash the passages of sentences with marks between documents: passages and the number of each
    one's document, (N,), by which they are sorted."""
    words = hash_words(lines)
    parts = hash_runs(words, _RUN_WORDS), hash_lines(words, _SENTENCE_WORDS)
    del words  # of a large document
    passages = WordRuns(*map(np.concatenate, zip(*parts, strict=True)))
    if lines.count(DOCUMENT) < 2:
        return passages, np.zeros(len(passages.hashes), np.int8)
    document = np.cumsum(np.array([line == DOCUMENT for line in lines], bool))[passages.first]
    order = np.argsort(document, kind="stable")
    return WordRuns(*(column[order] for column in passages)), document[order]


def hash_passages(documents: Iterable[Sequence[str]]) -> Passages:
    """Hash the passages of documents, given by their sentences."""
    hashes, counts = [_NONE[0]], [_NONE[1]]
    for lines in batch_sentences(documents):
        passages, document = _hash_batch(lines)
        hashes.append(passages.hashes)
        counts.append(np.bincount(document, minlength=lines.count(DOCUMENT)))
    return Passages(np.concatenate(hashes), np.cumsum(np.concatenate(counts)))


def tabulate_passages(table: pa.Table) -> pa.Table:
    """Return the hashes of the passages of a table's documents, as PASSAGES_SCHEMA has them."""
    passages = hash_passages(table["sentences"].to_pylist())
    offsets = pa.array(np.insert(passages.ends, 0, 0), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, passages.hashes)
    return pa.Table.from_arrays([lists], schema=PASSAGES_SCHEMA)


def read_passages(table: pa.Table) -> Passages:
    """Return the passages of a table of `tabulate_passages`."""
    column = table["passages"].combine_chunks()
    offsets = column.offsets.to_numpy()
    hashes = column.values.to_numpy()[offsets[0] : offsets[-1]]
    return Passages(hashes, offsets[1:] - offsets[0])


def select_common(parts: Iterable[tuple[Passages, np.ndarray]], held_out: np.ndarray) -> np.ndarray:
    """Return the distinct hashes of training passages that may stand in held-out documents too, of
    which `held_out` is a filter. Of each part, the documents that are marked, (D,), are training
    documents."""
    common = [_NONE[0]]
    for (hashes, ends), is_training in parts:
        for begin in range(0, len(hashes), _HASHES_AT_ONCE):
            part = hashes[begin : begin + _HASHES_AT_ONCE]
            index = _find_members(held_out, part)
            document = np.searchsorted(ends, begin + index, "right")
            common.append(part[index[is_training[document]]])
    # Sorted, since np.unique of integers builds a table of hashes, which takes far longer.
    hashes = np.sort(np.concatenate(common))
    return hashes[np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]]


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
    held_out = np.flatnonzero(range_ != TRAINING)
    hit = held_out[np.isin(hashes[held_out], hashes[range_ == TRAINING])]
    places = np.column_stack([range_[hit], passage[hit], np.zeros(len(hit))]).astype(np.int64)
    return places[np.lexsort(places.T[::-1])]


def mark_sentences(table: pa.Table, passages: np.ndarray) -> np.ndarray:
    """Mark the sentences (S,) of held-out documents that stand in training. `passages`, (N,), are
    indices into `hash_passages` of the sentences of `table`."""
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
        (_, first, last), _ = _hash_batch(lines)
        end = begin + len(first)
        is_hit = np.isin(np.arange(begin, end), passages)
        change = np.zeros(len(lines) + 1, np.int64)
        np.add.at(change, first[is_hit], 1)
        np.add.at(change, last[is_hit] + 1, -1)
        mark = np.cumsum(change)[:-1] > 0
        marks.append(_add_paragraphs(mark, lines, paragraphs[line : line + len(lines)]))
        begin, line = end, line + len(lines)
    return np.concatenate(marks)


def _add_paragraphs(mark: np.ndarray, lines: Sequence[str], paragraph: np.ndarray) -> np.ndarray:
    """Mark all lines of a paragraph of which most is marked; leave out marks between documents."""
    sizes = np.array([len(text) for text in lines])
    owner = paragraph - paragraph[0]
    size, marked = (np.bincount(owner, weights) for weights in (sizes, sizes * mark))
    mark = mark | (marked >= _PARAGRAPH_SHARE * size)[owner]
    return mark[np.array([text != DOCUMENT for text in lines])]


def keep_sentences(
    table: pa.Table, sentence_stays: np.ndarray, minimum_characters: int
) -> tuple[pa.Table, np.ndarray]:
    """Return a table of `RangeBuilder` with only these sentences (S,), and the paragraphs that have
    any; and the rows, (N,), whose remaining text is too short for a document."""
    documents, too_short, begin = table.to_pylist(), [], 0
    for row, document in enumerate(documents):
        stays = sentence_stays[begin : begin + len(document["sentences"])].tolist()
        begin += len(stays)
        if all(stays):
            continue
        fields = ("id", "label", "sentences", "paragraph_starts")
        shorter = Document(*(document[name] for name in fields)).select(stays)
        text = " ".join(shorter.sentences)
        document |= {name: getattr(shorter, name) for name in (*fields, "digest")}
        document["bytes"] = len(text.encode())
        if text_length(text) < minimum_characters:
            too_short.append(row)
    return pa.Table.from_pylist(documents, schema=table.schema), np.array(too_short, np.int64)
