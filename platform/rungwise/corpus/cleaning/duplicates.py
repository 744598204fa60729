"""Find documents to drop: exact copies, near-duplicates; and documents with the same id. Only keys
are compared, one partition at a time. Of equal or similar texts, the first by range and row stays.

Similarity is the Jaccard index of the sets of shingles, runs of nine characters (Broder 1997). The
signature is a one-permutation MinHash (Li, Owen and Zhang 2012), whose empty slots copy others
(Shrivastava 2017, arXiv:1703.04664). `bands` of `rows` slots are compared as one, so documents of
similarity s share a bucket with probability 1 - (1 - s^rows)^bands.

P permutations (slots)"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time

from rungwise.core.randomness import mix
from rungwise.corpus.document import batch_by_size

DUPLICATE, NEAR_DUPLICATE = "duplicate", "near-duplicate"
REASONS = (DUPLICATE, NEAR_DUPLICATE)
# Shuffled rows: two per document, by text and by name, and one per mark.
_TEXT, _NAME, _MARK = range(3)
ROW_BYTES = 56
_SMALLEST = 2
_KEY = np.dtype([("high", ">u8"), ("low", ">u8")])


class DocumentDecision(NamedTuple):
    """The outcome of one partition. `duplicates` is (N, 3) int64: range, row and index of the
    reason, sorted. `documents` and `bytes` count those that stay, `held_out_bytes` those with split
    keys up to a threshold; `smallest` are their two smallest split keys; `same_name` are range and
    row of two documents of one name, if any."""

    duplicates: np.ndarray
    documents: int
    bytes: int
    held_out_bytes: int
    smallest: list[int]
    same_name: list[int]


def key_rows(keys: pa.Table, number: int, num_partitions: int) -> pa.Table:
    """Return two rows per document of range `number`, each with its partition."""
    count = keys.num_rows
    both = pa.concat_arrays([keys[column].combine_chunks() for column in ("digest", "name")])
    # Documents of one name and one text are copies, not an error.
    texts = _words(keys["digest"].combine_chunks())["high"].astype(np.uint64)
    columns = {
        "kind": np.repeat(np.array([_TEXT, _NAME], np.int8), count),
        "range": np.full(2 * count, number, np.int32),
        "row": np.tile(np.arange(count, dtype=np.int32), 2),
        # the split key, or a part of the digest
        "extra": np.concatenate([keys["split"].to_numpy(), texts]),
        "bytes": np.concatenate([keys["bytes"].to_numpy(), np.zeros(count, np.int64)]),
    }
    return _table(both, columns, num_partitions)


def mark_rows(marks: set[bytes], num_partitions: int) -> pa.Table:
    """Return a row per digest marked as a near-duplicate."""
    digests = pa.array(sorted(marks), pa.binary(16))
    types = {"range": np.int32, "row": np.int32, "extra": np.uint64, "bytes": np.int64}
    zeros = {name: np.zeros(len(digests), kind) for name, kind in types.items()}
    columns = {"kind": np.full(len(digests), _MARK, np.int8), **zeros}
    return _table(digests, columns, num_partitions)


def decide(rows: pa.Table, deduplicate: bool, threshold: int) -> DocumentDecision:
    """Decide on all documents whose digest or name is in this partition; split keys up to
    `threshold` count as held out."""
    kind = rows["kind"].to_numpy()
    keys = _words(rows["key"].combine_chunks())
    names = ("range", "row", "extra", "bytes")
    range_, row, extra, sizes = (rows[name].to_numpy() for name in names)
    order = np.lexsort((row, range_, keys["low"], keys["high"], kind))
    kind, keys, extra, sizes = kind[order], keys[order], extra[order], sizes[order]
    positions = np.stack([range_, row], axis=1)[order]
    is_text, is_name = kind == _TEXT, kind == _NAME
    texts, marks = keys[is_text], np.unique(keys[kind == _MARK])
    copies = np.append(False, texts[1:] == texts[:-1])[: len(texts)] & deduplicate
    near = np.zeros(len(texts), bool)
    if len(marks):
        # The position of an equal key, or else of the next.
        at = np.minimum(np.searchsorted(marks, texts), len(marks) - 1)
        near = (marks[at] == texts) & ~copies
    reasons = np.where(copies, REASONS.index(DUPLICATE), REASONS.index(NEAR_DUPLICATE))
    duplicates = np.column_stack([positions[is_text], reasons])[copies | near]
    split_keys, sizes = extra[is_text][~(copies | near)], sizes[is_text][~(copies | near)]
    names, texts_of_names = keys[is_name], extra[is_name]
    same = names[1:] == names[:-1]
    if deduplicate:
        same &= texts_of_names[1:] != texts_of_names[:-1]
    pairs = np.hstack([positions[is_name][:-1], positions[is_name][1:]])[same].tolist()
    return DocumentDecision(
        duplicates[np.lexsort((duplicates[:, 1], duplicates[:, 0]))],
        len(split_keys),
        int(sizes.sum()),
        int(sizes[split_keys <= np.uint64(threshold)].sum()),
        np.sort(split_keys)[:_SMALLEST].tolist(),
        min(pairs, default=[]),
    )


def _table(keys: pa.Array, columns: dict[str, np.ndarray], num_partitions: int) -> pa.Table:
    partition = _words(keys)["high"].astype(np.uint64) % np.uint64(num_partitions)
    return pa.table({"partition": partition.astype(np.int64), "key": keys, **columns})


def _words(keys: pa.Array) -> Any:
    """View 16-byte keys as pairs of big-endian numbers, which compare alike."""
    if not len(keys):
        return np.empty(0, _KEY)
    return np.frombuffer(keys.buffers()[1], _KEY)[keys.offset : keys.offset + len(keys)]


_WORD = np.uint64
_MIXED_AT_ONCE = 1 << 18
# Steps of SplitMix64 (Steele, Lea and Flood 2014).
_GOLDEN = _WORD(0x9E3779B97F4A7C15)
_EMPTY = np.uint32(0xFFFFFFFF)
_SHINGLE = 9  # characters
PERMUTATIONS = 128  # the estimate of a similarity s has the error sqrt(s (1 - s) / P)
SIMILARITY = 0.8  # documents of this share a band with a probability of 95 %
BANDS, _ROWS = 16, 8


def sign_texts(texts: Sequence[str]) -> np.ndarray:
    """Return the signatures of `texts`, (len(texts), P) uint32; case is ignored."""
    sketches = np.full((len(texts), PERMUTATIONS), _EMPTY, np.uint32)
    first = 0
    for batch in batch_by_size(texts, len, _MIXED_AT_ONCE):
        padded = [text.lower().ljust(_SHINGLE, "\0") for text in batch]
        _sketch(padded, sketches[first : first + len(batch)])
        first += len(batch)
    _densify(sketches)
    return sketches


def band_keys(signatures: np.ndarray) -> np.ndarray:
    """Return a key per band of each signature, (N, BANDS) uint64; bands share no keys."""
    bands = signatures.astype(_WORD).reshape(len(signatures), BANDS, _ROWS)
    keys = np.broadcast_to(np.arange(1, BANDS + 1, dtype=_WORD), bands.shape[:2]).copy()
    for row in range(_ROWS):
        keys = mix(keys * _GOLDEN + bands[:, :, row])
    return keys


def estimate_similarity(one: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Estimate the similarity of compact signatures, (P) or (N, P), to others (N, P): (N) float64.
    Corrects for low bytes that agree by chance, 1 in 256 (b-bit MinHash, Li and König 2010)."""
    agreed = (others == one).mean(axis=1)
    return (agreed - 1 / 256) / (1 - 1 / 256)


def _sketch(batch: list[str], sketches: np.ndarray) -> None:
    """Lower `sketches`, (len(batch), P), to the minimum of each slot over the shingles."""
    joined = np.frombuffer("".join(batch).encode("utf-32-le", "surrogatepass"), np.uint32)
    ends = np.cumsum([len(text) for text in batch])
    slots = sketches.shape[1]
    shift = _WORD(64 - (slots - 1).bit_length())
    flat = sketches.reshape(-1)
    shingles = len(joined) - _SHINGLE + 1
    for start in range(0, shingles, _MIXED_AT_ONCE):
        stop = min(start + _MIXED_AT_ONCE, shingles)
        codes = joined[start : stop + _SHINGLE - 1].astype(_WORD)
        hashes = codes[: stop - start].copy()
        for offset in range(1, _SHINGLE):
            hashes *= _GOLDEN
            hashes += codes[offset : offset + stop - start]
        hashes = mix(hashes)
        places = np.arange(start, stop)
        document = np.searchsorted(ends, places, side="right")
        # Skip shingles that cross into the next document.
        whole = places + _SHINGLE <= ends[document]
        slot = document * slots + (hashes >> shift).astype(np.int64)
        rest = np.minimum(hashes[whole].astype(np.uint32), _EMPTY - np.uint32(1))
        np.minimum.at(flat, slot[whole], rest)


def _densify(sketches: np.ndarray) -> None:
    document, slot = np.nonzero(sketches == _EMPTY)
    original = sketches.copy()
    attempt = 0
    while len(slot):
        attempt += 1
        key = mix(slot.astype(_WORD) * _GOLDEN + _WORD(attempt))
        source = (key % _WORD(sketches.shape[1])).astype(np.int64)
        values = original[document, source]
        sketches[document, slot] = values
        is_empty = values == _EMPTY
        document, slot = document[is_empty], slot[is_empty]


_ROUNDS = 64  # most representatives of a bucket; documents that remain after them stay


def band_rows(rows: pa.Table, number: int, num_partitions: int) -> pa.Table:
    """Return a row per band of each document of range `number` with a signature; `rows` are keys
    (range_builder.py)."""
    rows = rows.append_column("row", pa.array(np.arange(rows.num_rows, dtype=np.int32)))
    rows = rows.filter(pc.is_valid(rows["bands"]))  # pyright: ignore[reportAttributeAccessIssue]
    count = rows.num_rows
    width = len(rows["bands"][0].as_py()) // 8 if count else 1
    keys = np.frombuffer(b"".join(rows["bands"].to_pylist()), "<u8")
    owners = pa.array(np.repeat(np.arange(count), width))
    return pa.table(
        {
            "partition": (keys % np.uint64(num_partitions)).astype(np.int64),
            "band": keys.astype(np.uint64),
            "digest": rows["digest"].take(owners),
            "signature": rows["signature"].take(owners),
            "range": np.full(count * width, number, np.int32),
            "row": rows["row"].take(owners),
        }
    )


def mark_duplicates(rows: pa.Table) -> set[bytes]:
    """Return the digests of the near-duplicates among the rows of whole bands."""
    if not rows.num_rows:
        return set()
    digests = np.frombuffer(b"".join(rows["digest"].to_pylist()), ">u8").reshape(-1, 2)
    joined = b"".join(rows["signature"].to_pylist())
    signature = np.frombuffer(joined, np.uint8).reshape(len(digests), -1)
    band, range_, row = (rows[name].to_numpy() for name in ("band", "range", "row"))
    order = np.lexsort((row, range_, digests[:, 1], digests[:, 0], band))
    is_distinct = np.ones(len(order), bool)
    is_distinct[1:] = (band[order][1:] != band[order][:-1]) | (
        digests[order][1:] != digests[order][:-1]
    ).any(axis=1)
    rest = order[is_distinct]
    rest = rest[np.lexsort((row[rest], range_[rest], band[rest]))]
    marks: set[bytes] = set()
    for _ in range(_ROUNDS):
        is_first = np.ones(len(rest), bool)
        is_first[1:] = band[rest][1:] != band[rest][:-1]
        if is_first.all():
            break
        leader = rest[np.maximum.accumulate(np.where(is_first, np.arange(len(rest)), 0))]
        other, leader = rest[~is_first], leader[~is_first]
        alike = estimate_similarity(signature[leader], signature[other]) >= SIMILARITY
        marks |= {digests[index].tobytes() for index in other[alike]}
        rest = other[~alike]
    return marks
