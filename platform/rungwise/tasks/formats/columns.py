"""One word per line, in columns, with blank lines between sentences: CoNLL files and CoNLL-U.

Span tags of any scheme (schemes.py) are converted to IOB2 by default, so that a tag means the same
in all data sets. CoNLL-U follows universaldependencies.org/format.html.
"""

import itertools
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import (
    Damage,
    FormatConfig,
    label_name,
    quote,
    read_text,
    split_lines,
)
from rungwise.tasks.formats.schemes import find_odd_tag, iob2_labels, to_iob2
from rungwise.tasks.kinds.examples import Tagged

# Only blank and tab: an ideographic or no-break space is a word where characters are words.
_BLANKS = re.compile(r"[ \t]+")
_DOCUMENT = "-DOCSTART-"
_CONLLU_WIDTH = 10
_CONLLU_ID = re.compile(r"\d+")
_CONLLU_NO_WORD = re.compile(r"\d+[-.]\d+")


class _Word(NamedTuple):
    """A word, or a line that holds none and what is wrong with it."""

    line: int
    text: str
    tag: str
    damage: Damage | None = None


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

    @property
    def least(self) -> int:
        """The fewest columns of a line."""
        return self.width or max(2, *(n + 1 if n >= 0 else -n for n in (self.word, self.tag)))


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
        """Yield the sentences of a file. Raises Damage for a line with the wrong number of columns,
        DataError for tags of spans in no scheme that is known."""
        rows = list(_read_words(file, self.encoding, self.layout, counts))
        if not self.layout.to_iob2:
            yield from self._sentences(rows, file, counts)
            return
        lines: dict[str, int] = {}
        for row in rows:
            if row is not None and row.damage is None:
                lines.setdefault(row.tag, row.line)
        if odd := find_odd_tag(lines):
            raise unknown_scheme(f"{file.uri}:{lines[odd[0]]}", *odd)
        for sentence in self._sentences(rows, file, counts):
            yield replace(sentence, tags=tuple(to_iob2(sentence.tags or (), lines)))

    def read_first(self, file: SourceFile, split: str, counts: Counter[str]) -> Tagged | None:
        """Return the first sentence with its tags as they stand there, and read no other."""
        rows = _read_words(file, self.encoding, self.layout, counts)
        return next(self._sentences(rows, file, counts), None)

    def _sentences(
        self, rows: Iterable[_Word | None], file: SourceFile, counts: Counter[str]
    ) -> Iterator[Tagged]:
        for is_end, sentence in itertools.groupby(rows, lambda row: row is None):
            if is_end:
                continue
            words = [*filter(None, sentence)]
            texts = tuple(word.text for word in words)
            with self.skip_damage(counts, texts):
                tags = []
                for word in words:
                    if word.damage is not None:
                        raise word.damage
                    tags.append(label_name(word.tag, self.labels, f"{file.uri}:{word.line}"))
                yield Tagged(f"{file.name}:{words[0].line}", texts, tuple(tags))


def unknown_scheme(where: str, tag: str, expected: str) -> DataError:
    """Make the error for tags that mark spans in no known scheme."""
    return DataError(
        f"{where}: expected {expected}, found {quote(tag)}; the spans cannot be told, so rewrite "
        "the tags, or set data.format.scheme to as_is to take them as labels of words"
    )


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
        return _Layout(
            self.word,
            self.tag,
            tabs=self.separator == "tab",
            comment=self.comment,
            to_iob2=self.scheme == "iob2",
        )


class ConlluFormat(_Tagging):
    """CoNLL-U; multiword ranges and empty nodes are skipped."""

    kind: Literal["conllu"] = "conllu"
    # universal (upos) or language-specific (xpos) parts of speech
    tags: Literal["upos", "xpos"] = "upos"

    @property
    def layout(self) -> _Layout:
        tag = {"upos": 3, "xpos": 4}[self.tags]
        return _Layout(1, tag, _CONLLU_WIDTH, comment="#", numbered=True)


def _read_words(
    file: SourceFile, encoding: str, layout: _Layout, counts: Counter[str]
) -> Iterator[_Word | None]:
    """Yield the words, and None where a sentence ends."""
    width, inside = layout.width, False
    for line, text in enumerate(split_lines(read_text(file, encoding)), start=1):
        cells = text.split("\t") if layout.tabs else _BLANKS.split(text.strip(" \t"))
        # A blank may be a word where characters are words, but not without a tab.
        if not any(cells) or (len(cells) == 1 and not text.strip(" ")) or cells[0] == _DOCUMENT:
            inside = False
            yield None
            continue
        # Inside a sentence, a line of the usual columns is a word, such as # or #now.
        is_word = inside and len(cells) == width
        if layout.comment and text.startswith(layout.comment) and not is_word:
            if not layout.numbered:
                counts["lines_left_out_as_comments"] += 1
            continue
        inside = True
        # The first line decides the width; a line with fewer columns lacks its word or its tag.
        width = width or len(cells)
        if layout.numbered and len(cells) == width and _CONLLU_NO_WORD.fullmatch(cells[0]):
            continue
        yield _parse_word(f"{file.uri}:{line}", line, cells, width, layout)


def _parse_word(where: str, line: int, cells: Sequence[str], width: int, layout: _Layout) -> _Word:
    text = ("\t" if layout.tabs else " ").join(cells)
    if len(cells) < layout.least or len(cells) != width:
        reason = "a_line_with_other_columns"
        expected = (
            f"{max(width, layout.least)} columns, a word and its tag among them, found "
            f"{len(cells)}: {quote(text)}; words and tags must be as many, so mend the line, or "
            "change data.format.separator, word or tag"
        )
    elif layout.numbered and not _CONLLU_ID.fullmatch(cells[0]):
        reason = "a_line_without_a_number"
        expected = (
            f"a word's number in the first column of CoNLL-U, found {quote(cells[0])}; mend the "
            "line, or use data.format.kind: conll"
        )
    elif cells[layout.word] and cells[layout.tag]:
        return _Word(line, cells[layout.word], cells[layout.tag])
    else:
        reason = "a_word_without_a_tag"
        expected = (
            f"a word and its tag, found {quote(text)}; mend the line, or change data.format.word "
            "or tag"
        )
    return _Word(line, cells[0], "", Damage(f"{where}: expected {expected}", reason))
