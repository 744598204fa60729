"""Near-duplicates among all documents of a corpus, by locality-sensitive hashing.

Documents whose signatures agree in a band of slots share a bucket (Leskovec, Rajaraman and Ullman,
chapter 3). The smallest digest of a bucket marks those with a similar signature; then the rest of
the bucket repeats this. A document is dropped if any bucket marks it, so the result depends on the
texts alone. A dropped document may mark others: of a chain A ~ B ~ C only the smallest may stay.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time

from rungwise.corpus.deduplication.signatures import estimate_similarity

# Most representatives of a bucket; documents that remain after them stay.
_ROUNDS = 64


def band_rows(rows: pa.Table, num_partitions: int) -> pa.Table:
    """Return a row per band of each document with a signature; `rows` are keys (range_builder.py).

    Columns: `partition` of the shuffle, `band` (its key), `digest` and `signature`.
    """
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
        }
    )


def mark_duplicates(rows: pa.Table, similarity: float) -> dict[str, str]:
    """Map each near-duplicate among the rows of whole bands to the digest that it duplicates.

    If a document resembles several others, the smallest digest is named.
    """
    if not rows.num_rows:
        return {}
    # Two big-endian numbers compare as their hexadecimal digits do.
    digests = np.frombuffer(b"".join(rows["digest"].to_pylist()), ">u8").reshape(-1, 2)
    band = rows["band"].to_numpy()
    order = np.lexsort((digests[:, 1], digests[:, 0], band))
    digests, band = digests[order], band[order]
    joined = b"".join(rows["signature"].to_pylist())
    signature = np.frombuffer(joined, np.uint8).reshape(len(order), -1)[order]
    is_distinct = np.ones(len(order), bool)
    is_distinct[1:] = (band[1:] != band[:-1]) | (digests[1:] != digests[:-1]).any(axis=1)
    rest = np.nonzero(is_distinct)[0]
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
