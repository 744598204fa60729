"""Schemes of span tags, and their conversion to IOB2.

    IOB1, IOB2     B- begins a span: only after another of its type, or always
    IOE1, IOE2     E- ends a span: only before another of its type, or always
    IOBES, BILOU   B- and E- (L-) for the ends, S- (U-) for a span of one word; BMES has M- for I-

CoNLL-2003 (Tjong Kim Sang and De Meulder 2003, arXiv:cs/0306050) marks entities in IOB1; later
files, and the usual scorer, use IOB2. IOE1 and IOE2 are by Tjong Kim Sang and Veenstra 1999
(arXiv:cs/9907006). BMES marks Chinese words without a type. One rule reads all of them: a span
begins at B-, S- and U-, after E-, L-, S- and U-, and where the type changes.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from rungwise.core.errors import DataError
from rungwise.tasks.kinds.examples import Tagged

SPANS = re.compile(r"O|[BIMESLU]-.+")
BARE = frozenset("BIMESLUO")  # tags without a type
_SCHEMES = tuple(map(frozenset, ("BI", "IE", "BIES", "BMES", "BILU")))
_BEGINS, _ENDS = "BSU", "ELSU"
_BARE_TYPE = "span"
_OTHER_SPELLING = re.compile(r"[BIMESLUW][-_:/].+|.+[-_:/][BIMESLUW]")  # B_PER, PER-B


def convert_sentences(sentences: Iterable[Tagged], places: Mapping[str, str]) -> Iterator[Tagged]:
    """Yield the sentences of a file with tags in IOB2; `places` has where each tag first stands.

    Raises DataError for tags that mark spans in no known scheme.
    """
    if odd := find_odd_tag(places):
        tag, expected = odd
        raise DataError(
            f"{places[tag]}: expected {expected}, found {tag!r}; the spans cannot be told, so "
            "rewrite the tags, or set data.format.scheme to as_is to take them as labels of words"
        )
    for sentence in sentences:
        yield replace(sentence, tags=tuple(to_iob2(sentence.tags or (), places)))


def to_iob2(tags: Sequence[str], scheme: Collection[str] = ()) -> list[str]:
    """Convert the tags of a sentence to IOB2. `scheme` are all tags of its file; if one belongs to
    no span scheme, nothing changes."""
    scheme = scheme or {*tags}
    if not are_spans(scheme):
        return [*tags]
    iob2, inside = [], ""
    for tag in _add_type(tags, scheme):
        mark, type_ = tag[0], tag[2:]
        begins = mark in _BEGINS or type_ != inside
        iob2.append("O" if tag == "O" else f"{'B' if begins else 'I'}-{type_}")
        inside = "" if mark in _ENDS else type_
    return iob2


def iob2_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the tags that sentences tagged with `labels` can have after `to_iob2`."""
    if not are_spans(labels):
        return tuple(labels)
    tags: dict[str, None] = {}
    for tag in _add_type(labels, labels):
        if tag != "O":
            tags[f"B-{tag[2:]}"] = None
        if tag[0] not in _BEGINS:
            tags[tag if tag == "O" else f"I-{tag[2:]}"] = None
    return tuple(tags)


def are_spans(tags: Collection[str]) -> bool:
    """Tell whether the tags of a file mark spans."""
    marks = {*tags} - {"O"}
    return bool(marks) and (all(map(SPANS.fullmatch, marks)) or _are_bare(tags))


def find_odd_tag(tags: Collection[str]) -> tuple[str, str] | None:
    """Return a tag that shows that the tags of a file mark spans in no known scheme, and what was
    expected; None if the scheme is known, or if they mark no spans."""
    marked = sorted({*tags} - {"O"})
    if not are_spans(tags):
        spelt = "O" in tags and marked and all(map(_OTHER_SPELLING.fullmatch, marked))
        return (marked[0], "tags that are written as B-PER") if spelt else None
    marks = "".join(dict.fromkeys(tag[0] for tag in marked))
    expected = f"the marks of one scheme (IOB, IOE, IOBES, BMES or BILOU), not all of {marks}"
    if not any(each.issuperset(marks) for each in _SCHEMES):
        usual = max(_SCHEMES, key=lambda each: sum(tag[0] in each for tag in marked))
        return next(tag for tag in marked if tag[0] not in usual), expected
    # Where nothing begins a span of several words, S- may stand for its start.
    if {*"SU"} & {*marks} and {*"IM"} & {*marks} and "B" not in marks:
        return next(tag for tag in marked if tag[0] in "SU"), expected
    return None


def _are_bare(tags: Collection[str]) -> bool:
    """Tell whether the tags mark spans without a type: B, I and O, or B, M, E and S."""
    return BARE.issuperset(tags) and not ({"B", "S"}.isdisjoint(tags) and not {*"IE"} <= {*tags})


def _add_type(tags: Sequence[str], scheme: Collection[str]) -> Sequence[str]:
    """Return tags without a type as tags with a mark and a type."""
    if _are_bare(scheme):
        return [tag if tag == "O" else f"{tag}-{_BARE_TYPE}" for tag in tags]
    return tags
