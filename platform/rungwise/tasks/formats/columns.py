"""One word per line, in columns, with blank lines between sentences: CoNLL files and CoNLL-U.

CoNLL-2003 (Tjong Kim Sang and De Meulder 2003, arXiv:cs/0306050) marks entities in IOB1: B- is used
only where an entity directly follows another of its type. Later files, and the usual scorer, use
IOB2: B- begins every entity. Other schemes also mark the last word and single-word entities: IOBES
(or BIOES), BILOU, and BMES, which marks Chinese words without a type. CoNLL-2012 writes spans as
brackets: (PERSON* and *) on the first and the last word, (GPE) on a single one. By default all of
these are converted to IOB2, so that a tag means the same in all data sets. CoNLL-U follows
universaldependencies.org/format.html.
"""

from __future__ import annotations

import itertools
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import (
    Damage,
    FormatConfig,
    label_name,
    quote,
    read_text,
    split_lines,
)
from rungwise.tasks.kinds.examples import Tagged

SPANS = re.compile(r"O|[BIMESLU]-.+")
BARE = frozenset("BIMESO")  # tags without a type
BRACKETS = re.compile(r"\*\)?|\([^()*]+\*?\)?")
_BEGINS = "BSU"  # marks that begin a span
_BARE_TYPE = "span"
# Only blank and tab: an ideographic or no-break space is a word where characters are words.
_BLANKS = re.compile(r"[ \t]+")
_DOCUMENT = "-DOCSTART-"
_CONLLU_WIDTH = 10
_CONLLU_ID = re.compile(r"\d+")
_CONLLU_NO_WORD = re.compile(r"\d+[-.]\d+")


class _Word(NamedTuple):
    line: int
    text: str
    tag: str


@dataclass(frozen=True)
class _Layout:
    """Where the word and its tag are. Without `width` the first line decides the width."""

    word: int
    tag: int
    least: int  # columns of a line
    width: int = 0
    tabs: bool = True
    comment: str | None = None
    numbered: bool = False
    to_iob2: bool = False
    glued_digit: bool = False
    extra: bool = False


class _Tagging(FormatConfig):
    fixed_kind = "tagging"

    # the allowed tags, as written in the file; null: any
    labels: tuple[str, ...] | None = Field(default=None, min_length=1)

    @property
    def stated_labels(self) -> tuple[str, ...]:
        labels = self.labels or ()
        return iob2_labels(labels) if self.layout.to_iob2 else labels

    @property
    @abstractmethod
    def layout(self) -> _Layout:
        """The columns of words and tags."""

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Tagged]:
        """Yield the sentences of a file; Damage for a line with the wrong number of columns."""
        rows = list(_words(file, self.encoding, self.layout))
        scheme = {row.tag for row in rows if isinstance(row, _Word)}
        for is_end, sentence in itertools.groupby(rows, lambda row: row is None):
            if is_end:
                continue
            words, tags = [], []
            with self.skip_damage(counts):
                for row in filter(None, sentence):
                    if isinstance(row, Damage):
                        raise row
                    words.append(row)
                    tags.append(label_name(row.tag, self.labels, f"{file.uri}:{row.line}"))
                tags = to_iob2(tags, scheme) if self.layout.to_iob2 else tags
                texts = tuple(word.text for word in words)
                yield Tagged(f"{file.name}:{words[0].line}", texts, tuple(tags))


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
    # remove the digit after a character, its place in the word (X1), as in Weibo NER
    glued_digit: bool = False
    # lines may have any number of columns after those of the word and the tag, as in CoNLL-2012
    extra_columns: bool = False

    @model_validator(mode="after")
    def _counted(self) -> ConllFormat:
        if self.extra_columns and min(self.word, self.tag) < 0:
            raise ValueError(
                "extra_columns: count word and tag from the left, as in tag: 3; the last column "
                "is another one in each line"
            )
        return self

    @property
    def layout(self) -> _Layout:
        return _Layout(
            self.word,
            self.tag,
            least=max(2, *(at + 1 if at >= 0 else -at for at in (self.word, self.tag))),
            tabs=self.separator == "tab",
            comment=self.comment,
            to_iob2=self.scheme == "iob2",
            glued_digit=self.glued_digit,
            extra=self.extra_columns,
        )


class ConlluFormat(_Tagging):
    """CoNLL-U; multiword ranges and empty nodes are skipped."""

    kind: Literal["conllu"] = "conllu"
    # universal (upos) or language-specific (xpos) parts of speech
    tags: Literal["upos", "xpos"] = "upos"

    @property
    def layout(self) -> _Layout:
        tag = {"upos": 3, "xpos": 4}[self.tags]
        return _Layout(1, tag, _CONLLU_WIDTH, _CONLLU_WIDTH, comment="#", numbered=True)


def to_iob2(tags: Sequence[str], scheme: Collection[str] = ()) -> list[str]:
    """Convert the tags of a sentence to IOB2. `scheme` are all tags of its file; if one belongs to
    no span scheme, the only change is that an I- that begins a span becomes B-."""
    iob2, before = [], "O"
    for tag in _to_iob(tags, scheme):
        opens = tag.startswith("I-") and before[2:] != tag[2:]
        iob2.append(f"B-{tag[2:]}" if opens else tag)
        before = tag
    return iob2


def iob2_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the tags that sentences tagged with `labels` can have after `to_iob2`."""
    tags: dict[str, None] = {}
    if brackets(labels):
        types = dict.fromkeys(label.strip("(*)") for label in labels)
        labels = ["O", *(f"I-{each}" for each in types if each)]
    for tag in _to_iob(labels, labels):
        if tag.startswith("I-"):
            tags[f"B-{tag[2:]}"] = None
        tags[tag] = None
    return tuple(tags)


def brackets(scheme: Collection[str]) -> bool:
    """Whether the tags write spans as brackets."""
    return any(tag[:1] == "(" for tag in scheme) and all(map(BRACKETS.fullmatch, scheme))


def _from_brackets(tags: Sequence[str]) -> Iterator[str]:
    opened = ""
    for tag in tags:
        opened = tag.strip("(*)") or opened
        yield f"{'B' if tag[0] == '(' else 'I'}-{opened}" if opened else "O"
        opened = "" if tag.endswith(")") else opened


def _to_iob(tags: Sequence[str], scheme: Collection[str]) -> Sequence[str]:
    if brackets(scheme):
        tags = [*_from_brackets(tags)]
    elif BARE.issuperset(scheme) and not {"B", "S"}.isdisjoint(scheme):
        tags = [tag if tag == "O" else f"{tag}-{_BARE_TYPE}" for tag in tags]
    elif not all(map(SPANS.fullmatch, scheme)):
        return tags
    if not scheme:
        return tags
    return [tag if tag == "O" else f"{'B' if tag[0] in _BEGINS else 'I'}-{tag[2:]}" for tag in tags]


def _words(file: SourceFile, encoding: str, layout: _Layout) -> Iterator[_Word | Damage | None]:
    """Yield the words, None where a sentence ends, and a Damage for each bad line."""
    width = layout.width
    for line, text in enumerate(split_lines(read_text(file, encoding)), start=1):
        cells = text.split("\t") if layout.tabs else _BLANKS.split(text.strip(" \t"))
        if (len(cells) == 1 and not text.strip(" \t")) or cells[0] == _DOCUMENT:
            yield None
            continue
        if layout.comment and text.startswith(layout.comment):
            continue
        # The first line decides the width; a line with fewer columns lacks its word or its tag.
        width = layout.least if layout.extra else width or len(cells)
        if len(cells) < layout.least or (len(cells) != width and not layout.extra):
            yield Damage(
                f"{file.uri}:{line}: expected {max(width, layout.least)} columns, a word and its "
                f"tag among them, found {len(cells)}: {quote(text)}; words and tags must be as "
                "many, so mend the line, or change data.format.separator, word or tag",
                "a_line_with_other_columns",
            )
            continue
        if layout.numbered and not _CONLLU_ID.fullmatch(cells[0]):
            if not _CONLLU_NO_WORD.fullmatch(cells[0]):
                yield Damage(
                    f"{file.uri}:{line}: expected a word's number in the first column of CoNLL-U, "
                    f"found {quote(cells[0])}; mend the line, or use data.format.kind: conll",
                    "a_line_without_a_number",
                )
            continue
        word, tag = cells[layout.word], cells[layout.tag]
        if layout.glued_digit and len(word) > 1 and word[-1].isdigit():
            word = word[:-1]
        if word and tag:
            yield _Word(line, word, tag)
            continue
        yield Damage(
            f"{file.uri}:{line}: expected a word and its tag, found {quote(text)}; mend the line, "
            "or change data.format.word or tag",
            "a_word_without_a_tag",
        )
