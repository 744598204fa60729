"""Files sorted by class, with one folder or one file per class.

Movie reviews (aclImdb, rt-polarity) and newsgroups are published in this form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus.readers.streams import compression_suffix
from rungwise.tasks.formats.base import (
    FormatConfig,
    Labels,
    label_name,
    label_names,
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

    @property
    def stated_labels(self) -> tuple[str, ...]:
        return label_names(self.labels)

    def select_files(
        self, files: Sequence[SourceFile], counts: Counter[str]
    ) -> Sequence[SourceFile]:
        """Leave out files beside the folders of classes, such as a README or a list of names."""
        if self.label == "file":
            return files
        above = {parent for file in files for parent in _parents(_parent(file.uri))}
        inside = [file for file in files if _parent(file.uri) not in above]
        if len(inside) < len(files):
            counts["files_left_out_beside_the_folders_of_classes"] += len(files) - len(inside)
        return inside

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Text]:
        *_, folder, name = file.uri.split("/")
        name = name.removesuffix(compression_suffix(name)).removesuffix(".txt")
        written = folder if self.label == "folder" else name
        if written in self.skip_labels:
            counts["files_left_out_for_their_label"] += 1
            return
        with self.skip_damage(counts):
            label = label_name(written, self.labels, file.uri, "data.format.labels")
            text = read_text(file, self.encoding)
            if self.example == "file":
                yield Text(file.name, words(text.strip(), file.uri, "the text"), None, label)
                return
            for line, each in enumerate(split_lines(text), start=1):
                if each.strip():
                    yield Text(f"{file.name}:{line}", each.strip(), None, label)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _parents(path: str) -> Iterator[str]:
    while path := _parent(path):
        yield path
