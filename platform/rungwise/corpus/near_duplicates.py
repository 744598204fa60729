"""Near-duplicates among all documents of a corpus, by locality-sensitive hashing.

Documents whose signatures agree in a band of slots meet in a bucket (Leskovec, Rajaraman and
Ullman, chapter 3). The smallest digest of a bucket represents those that are similar enough to it
by their signatures, and the rest of the bucket starts again. A document is dropped if any bucket
marks it, so the outcome depends on the texts alone.

A document can be marked by one that is dropped itself: of a chain A ~ B ~ C the smallest is kept.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # makes most of its functions at run time: no checker knows them

from rungwise.corpus.signatures import similarity

# At most so many representatives in one bucket; what is left after them is kept.
_ROUNDS = 64


def band_rows(rows: pa.Table, num_partitions: int) -> pa.Table:
    """A row for each band of each document that has a signature; `rows` are keys (build.py).

    Columns: `partition`, the part of the shuffle that handles the band; `band`, its key; `digest`
    and `signature`, those of the document.
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


def marks(rows: pa.Table, at_least: float) -> dict[str, str]:
    """The near-duplicates among the rows of whole bands: digest to the digest it duplicates.

    Where one document resembles several others, the smallest digest is named.
    """
    # As two big-endian numbers they compare as their hexadecimal digits do.
    digests = np.frombuffer(b"".join(rows["digest"].to_pylist()), ">u8").reshape(-1, 2)
    band = rows["band"].to_numpy()
    order = np.lexsort((digests[:, 1], digests[:, 0], band))
    digests, band = digests[order], band[order]
    joined = b"".join(rows["signature"].to_pylist())
    signature = np.frombuffer(joined, np.uint8).reshape(len(order), -1)[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (band[1:] != band[:-1]) | (digests[1:] != digests[:-1]).any(axis=1)
    left = np.nonzero(fresh)[0]
    marked: dict[str, str] = {}
    for _ in range(_ROUNDS):
        first = np.ones(len(left), bool)
        first[1:] = band[left][1:] != band[left][:-1]
        if first.all():
            break
        leader = left[np.maximum.accumulate(np.where(first, np.arange(len(left)), 0))]
        other, leader = left[~first], leader[~first]
        alike = similarity(signature[leader], signature[other]) >= at_least
        for index, leader_index in zip(other[alike], leader[alike], strict=True):
            digest, kept = digests[index].tobytes().hex(), digests[leader_index].tobytes().hex()
            marked[digest] = min(kept, marked.get(digest, kept))
        left = other[~alike]
    return marked
