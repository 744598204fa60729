"""Tagged words in JSON or Parquet: lists of words and tags, or a text with marked character ranges.

Labelling tools export entities as marks. Their text is split into words here: runs of letters and
digits, with every other character, and every Chinese one, a word of its own. Words also end at both
ends of a mark, so that a mark is always whole words.

Schemes of span tags, and their conversion to IOB2.

    IOB1, IOB2     B- begins a span: only after another of its type, or always
    IOE1, IOE2     E- ends a span: only before another of its type, or always
    IOBES, BILOU   B- and E- (L-) for the ends, S- (U-) for a span of one word; BMES has M- for I-

CoNLL-2003 (Tjong Kim Sang and De Meulder 2003, arXiv:cs/0306050) marks entities in IOB1; later
files, and the usual scorer, use IOB2. IOE1 and IOE2 are by Tjong Kim Sang and Veenstra 1999
(arXiv:cs/9907006). BMES marks Chinese words without a type. One rule reads all of them: a span
begins at B-, S- and U-, after E-, L-, S- and U-, and where the type changes.
"""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import (
    Damage,
    Labels,
    Units,
    code_point,
    label_name,
    label_names,
    quote,
    suggest_units,
    words,
)
from rungwise.tasks.formats.records import (
    Layout,
    RecordsFormat,
    TextColumn,
    get_nested,
    require_object,
)
from rungwise.tasks.kinds.examples import Tagged
from rungwise.tokenizer.mask_units import HAN

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


_WORD = re.compile(rf"[{HAN}]|[^\W_{HAN}]+|[^\s]")


class _JsonTags(RecordsFormat):
    fixed_kind = "tagging"

    # a JSON object per line, one JSON array or object, or Parquet
    layout: Layout = "json_lines"
    # {value in the file: name}, or a list of the allowed values; null: any value
    labels: Labels | None = None

    @model_validator(mode="after")
    def _json(self) -> Self:
        if self.layout == "delimited":
            raise ValueError(
                "layout: expected json_lines, json or parquet; kind: conll is for columns"
            )
        return self

    @property
    def stated_labels(self) -> tuple[str, ...]:
        return label_names(self.labels)


class TokenColumns(Config):
    """The fields that hold the words and their tags."""

    words: str = "tokens"
    tags: str = "tags"


class TokensFormat(_JsonTags):
    """Lists of words and of tags; tags may be numbers that `labels` names."""

    kind: Literal["tokens"] = "tokens"
    columns: TokenColumns = TokenColumns()
    scheme: Literal["iob2", "as_is"] = "iob2"  # iob2: convert the tags to IOB2; as_is: keep them

    @property
    def stated_labels(self) -> tuple[str, ...]:
        names = label_names(self.labels)
        return iob2_labels(names) if self.scheme == "iob2" else names

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Tagged]:
        rows = []
        for line, row in self.records(file, split, counts):
            with self.skip_damage(counts, row["columns.words"]):
                where, given, tags = f"{file.uri}:{line}", row["columns.words"], row["columns.tags"]
                if not isinstance(given, list) or not isinstance(tags, list) or not given:
                    raise Damage(
                        f"{where}: expected lists of words and tags, found {quote(given)} and "
                        f"{quote(tags)}; mend the line, or change data.format.columns",
                        "what_is_no_list",
                    )
                if len(given) != len(tags):
                    raise Damage(
                        f"{where}: expected a tag for each word, found {len(given)} words and "
                        f"{len(tags)} tags; mend the line",
                        "a_word_without_a_tag",
                    )
                rows.append(
                    Tagged(
                        f"{file.name}:{line}",
                        tuple(words(word, where, "a word") for word in given),
                        tuple(label_name(str(tag), self.labels, where) for tag in tags),
                    )
                )
        if self.scheme == "as_is":
            yield from rows
            return
        places = {tag: row.where for row in reversed(rows) for tag in row.tags or ()}
        yield from convert_sentences(rows, places)


class MarkColumns(Config):
    """The fields of the text and of its marks. Where a mark is a list, its fields are indexes."""

    text: str = "text"
    marks: str = "label"
    start: str = "0"  # of a mark: its first character
    end: str = "1"  # of a mark: the character after it
    label: str = "2"
    marked: str | None = "text"  # of a mark: its text, checked where there is one


class MarksFormat(_JsonTags):
    """A text and labelled [start, end) in characters."""

    # Prodigy writes no spans beside a text that has none.
    optional: ClassVar[frozenset[str]] = frozenset({"columns.marks"})

    kind: Literal["marks"] = "marks"
    columns: MarkColumns = MarkColumns()
    offsets: Units = "code_points"  # what `start` and `end` count

    @property
    def fields(self) -> dict[str, TextColumn | None]:
        return {"columns.text": self.columns.text, "columns.marks": self.columns.marks}

    @model_validator(mode="after")
    def _named(self) -> Self:
        if isinstance(self.labels, tuple):
            raise ValueError("labels: expected {what the file says: name}; leave it out for names")
        return self

    @property
    def stated_labels(self) -> tuple[str, ...]:
        return ()  # `labels` names marks, not tags of words

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Tagged]:
        has_marks = records = 0
        for line, row in self.records(file, split, counts):
            records, has_marks = records + 1, has_marks + (row["columns.marks"] is not None)
            with self.skip_damage(counts, row["columns.text"]):
                where = f"{file.uri}:{line}"
                text = words(row["columns.text"], where, "the text")
                marks = sorted(self._marks(row["columns.marks"], text, where))
                for (_, end, _), (start, _, label) in itertools.pairwise(marks):
                    if start < end:
                        raise Damage(
                            f"{where}: expected marks beside each other, found {quote(label)} from "
                            f"character {start} inside of another that ends at {end}; leave one "
                            "out",
                            "marks_that_overlap",
                        )
                yield _cut(f"{file.name}:{line}", text, marks)
        if records and not has_marks:
            raise DataError(
                f"{file.uri}: expected marks in the field {self.columns.marks!r}, found no record "
                "that has it; change data.format.columns.marks"
            )

    def _marks(self, marks: Any, text: str, where: str) -> Iterator[tuple[int, int, str]]:
        if not isinstance(marks, list | None):
            raise Damage(
                f"{where}: expected a list of marks, as [start, end, label], found {quote(marks)}; "
                "mend the line, or change data.format.columns.marks",
                "what_is_no_list",
            )
        for mark in marks or []:
            fields, keys = require_object(mark, where), self.columns
            offset, end_offset, label = (
                get_nested(fields, column, where, f"data.format.columns.{key}")
                for key, column in (("start", keys.start), ("end", keys.end), ("label", keys.label))
            )
            if isinstance(label, list) and len(label) == 1:
                label = label[0]
            start = end = None
            if isinstance(offset, int) and isinstance(end_offset, int):
                start, end = (code_point(text, n, self.offsets) for n in (offset, end_offset))
            if start is None or end is None or start >= end:
                raise Damage(
                    f"{where}: expected a mark within the {len(text)} characters of the text, "
                    f"found {quote(offset)} to {quote(end_offset)}; mend it, or change "
                    "data.format.offsets",
                    "a_mark_outside_of_the_text",
                )
            stated = fields.get(keys.marked or "")
            # Label Studio writes a backslash and an n for a line break.
            if isinstance(stated, str) and _join_lines(text[start:end]) != _join_lines(stated):
                raise Damage(
                    f"{where}: expected the marked text {quote(stated)} at {offset} to "
                    f"{end_offset}, found {quote(text[start:end])}"
                    f"{suggest_units(text, offset, stated)}; mend it, or change "
                    "data.format.offsets or columns.marked",
                    "a_mark_of_another_text",
                )
            yield start, end, label_name(str(label), self.labels, where)


def _join_lines(text: str) -> str:
    return " ".join(text.replace("\\n", " ").split())


def _cut(where: str, text: str, marks: Sequence[tuple[int, int, str]]) -> Tagged:
    texts, tags, at = [], [], 0
    for start, end, label in [*marks, (len(text), len(text), "")]:
        outside, inside = _WORD.findall(text[at:start]), _WORD.findall(text[start:end])
        texts += outside + inside
        tags += ["O"] * len(outside) + [f"{'I' if n else 'B'}-{label}" for n in range(len(inside))]
        at = end
    return Tagged(where, tuple(texts), tuple(tags))
