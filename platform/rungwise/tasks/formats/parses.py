"""Parse trees of sentences, to be written from the words: the bracketed files of the Penn Treebank.

    ( (S (NP-SBJ (NNP Mr.) (NNP Vinken) ) (VP (VBZ is) (ADJP-PRD (JJ old) )) (. .) ))

    text      Mr. Vinken is old .
    target    (S (NP XX XX) (VP XX (ADJP XX)) XX)

Each word of the linearised tree is XX, and labels have no functions (Vinyals et al. 2015, "Grammar
as a foreign language", arXiv:1412.7449; an objective of GenSen, Subramanian et al. 2018). Empty
elements, of label -NONE-, are left out, with what holds nothing else.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import Damage, FormatConfig, read_text
from rungwise.tasks.kinds.examples import Text

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
