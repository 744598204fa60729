"""Texts without columns: a folder or a file per class, parallel files, and bracketed parse trees.

    ( (S (NP-SBJ (NNP Mr.) (NNP Vinken) ) (VP (VBZ is) (ADJP-PRD (JJ old) )) (. .) ))

    text      Mr. Vinken is old .
    target    (S (NP XX XX) (VP XX (ADJP XX)) XX)

A word of the linearised tree is XX, and labels have no functions (Vinyals et al. 2015, "Grammar as
a foreign language", arXiv:1412.7449). Empty elements, of label -NONE-, are left out.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field

from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus.readers.streams import compression_suffix
from rungwise.tasks.formats.base import (
    Damage,
    FormatConfig,
    Labels,
    label_name,
    read_text,
    split_lines,
    words,
)
from rungwise.tasks.kinds.examples import Text


class FoldersFormat(FormatConfig):
    """The name of a file, or of its folder, is the class of its content."""

    fixed_kind = "classification"

    kind: Literal["folders"] = "folders"
    # whose name is the class; a file's is taken without .txt
    label: Literal["folder", "file"] = "folder"
    example: Literal["file", "line"] = "file"  # what an example is; blank lines are skipped
    # {name of the folder or file: class}, or a list of the allowed names; null: any name
    labels: Labels | None = None
    skip_labels: tuple[str, ...] = ()  # folders or files to leave out

    def select_files(
        self, files: Sequence[SourceFile], counts: Counter[str]
    ) -> Sequence[SourceFile]:
        """Leave out files beside the folders of classes, such as a README or a list of names."""
        if self.label == "file":
            return files
        folders = [PurePosixPath(file.uri).parent for file in files]
        above = {parent for folder in folders for parent in folder.parents}
        inside = [file for file, folder in zip(files, folders, strict=True) if folder not in above]
        if len(inside) < len(files):
            counts["files_left_out_beside_the_folders_of_classes"] += len(files) - len(inside)
        return inside

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Text]:
        *_, folder, name = file.uri.split("/")
        name = name.removesuffix(compression_suffix(name)).removesuffix(".txt")
        label_text = folder if self.label == "folder" else name
        if label_text in self.skip_labels:
            counts["files_left_out_for_their_label"] += 1
            return
        text = read_text(file, self.encoding)
        with self.skip_damage(counts):
            label = label_name(label_text, self.labels, file.uri)
            if self.example == "file":
                yield Text(file.name, words(text.strip(), file.uri, "the text"), None, label)
                return
            for line, each in enumerate(split_lines(text), start=1):
                if each.strip():
                    yield Text(f"{file.name}:{line}", each.strip(), None, label)


class ParallelFormat(FormatConfig):
    """Two files of aligned lines: texts, and the texts to write for them."""

    fixed_kind = "generation"

    kind: Literal["parallel"] = "parallel"
    # parts of the names of both files, between dots: en and de of train.en.gz and train.de.gz
    source: str = Field(min_length=1)
    target: str = Field(min_length=1)

    def select_files(
        self, files: Sequence[SourceFile], counts: Counter[str]
    ) -> Sequence[SourceFile]:
        """Return the files of sources. Raises DataError if one lacks its partner."""
        uris = {file.uri for file in files}
        sources = [file for file in files if self._other(file.uri) != file.uri]
        if not sources or any(self._other(file.uri) not in uris for file in sources):
            raise DataError(
                f"expected files with .{self.source} and .{self.target} in their names, side by "
                f"side, found {', '.join(sorted(uris))}; name both, or change data.format.source "
                "or data.format.target"
            )
        return sources

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Text]:
        other = replace(file, uri=self._other(file.uri), name=self._other(file.name), tag="")
        sources, targets = (split_lines(read_text(each, self.encoding)) for each in (file, other))
        if len(sources) != len(targets):
            raise DataError(
                f"expected aligned lines, found {len(sources):,} in {file.uri} and "
                f"{len(targets):,} in {other.uri}; mend the files"
            )
        for line, pair in enumerate(zip(sources, targets, strict=True), start=1):
            where = f"{file.uri}:{line}"
            with self.skip_damage(counts):
                source, target = (words(each.strip(), where, "the text") for each in pair)
                yield Text(f"{file.name}:{line}", source, None, target)

    def _other(self, path: str) -> str:
        """The name of the file of targets; the same if the file is none of sources."""
        folder, slash, name = path.rpartition("/")
        parts = [self.target if part == self.source else part for part in name.split(".")]
        return folder + slash + ".".join(parts)


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
            with self.skip_damage(counts):
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
            raise Damage(f"{where}: ) closes nothing; mend the file")
        else:
            label, parts = nodes.pop()
            tree = " ".join(part or _WORD for part in parts)
            if label and parts != [""]:  # more than the part of speech of a word
                tree = f"({_FUNCTIONS.sub('', label)} {tree})"
            nodes[-1][1].extend([tree] if parts else [])
    if len(nodes) > 1 or not words:
        content = f"{len(nodes) - 1} open brackets" if len(nodes) > 1 else "no words"
        raise Damage.explain(where, "a tree of words", content)
    return words, " ".join(nodes[0][1])
