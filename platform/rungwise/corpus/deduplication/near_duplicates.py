"""Near-duplicates among all documents of a corpus: MinHash, and locality-sensitive hashing.

Similarity is the Jaccard index of the sets of shingles (Broder 1997). A shingle is a run of
characters, since scripts without blanks show no words; nine suit prose (Leskovec, Rajaraman and
Ullman, chapter 3). The signature is a one-permutation MinHash: each shingle is hashed once, the top
bits select one of `permutations` slots, and each slot keeps the smallest remainder (Li, Owen and
Zhang 2012). An empty slot copies another, chosen by a hash of the slot alone, so that similar texts
choose alike (Shrivastava 2017, arXiv:1703.04664).

Two signatures agree in a slot with probability s, their similarity. `bands` of `rows` slots are
compared as one, so two documents share a band, and a bucket, with probability
1 - (1 - s^rows)^bands. The first document of a bucket marks those with a similar signature; then
the rest of the bucket repeats this. A document is dropped if any bucket marks it, so the result
depends on the texts and their order alone, and text that comes after all other drops none of it. A
dropped document may mark others: of a chain A ~ B ~ C only the first may stay.

P permutations (slots)
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time
from pydantic import Field

from rungwise.core.configuration.config import Config

_WORD = np.uint64
_MIXED_AT_ONCE = 1 << 18
# Steps of SplitMix64 (Steele, Lea and Flood 2014).
_GOLDEN = _WORD(0x9E3779B97F4A7C15)
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_EMPTY = np.uint32(0xFFFFFFFF)
_RECALL = 0.9


class NearDuplicateConfig(Config):
    """Drop a document that is too similar to another."""

    # Jaccard index of their shingles from which one is dropped
    similarity: float = Field(default=0.8, ge=0.5, le=1)
    # length of a shingle, a run of characters
    shingle_characters: int = Field(default=9, ge=1, le=64)
    # numbers per signature, P; the estimate of a similarity s has the error sqrt(s (1 - s) / P)
    permutations: Literal[64, 128, 256, 512] = 128


class Banding(NamedTuple):
    """The number of bands of a signature, and of rows (slots) in each."""

    bands: int
    rows: int

    def probability(self, similarity: float) -> float:
        return 1 - (1 - similarity**self.rows) ** self.bands


def choose_banding(config: NearDuplicateConfig) -> Banding:
    """Return the longest bands that still match nine of ten pairs at `similarity`."""
    choices = (Banding(config.permutations // rows, rows) for rows in range(1, 33))
    sufficient = [
        banding for banding in choices if banding.probability(config.similarity) >= _RECALL
    ]
    return max(sufficient, key=lambda banding: banding.rows)


def sign_texts(texts: Sequence[str], config: NearDuplicateConfig) -> np.ndarray:
    """Return the signatures of `texts`, (len(texts), P) uint32; case is ignored."""
    size = config.shingle_characters
    sketches = np.full((len(texts), config.permutations), _EMPTY, np.uint32)
    for first, batch in _batches(texts, size):
        _sketch(batch, size, sketches[first : first + len(batch)])
    _densify(sketches)
    return sketches


def band_keys(signatures: np.ndarray, banding: Banding) -> np.ndarray:
    """Return a key per band of each signature, (N, bands) uint64; bands share no keys."""
    bands = signatures[:, : banding.bands * banding.rows].astype(_WORD)
    bands = bands.reshape(len(signatures), banding.bands, banding.rows)
    keys = np.broadcast_to(np.arange(1, banding.bands + 1, dtype=_WORD), bands.shape[:2]).copy()
    for row in range(banding.rows):
        keys = mix(keys * _GOLDEN + bands[:, :, row])
    return keys


def low_bytes(signatures: np.ndarray) -> np.ndarray:
    """Return the low byte of each number, (N, P) uint8: enough to estimate a similarity."""
    return signatures.astype(np.uint8)


def estimate_similarity(one: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Estimate the similarity of compact signatures, (P) or (N, P), to others (N, P): (N) float64.

    Corrects for low bytes that agree by chance, 1 in 256 (b-bit MinHash, Li and König 2010).
    """
    agreed = (others == one).mean(axis=1)
    return (agreed - 1 / 256) / (1 - 1 / 256)


def _batches(texts: Sequence[str], size: int) -> Iterator[tuple[int, list[str]]]:
    """Yield batches of lower-cased texts, padded to a shingle, and the index of the first."""
    batch: list[str] = []
    first = characters = 0
    for index, text in enumerate(texts):
        batch.append(text.lower().ljust(size, "\0"))
        characters += len(batch[-1])
        if characters >= _MIXED_AT_ONCE:
            yield first, batch
            batch, first, characters = [], index + 1, 0
    if batch:
        yield first, batch


def _sketch(batch: list[str], size: int, sketches: np.ndarray) -> None:
    """Lower `sketches`, (len(batch), P), to the minimum of each slot over the shingles."""
    joined = np.frombuffer("".join(batch).encode("utf-32-le", "surrogatepass"), np.uint32)
    ends = np.cumsum([len(text) for text in batch])
    slots = sketches.shape[1]
    shift = _WORD(64 - (slots - 1).bit_length())
    flat = sketches.reshape(-1)
    shingles = len(joined) - size + 1
    for start in range(0, shingles, _MIXED_AT_ONCE):
        stop = min(start + _MIXED_AT_ONCE, shingles)
        codes = joined[start : stop + size - 1].astype(_WORD)
        hashes = codes[: stop - start].copy()
        for offset in range(1, size):
            hashes *= _GOLDEN
            hashes += codes[offset : offset + stop - start]
        hashes = mix(hashes)
        places = np.arange(start, stop)
        document = np.searchsorted(ends, places, side="right")
        # Skip shingles that cross into the next document.
        whole = places + size <= ends[document]
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


def mix(words: np.ndarray) -> np.ndarray:
    """Hash each of `words`, uint64, one to one (SplitMix64)."""
    for bits, factor in _MIX:
        words = (words ^ (words >> _WORD(bits))) * _WORD(factor)
    return words ^ (words >> _WORD(31))


# Most representatives of a bucket; documents that remain after them stay.
_ROUNDS = 64


def band_rows(rows: pa.Table, number: int, num_partitions: int) -> pa.Table:
    """Return a row per band of each document of range `number` with a signature; `rows` are keys
    (range_builder.py).

    Columns: `partition` of the shuffle, `band` (its key), `digest`, `signature`, `range` and `row`.
    """
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


def mark_duplicates(rows: pa.Table, similarity: float) -> dict[str, str]:
    """Map each near-duplicate among the rows of whole bands to the digest that it duplicates.

    If a document resembles several earlier ones, the smallest digest is named.
    """
    if not rows.num_rows:
        return {}
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
    marks: dict[str, str] = {}
    for _ in range(_ROUNDS):
        is_first = np.ones(len(rest), bool)
        is_first[1:] = band[rest][1:] != band[rest][:-1]
        if is_first.all():
            break
        leader = rest[np.maximum.accumulate(np.where(is_first, np.arange(len(rest)), 0))]
        other, leader = rest[~is_first], leader[~is_first]
        alike = estimate_similarity(signature[leader], signature[other]) >= similarity
        for index, leader_index in zip(other[alike], leader[alike], strict=True):
            duplicate, original = (digests[at].tobytes().hex() for at in (index, leader_index))
            marks[duplicate] = min(original, marks.get(duplicate, original))
        rest = other[~alike]
    return marks
