"""Tagged words: in columns (CoNLL, CoNLL-U), as lists in JSON, or as marked ranges of a text.

Span tags are converted to IOB2 by default, so that a tag means the same in all data sets:

    IOB1, IOB2     B- begins a span: only after another of its type, or always
    IOE1, IOE2     E- ends a span: only before another of its type, or always
    IOBES, BILOU   B- and E- (L-) for the ends, S- (U-) for a span of one word; BMES has M- for I-

CoNLL-2003 (Tjong Kim Sang and De Meulder 2003, arXiv:cs/0306050) is in IOB1; IOE is by Tjong Kim
Sang and Veenstra 1999 (arXiv:cs/9907006). One rule reads all of them: a span begins at B-, S- and
U-, after E-, L-, S- and U-, and where the type changes."""

import itertools
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats import base
from rungwise.tasks.formats.base import Damage, FormatConfig, Labels, RecordsFormat
from rungwise.tasks.kinds.examples import Tagged
from rungwise.tokenizer.mask_units import HAN

_SPANS = re.compile(r"O|[BIMESLU]-.+")
_BARE = frozenset("BIMESLUO")  # tags without a type
_SCHEMES = tuple(map(frozenset, ("BI", "IE", "BIES", "BMES", "BILU")))
_BEGINS, _ENDS = "BSU", "ELSU"
_BARE_TYPE = "span"
_OTHER_SPELLING = re.compile(r"[BIMESLUW][-_:/].+|.+[-_:/][BIMESLUW]")  # B_PER, PER-B


def convert_sentences(sentences: Iterable[Tagged], places: Mapping[str, str]) -> Iterator[Tagged]:
    """Yield the sentences of a file with tags in IOB2; `places` has where each tag first stands.
    Raises DataError for tags that mark spans in no known scheme, or that are mistyped."""
    if odd := find_odd_tag(places):
        tag, expected = odd
        raise DataError(
            f"{places[tag]}: expected {expected}, found {tag!r}; rewrite the tag, or set "
            "data.format.scheme to as_is to take the tags as labels of words"
        )
    for sentence in sentences:
        yield replace(sentence, tags=tuple(to_iob2(sentence.tags or (), places)))


def to_iob2(tags: Sequence[str], scheme: Collection[str]) -> list[str]:
    """Convert the tags of a sentence to IOB2. `scheme` are all tags of its file; if one belongs to
    no span scheme, nothing changes."""
    if not are_spans(scheme):
        return [*tags]
    iob2, inside = [], ""
    if _are_bare(scheme):
        tags = [tag if tag == "O" else f"{tag}-{_BARE_TYPE}" for tag in tags]
    for tag in tags:
        mark, type_ = tag[0], tag[2:]
        begins = mark in _BEGINS or type_ != inside
        iob2.append("O" if tag == "O" else f"{'B' if begins else 'I'}-{type_}")
        inside = "" if mark in _ENDS else type_
    return iob2


def are_spans(tags: Collection[str]) -> bool:
    """Tell whether the tags of a file mark spans."""
    marks = {*tags} - {"O"}
    return bool(marks) and (all(map(_SPANS.fullmatch, marks)) or _are_bare(tags))


def find_odd_tag(tags: Collection[str]) -> tuple[str, str] | None:
    """Return a tag that shows that the tags of a file mark spans in no known scheme, or that it is
    mistyped among those that do, and what was expected; None if neither is so."""
    marked = sorted({*tags} - {"O"})
    if not are_spans(tags):
        bare = [tag for tag in marked if tag in _BARE]
        spans = [tag for tag in marked if _SPANS.fullmatch(tag)] or (bare if len(bare) > 2 else [])
        others = [tag for tag in marked if tag not in spans]
        if others and len(spans) > len(others) and ("O" in tags or spans == bare):
            return others[0], f"a tag that marks a span, as most do{base.suggest(others[0], spans)}"
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
    return _BARE.issuperset(tags) and not ({"B", "S"}.isdisjoint(tags) and not {*"IE"} <= {*tags})


_DOCUMENT = "-DOCSTART-"
CONLLU_WIDTH = 10
_CONLLU_NO_WORD = re.compile(r"\d+[-.]\d+")


_Sentence = list[tuple[int, list[str]]]  # the number of each line, and its cells


@dataclass(frozen=True)
class _Layout:
    """Where the word and its tag are. Without `width` the first line decides the width."""

    word: int
    tag: int
    width: int = 0
    tabs: bool = True
    comment: str | None = None
    numbered: bool = False
    to_iob2: bool = False


class _Tagging(FormatConfig):
    fixed_kind = "tagging"

    @property
    @abstractmethod
    def layout(self) -> _Layout:
        """The columns of words and tags."""

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Tagged]:
        """Yield the sentences of a file. Raises Damage for a line with the wrong number of columns,
        DataError for tags of spans in no scheme that is known."""
        places: dict[str, str] = {}
        sentences = self._read_sentences(file, counts, places)
        # The tags of the whole file tell their scheme.
        yield from convert_sentences([*sentences], places) if self.layout.to_iob2 else sentences

    def _read_sentences(
        self, file: SourceFile, counts: Counter[str], places: dict[str, str]
    ) -> Iterator[Tagged]:
        """Yield the sentences as written, and note where each tag stands first in `places`."""
        layout = self.layout
        for width, lines in _split_sentences(base.read_text(file, self.encoding), layout, counts):
            texts = tuple(c[layout.word] if len(c) == width else c[0] for _, c in lines)
            with self.skip_damage(counts):
                for line, cells in lines:
                    _check_cells(cells, width, f"{file.uri}:{line}", layout)
                # Only now: tags of a sentence that is left out say nothing about the scheme.
                for line, cells in lines:
                    if cells[layout.tag] not in places:
                        places[cells[layout.tag]] = f"{file.uri}:{line}"
                tags = tuple(cells[layout.tag] for _, cells in lines)
                yield Tagged(f"{file.name}:{lines[0][0]}", texts, tags)


class ConllFormat(_Tagging):
    """A word per line, in columns numbered from 0; -1 is the last one."""

    kind: Literal["conll"] = "conll"
    word: int = 0
    tag: int = -1
    # blank: any run of blanks and tabs; tab: a single tab
    separator: Literal["blank", "tab"] = "blank"
    # skip lines that begin with this; null: none
    comment: str | None = Field(default=None, min_length=1)
    scheme: Literal["iob2", "as_is"] = "iob2"  # iob2: convert the tags to IOB2; as_is: keep them

    @property
    def layout(self) -> _Layout:
        tabs, to_iob2 = self.separator == "tab", self.scheme == "iob2"
        return _Layout(self.word, self.tag, tabs=tabs, comment=self.comment, to_iob2=to_iob2)


class ConlluFormat(_Tagging):
    """CoNLL-U; multiword ranges and empty nodes are skipped."""

    kind: Literal["conllu"] = "conllu"
    # universal (upos) or language-specific (xpos) parts of speech
    tags: Literal["upos", "xpos"] = "upos"

    @property
    def layout(self) -> _Layout:
        tag = {"upos": 3, "xpos": 4}[self.tags]
        return _Layout(1, tag, CONLLU_WIDTH, comment="#", numbered=True)


def _split_sentences(
    text: str, layout: _Layout, counts: Counter[str]
) -> Iterator[tuple[int, _Sentence]]:
    """Yield the sentences, each with the number of columns that its lines should have."""
    width, sentence = layout.width, _Sentence()
    for number, line in enumerate(base.split_lines(text), start=1):
        # Only blank and tab: an ideographic or no-break space is a word where characters are words.
        blanks = line.replace("\t", " ").split(" ")
        cells = line.split("\t") if layout.tabs else [cell for cell in blanks if cell]
        # A blank may be a word where characters are words, but not without a tab.
        if not any(cells) or (len(cells) == 1 and not line.strip(" ")) or cells[0] == _DOCUMENT:
            if sentence:
                yield width, sentence
            sentence = []
            continue
        # Inside a sentence, a line of the usual columns is a word, such as # or #now.
        is_word = bool(sentence) and len(cells) == width
        if layout.comment and line.startswith(layout.comment) and not is_word:
            if not layout.numbered:
                counts["lines_left_out_as_comments"] += 1
            continue
        # The first line decides the width; a line with fewer columns lacks its word or its tag.
        if not width:
            least = (n + 1 if n >= 0 else -n for n in (layout.word, layout.tag))
            width = max(2, len(cells), *least)
        if not (layout.numbered and _CONLLU_NO_WORD.fullmatch(cells[0])):
            sentence.append((number, cells))
    if sentence:
        yield width, sentence


def _check_cells(cells: Sequence[str], width: int, where: str, layout: _Layout) -> None:
    """Raise Damage if a line has no word and tag."""
    is_word = not layout.numbered or cells[0].isdecimal()
    if len(cells) == width and cells[layout.word] and cells[layout.tag] and is_word:
        return
    expected = f"{width} columns, a word and its tag among them"
    if layout.numbered:
        expected += ", and the word's number in the first"
    line = base.quote(("\t" if layout.tabs else " ").join(cells))
    raise Damage.explain(where, expected, f"{len(cells)}: {line}", "kind, separator, word or tag")


_WORD = re.compile(rf"[{HAN}]|[^\W_{HAN}]+|[^\s]")


class _JsonTags(RecordsFormat):
    fixed_kind = "tagging"

    # a JSON object per line, one JSON array or object, or Parquet
    layout: Literal["json_lines", "json", "parquet"] = "json_lines"  # pyright: ignore[reportIncompatibleVariableOverride]
    # {value in the file: name}, or a list of the allowed values; null: any value
    labels: Labels | None = None

    @property
    def stated_labels(self) -> tuple[str, ...]:
        return ()  # `labels` names what the file has, before it becomes IOB2


class TokenColumns(Config):
    """The fields that hold the words and their tags."""

    words: str = "tokens"
    tags: str = "tags"


class TokensFormat(_JsonTags):
    """Lists of words and of tags; tags may be numbers that `labels` names."""

    kind: Literal["tokens"] = "tokens"
    columns: TokenColumns = TokenColumns()
    scheme: Literal["iob2", "as_is"] = "iob2"  # iob2: convert the tags to IOB2; as_is: keep them

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Tagged]:
        rows = [*super().read(file, split, counts)]
        places = {tag: row.where for row in reversed(rows) for tag in row.tags or ()}
        yield from convert_sentences(rows, places) if self.scheme == "iob2" else rows

    def example(self, row: base.Row, place: str, where: str, counts: Counter[str]) -> Tagged:
        tokens, tags = row["columns.words"], row["columns.tags"]
        are_lists = isinstance(tokens, list) and isinstance(tags, list)
        if not are_lists or not tokens or len(tokens) != len(tags):
            both = f"{base.quote(tokens)} and {base.quote(tags)}"
            raise Damage.explain(where, "lists of words and of as many tags", both, "columns")
        texts = tuple(base.words(word, where, "a word") for word in tokens)
        names = tuple(base.label_name(str(tag), self.labels, where) for tag in tags)
        return Tagged(place, texts, names)


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

    kind: Literal["marks"] = "marks"
    columns: MarkColumns = MarkColumns()

    @property
    def fields(self) -> dict[str, base.TextColumn | None]:
        return {"columns.text": self.columns.text, "columns.marks": self.columns.marks}

    def example(self, row: base.Row, place: str, where: str, counts: Counter[str]) -> Tagged:
        text = base.words(row["columns.text"], where, "the text")
        marks = sorted(self._marks(row["columns.marks"], text, where))
        for (_, end, _), (start, _, label) in itertools.pairwise(marks):
            if start < end:
                inside = f"{base.quote(label)} from character {start} inside of one to {end}"
                raise Damage.explain(where, "marks beside each other", inside)
        return _cut(place, text, marks)

    def _marks(self, marks: Any, text: str, where: str) -> Iterator[tuple[int, int, str]]:
        if not isinstance(marks, list | None):
            expected = "a list of marks, as [start, end, label]"
            raise Damage.explain(where, expected, base.quote(marks), "columns.marks")
        for mark in marks or []:
            fields, keys = base.require_object(mark, where), self.columns
            start, end, label = (
                base.get_nested(fields, column, where, f"data.format.columns.{key}")
                for key, column in (("start", keys.start), ("end", keys.end), ("label", keys.label))
            )
            if isinstance(label, list) and len(label) == 1:
                label = label[0]
            are_places = isinstance(start, int) and isinstance(end, int)
            if not are_places or not 0 <= start < end <= len(text):
                expected = f"a mark within the {len(text)} characters of the text"
                found = f"{base.quote(start)} to {base.quote(end)}"
                raise Damage.explain(where, expected, found, "columns")
            stated = fields.get(keys.marked or "")
            # Label Studio writes a backslash and an n for a line break.
            if isinstance(stated, str) and _join_lines(text[start:end]) != _join_lines(stated):
                expected = (
                    f"the marked text {base.quote(stated)} at {start} to {end} (in code points, "
                    "not UTF-16 units as in a browser)"
                )
                raise Damage.explain(where, expected, base.quote(text[start:end]), "columns")
            yield start, end, base.label_name(str(label), self.labels, where)


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
