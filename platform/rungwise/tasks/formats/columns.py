"""One word a line in columns, with blank lines between sentences: CoNLL files and CoNLL-U.

CoNLL-2003 (Tjong Kim Sang and De Meulder 2003, arXiv:cs/0306050) marks entities in IOB1: B- stands
only where an entity follows another of its type at once. Later files, and the usual scorer, use
IOB2: B- opens every entity. By default all that looks like IOB is made IOB2, so that data sets mean
the same by the same tag. CoNLL-U is that of universaldependencies.org/format.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from rungwise.errors import DataError
from rungwise.storage import SourceFile
from rungwise.tasks.examples import Kind, Tagged
from rungwise.tasks.formats.base import FormatConfig, lines_of, name_of, shown, text_of

_IOB = re.compile(r"O|[BI]-.+")
_DOCUMENT = "-DOCSTART-"
_CONLLU_WIDTH = 10
_CONLLU_ID = re.compile(r"\d+")
_CONLLU_NO_WORD = re.compile(r"\d+[-.]\d+")
_CONLLU_COLUMNS = {"upos": 3, "xpos": 4}


class _Tagging(FormatConfig):
    labels: tuple[str, ...] | None = Field(default=None, min_length=1)  # the tags that may occur

    @property
    def task_kind(self) -> Kind:
        return "tagging"

    @property
    def stated_labels(self) -> tuple[str, ...]:
        return self.labels or ()


class ConllFormat(_Tagging):
    """Columns by index from 0; -1 is the last one."""

    kind: Literal["conll"] = "conll"
    word: int = 0
    tag: int = -1
    separator: Literal["blank", "tab"] = "blank"  # a run of blanks and tabs, or one tab
    comment: str | None = Field(default=None, min_length=1)  # a line that begins so is left out
    scheme: Literal["iob2", "as_is"] = "iob2"


class ConlluFormat(_Tagging):
    """CoNLL-U: multiword ranges and empty nodes are skipped, words are what is counted from 1."""

    kind: Literal["conllu"] = "conllu"
    tags: Literal["upos", "xpos"] = "upos"


def read(file: SourceFile, form: ConllFormat | ConlluFormat) -> Iterator[Tagged]:
    """The sentences of one file. Raises DataError for a line with too few or too many columns."""
    words: list[str] = []
    tags: list[str] = []
    first = 0
    for line, found in _words(file, form):
        if found is None:
            if words:
                yield _sentence(file, first, words, tags, form)
                words, tags = [], []
            continue
        first = first if words else line
        words.append(found[0])
        tags.append(found[1])
    if words:
        yield _sentence(file, first, words, tags, form)


def is_iob(tags: Sequence[str]) -> bool:
    """True if all are O, B-x or I-x and some open a span: then spans are scored, not words."""
    return all(_IOB.fullmatch(tag) for tag in tags) and any(tag != "O" for tag in tags)


def to_iob2(tags: Sequence[str]) -> list[str]:
    """IOB1 as IOB2. Tags in IOB2 stay as they are, and so does what is no IOB."""
    found, before = [], "O"
    for tag in tags:
        opens = tag.startswith("I-") and before[2:] != tag[2:]
        found.append(f"B-{tag[2:]}" if opens else tag)
        before = tag
    return found


def _words(
    file: SourceFile, form: ConllFormat | ConlluFormat
) -> Iterator[tuple[int, tuple[str, str] | None]]:
    """(line, (word, tag)), or (line, None) where a sentence ends."""
    width = _CONLLU_WIDTH if isinstance(form, ConlluFormat) else 0
    for line, text in enumerate(lines_of(text_of(file)), start=1):
        where = f"{file.uri}:{line}"
        cells = _split(text, form)
        if not text.strip(" \t") or cells[0] == _DOCUMENT:
            yield line, None
            continue
        if _is_comment(text, form):
            continue
        # All lines have as many columns as the first one: one with fewer lacks its word or its tag.
        width = width or len(cells)
        if len(cells) != width or width < _least(form):
            raise DataError(
                f"{where}: expected {max(width, _least(form))} columns, a word and its tag among "
                f"them, found {len(cells)}: {shown(text)}; words and tags must be as many, so mend "
                "the line, or change task.format.separator, word or tag"
            )
        if isinstance(form, ConlluFormat):
            if _CONLLU_NO_WORD.fullmatch(cells[0]):
                continue
            if not _CONLLU_ID.fullmatch(cells[0]):
                raise DataError(
                    f"{where}: expected a word's number in the first column of CoNLL-U, found "
                    f"{shown(cells[0])}; mend the line, or use task.format.kind: conll"
                )
            word, tag = cells[1], cells[_CONLLU_COLUMNS[form.tags]]
        else:
            word, tag = cells[form.word], cells[form.tag]
        if not word or not tag:
            raise DataError(
                f"{where}: expected a word and its tag, found {shown(text)}; mend the line"
            )
        yield line, (word, name_of(tag, form.labels, where, "task.format.labels"))


def _split(text: str, form: ConllFormat | ConlluFormat) -> list[str]:
    if isinstance(form, ConlluFormat) or form.separator == "tab":
        return text.split("\t")
    # Only these two: an ideographic or a no-break space is a word where characters are words.
    return re.split(r"[ \t]+", text.strip(" \t"))


def _is_comment(text: str, form: ConllFormat | ConlluFormat) -> bool:
    comment = "#" if isinstance(form, ConlluFormat) else form.comment
    return comment is not None and text.startswith(comment)


def _least(form: ConllFormat | ConlluFormat) -> int:
    """The fewest columns in which both the word and the tag can be found."""
    if isinstance(form, ConlluFormat):
        return _CONLLU_WIDTH
    reach = max(index + 1 if index >= 0 else -index for index in (form.word, form.tag))
    return max(reach, 2)


def _sentence(
    file: SourceFile,
    line: int,
    words: list[str],
    tags: list[str],
    form: ConllFormat | ConlluFormat,
) -> Tagged:
    if isinstance(form, ConllFormat) and form.scheme == "iob2":
        tags = to_iob2(tags)
    return Tagged(f"{file.name}:{line}", tuple(words), tuple(tags))
