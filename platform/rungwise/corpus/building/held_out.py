"""Hold out a share of the text, in bytes, which are one unit for all languages.

A document is held out if its split key, a hash of its text, is small. While that gives the share to
within a fifth, as it does with many documents, text that is added moves no document. Otherwise a
passage of each long document is held out, and of the others those with the smallest keys."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rungwise.corpus.cleaning.duplicates import DocumentDecision
from rungwise.corpus.config import DocumentRules
from rungwise.corpus.document import text_digest, text_length

_TOLERANCE = 0.2  # the share holds if it is off by less than this part of itself
_PASSAGE_TOLERANCE = 0.1  # a passage has a size within this part of the one asked
_LEAST_CHARACTERS = 200
_LEAST, _FEWEST = 2, 4  # held out of a corpus too small for its share; next-sentence pairs need two
_KEYS = 1 << 64


class HeldOutSplit(NamedTuple):
    """Documents of more bytes than `longest` are cut if they can be (None: no document is). Of the
    others, those with split keys up to `threshold` are held out, and of one with a key up to `edge`
    a passage of `edge_share`. If that one cannot be cut, it is held out if `hold_whole_edge`."""

    threshold: int
    longest: int | None = None
    edge: int = -1
    edge_share: float = 0.0
    hold_whole_edge: bool = False


def can_be_cut(text: str, fraction: float, minimum_characters: int) -> bool:
    """Whether a passage of this fraction and its rest are some sentences long, and twice as long as
    a document must be."""
    least = max(2 * minimum_characters, _LEAST_CHARACTERS)
    return least <= min(fraction, 1 - fraction) * text_length(text)


def fraction_threshold(fraction: float) -> int:
    """Return the largest split key of so large a share of all keys."""
    return max(int(fraction * _KEYS) - 1, 0)


def choose_split(
    fraction: float, decisions: Sequence[DocumentDecision], read_keys: Callable[[], pa.Table]
) -> HeldOutSplit:
    """Choose how to hold out `fraction` of the bytes of the documents that `decisions` keep, whose
    keys `read_keys` reads. At least two documents are held out, or one of fewer than four."""
    least = _LEAST if sum(one.documents for one in decisions) >= _FEWEST else 1
    smallest = sorted(key for one in decisions for key in one.smallest)[:least]
    threshold = fraction_threshold(fraction)
    held_out = sum(one.held_out_bytes for one in decisions)
    room = fraction * sum(one.bytes for one in decisions)
    tolerance = _TOLERANCE * room
    if smallest[-1:] <= [threshold] and abs(held_out - room) <= tolerance:
        return HeldOutSplit(threshold)
    longest = int(tolerance)
    table = read_keys()
    split, sizes, can_cut = (table[name].to_numpy() for name in ("split", "bytes", "can_be_cut"))
    is_cut = can_cut & (sizes > longest)
    room = max(0.0, room - fraction * int(sizes[is_cut].sum()))
    keys, place = np.unique(split[~is_cut], return_inverse=True)
    key_bytes = np.bincount(place, sizes[~is_cut], len(keys))  # exact: far below 2 ** 53
    up_to = np.cumsum(key_bytes)
    fits = int(np.searchsorted(up_to, room, side="right"))  # with the smallest keys
    edge, edge_share = -1, 0.0
    if fits == len(keys):
        threshold = _KEYS - 1
    else:
        next_key, next_bytes = int(keys[fits]), float(key_bytes[fits])
        more = float(up_to[fits]) - room
        less = next_bytes - more
        threshold = next_key if more < less else next_key - 1
        if min(more, less) > tolerance:
            threshold, edge, edge_share = next_key - 1, next_key, less / next_bytes
    is_short = max(int(is_cut.sum()), sum(key <= threshold for key in smallest)) < least
    if is_short and edge < smallest[-1]:
        threshold = max(threshold, smallest[-1])
    return HeldOutSplit(max(threshold, 0), longest, edge, edge_share, is_short or edge_share > 0.5)


def split_documents(
    table: pa.Table, split: HeldOutSplit, rules: DocumentRules
) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """The documents of a table of `RangeBuilder`, long ones cut; which (N,) are held out; and the
    row that each, (N,), was in `table`, -1 for the parts of one that was cut."""
    keys = table["split"].to_numpy()
    held_out = keys <= np.uint64(split.threshold)
    is_long = is_edge = np.zeros(len(keys), bool)
    if split.longest is not None:
        is_long = table["can_be_cut"].to_numpy() & (table["bytes"].to_numpy() > split.longest)
        is_edge = ~held_out & ~is_long & (keys <= np.uint64(max(split.edge, 0)))
    tables, masks, rows, begin = [table[:0]], [held_out[:0]], [np.arange(0)], 0
    for row in np.flatnonzero(is_long | is_edge).tolist():
        document = table[row : row + 1].to_pylist()[0]
        fraction = split.edge_share if is_edge[row] else rules.held_out_fraction
        if not can_be_cut(" ".join(document["sentences"]), fraction, rules.minimum_characters):
            held_out[row] = split.hold_whole_edge
            continue
        parts, mask = _cut(document, fraction, rules.minimum_characters)
        tables += [table[begin:row], pa.Table.from_pylist(parts, schema=table.schema)]
        masks += [held_out[begin:row], np.array(mask)]
        rows += [np.arange(begin, row), np.full(len(parts), -1)]
        begin = row + 1
    rest = np.arange(begin, table.num_rows)
    table = pa.concat_tables([*tables, table[begin:]])
    return table, np.concatenate([*masks, held_out[begin:]]), np.concatenate([*rows, rest])


def _cut(
    document: dict[str, Any], fraction: float, minimum_characters: int
) -> tuple[list[dict[str, Any]], list[bool]]:
    """Cut a document before and after its held-out passage, numbered from 1 in their ids."""
    text = " ".join(document["sentences"])
    first, last = _find_passage(document, text, fraction, minimum_characters)
    parts, mask = [], []
    for begin, end in ((0, first), (first, last), (last, len(text))):
        lines, starts = _slice(document, begin, end)
        if not lines:
            continue
        part = {
            "id": f"{document['id']}#{len(parts) + 1}",
            "digest": text_digest(lines),
            "sentences": lines,
            "paragraph_starts": starts,
            "bytes": len(" ".join(lines).encode()),
        }
        parts.append(document | part)
        mask.append(begin == first)
    return parts, mask


def _slice(document: dict[str, Any], begin: int, end: int) -> tuple[list[str], list[int]]:
    """Return sentences and paragraph starts of a document between two characters of its text."""
    lines: list[str] = []
    starts: list[int] = []
    place, opens = 0, True
    paragraph_starts = frozenset(document["paragraph_starts"])
    for number, sentence in enumerate(document["sentences"]):
        opens |= number in paragraph_starts
        low, high = max(begin - place, 0), min(end - place, len(sentence))
        place += len(sentence) + 1
        if low >= high or not (line := sentence[low:high].strip()):
            continue
        if opens:
            starts.append(len(lines))
            opens = False
        lines.append(line)
    return lines, starts


def _find_passage(
    document: dict[str, Any], text: str, fraction: float, minimum_characters: int
) -> tuple[int, int]:
    """Return the characters [first, last) of `text` to hold out: a share in one of the places,
    drawn by the split key, into which the document can be divided."""
    passage = fraction * len(text)
    place = document["split"] % max(1, int(1 / fraction)) * passage
    if len(text) - place - passage < minimum_characters:
        place = len(text) - passage
    sizes = np.cumsum([0, *(len(sentence) + 1 for sentence in document["sentences"])])
    sizes[-1] = len(text)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    blanks = np.flatnonzero(codes == ord(" ")) + 1
    # Whole paragraphs if they fit, or else sentences, words or characters.
    for bounds in (
        np.append(sizes[document["paragraph_starts"]], len(text)),
        sizes,
        np.concatenate([[0], blanks, [len(text)]]),
        np.arange(len(text) + 1),
    ):
        first = int(bounds[np.abs(bounds - place).argmin()])
        last = int(bounds[np.abs(bounds - first - passage).argmin()])
        last = len(text) if len(text) - last < minimum_characters else last
        first = 0 if first < minimum_characters else first
        if abs(last - first - passage) <= _PASSAGE_TOLERANCE * passage:
            break
    return first, last
