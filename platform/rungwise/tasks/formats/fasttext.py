"""fastText's text files: an example per line, its labels marked by a prefix.

__label__sauce __label__cheese How much does potato starch affect a cheese sauce recipe?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import Damage, FormatConfig, read_text, split_lines, words
from rungwise.tasks.kinds.examples import Kind, Text

PREFIX = "__label__"


class FastTextFormat(FormatConfig):
    """A line per example; words that begin with the prefix are its labels, wherever they are."""

    kind: Literal["fasttext"] = "fasttext"
    prefix: str = Field(default=PREFIX, min_length=1)
    several_labels: bool = False  # an example may have any number of labels

    @property
    def task_kind(self) -> Kind:
        return "multilabel" if self.several_labels else "classification"

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Text]:
        for line, text in enumerate(split_lines(read_text(file, self.encoding)), start=1):
            where = f"{file.uri}:{line}"
            if not text.strip():
                continue
            with self.skip_damage(counts):
                parts = text.split()
                labels = {w.removeprefix(self.prefix) for w in parts if w.startswith(self.prefix)}
                if len(labels) != 1 and not self.several_labels:
                    raise Damage(
                        f"{where}: expected one word that begins with {self.prefix}, found "
                        f"{len(labels)}; mend the line, or set data.format.several_labels to true",
                        "their_label",
                    )
                rest = " ".join(word for word in parts if not word.startswith(self.prefix))
                target = tuple(sorted(labels)) if self.several_labels else labels.pop()
                yield Text(f"{file.name}:{line}", words(rest, where, "the text"), None, target)
