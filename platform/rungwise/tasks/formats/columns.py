"""One word per line, in columns, with blank lines between sentences: CoNLL files and CoNLL-U.

Span tags of any scheme (tagged.py) are converted to IOB2 by default, so that a tag means the same
in all data sets. CoNLL-U follows universaldependencies.org/format.html.

Parse trees of sentences, to be written from the words: the bracketed files of the Penn Treebank.

    ( (S (NP-SBJ (NNP Mr.) (NNP Vinken) ) (VP (VBZ is) (ADJP-PRD (JJ old) )) (. .) ))

    text      Mr. Vinken is old .
    target    (S (NP XX XX) (VP XX (ADJP XX)) XX)

Each word of the linearised tree is XX, and labels have no functions (Vinyals et al. 2015, "Grammar
as a foreign language", arXiv:1412.7449; an objective of GenSen, Subramanian et al. 2018). Empty
elements, of label -NONE-, are left out, with what holds nothing else.
"""

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import (
    Damage,
    FormatConfig,
    label_name,
    quote,
    read_text,
    split_lines,
)
from rungwise.tasks.formats.tagged import convert_sentences, iob2_labels
from rungwise.tasks.kinds.examples import Tagged, Text

# Only blank and tab: an ideographic or no-break space is a word where characters are words.
_BLANKS = re.compile(r"[ \t]+")
_DOCUMENT = "-DOCSTART-"
_CONLLU_WIDTH = 10
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
        places: dict[str, str] = {}
        sentences = self._sentences(file, counts, places)
        yield from convert_sentences([*sentences], places) if self.layout.to_iob2 else sentences

    def read_first(self, file: SourceFile, split: str, counts: Counter[str]) -> Tagged | None:
        """Return the first sentence with its tags as they stand there, and read no other."""
        return next(self._sentences(file, counts, {}), None)

    def _sentences(
        self, file: SourceFile, counts: Counter[str], places: dict[str, str]
    ) -> Iterator[Tagged]:
        """Yield the sentences with their tags as written, and note where each tag first stands."""
        layout = self.layout
        for width, lines in _split_sentences(read_text(file, self.encoding), layout, counts):
            texts = tuple(c[layout.word] if len(c) == width else c[0] for _, c in lines)
            with self.skip_damage(counts, texts):
                tags = []
                for line, cells in lines:
                    where = f"{file.uri}:{line}"
                    _check_cells(cells, width, where, layout)
                    places.setdefault(cells[layout.tag], where)
                    tags.append(label_name(cells[layout.tag], self.labels, where))
                yield Tagged(f"{file.name}:{lines[0][0]}", texts, tuple(tags))


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


def _split_sentences(
    text: str, layout: _Layout, counts: Counter[str]
) -> Iterator[tuple[int, _Sentence]]:
    """Yield the sentences, each with the number of columns that its lines should have."""
    width, sentence = layout.width, _Sentence()
    for number, line in enumerate(split_lines(text), start=1):
        cells = line.split("\t") if layout.tabs else _BLANKS.split(line.strip(" \t"))
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
        width = width or max(len(cells), layout.least)
        if not (layout.numbered and _CONLLU_NO_WORD.fullmatch(cells[0])):
            sentence.append((number, cells))
    if sentence:
        yield width, sentence


def _check_cells(cells: Sequence[str], width: int, where: str, layout: _Layout) -> None:
    """Raise Damage if a line has no word and tag."""
    text = quote(("\t" if layout.tabs else " ").join(cells))
    if len(cells) != width:
        raise Damage(
            f"{where}: expected {width} columns, a word and its tag among them, found "
            f"{len(cells)}: {text}; words and tags must be as many, so mend the line, or change "
            "data.format.separator, word or tag",
            "a_line_with_other_columns",
        )
    if layout.numbered and not cells[0].isdecimal():
        raise Damage(
            f"{where}: expected a word's number in the first column of CoNLL-U, found "
            f"{quote(cells[0])}; mend the line, or use data.format.kind: conll",
            "a_line_without_a_number",
        )
    if not cells[layout.word] or not cells[layout.tag]:
        raise Damage(
            f"{where}: expected a word and its tag, found {text}; mend the line, or change "
            "data.format.word or tag",
            "a_word_without_a_tag",
        )


_PIECES = re.compile(r"\(\s*(?P<label>[^\s()]*)|\)|[^\s()]+")
_FUNCTIONS = re.compile(r"(?<=[^-=])[-=].*")  # behind a label: NP-SBJ-1, NP=2
_EMPTY, _WORD = "-NONE-", "XX"
_SIGNS = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}


class ParsesFormat(FormatConfig):
    """Bracketed parse trees: sentences, and their trees without the words."""

    fixed_kind = "generation"

    kind: Literal["parses"] = "parses"

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Text]:
        text = read_text(file, self.encoding)
        for begin, content in _split_trees(text):
            before = begin + len(content) - len(content.lstrip())
            line = text.count("\n", 0, before) + 1
            with self.skip_damage(counts, content):
                words, tree = _linearise(content, f"{file.uri}:{line}")
                yield Text(f"{file.name}:{line}", " ".join(words), None, tree)


def _split_trees(text: str) -> Iterator[tuple[int, str]]:
    """Yield the place and the content of each outermost bracket, what stands before it included."""
    begin, depth = 0, 0
    for match in re.finditer("[()]", text):
        depth += 1 if match.group() == "(" else -1
        if depth <= 0:  # a tree ends, or a bracket that nothing opened
            yield begin, text[begin : match.end()]
            begin, depth = match.end(), 0
    if text[begin:].strip():
        yield begin, text[begin:]


def _linearise(content: str, where: str) -> tuple[list[str], str]:
    """Return the words of a tree, and the tree without them."""
    words: list[str] = []
    nodes: list[tuple[str, list[str]]] = [("", [])]  # labels and parts, "" for a word
    for match in _PIECES.finditer(content):
        piece, label = match.group(), nodes[-1][0]
        if match["label"] is not None:
            nodes.append((match["label"], []))
        elif piece != ")":
            if label != _EMPTY:
                nodes[-1][1].append("")
                words.append(_SIGNS.get(piece, piece))
        elif len(nodes) == 1:
            raise Damage(f"{where}: ) closes nothing; mend the file", "their_brackets")
        else:
            label, parts = nodes.pop()
            tree = " ".join(part or _WORD for part in parts)
            if label and parts != [""]:  # more than the part of speech of a word
                tree = f"({_FUNCTIONS.sub('', label)} {tree})"
            nodes[-1][1].extend([tree] if parts else [])
    if len(nodes) > 1 or not words:
        content = f"{len(nodes) - 1} open brackets" if len(nodes) > 1 else "no words"
        raise Damage(
            f"{where}: expected a tree of words, found {content}; mend the file", "their_brackets"
        )
    return words, " ".join(nodes[0][1])
