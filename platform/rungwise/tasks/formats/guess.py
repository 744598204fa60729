"""Look at a file of labelled data, and guess the format block that reads it.

    content ──> candidate blocks, likeliest first ──> the first that reads nearly all

A guess goes by field names that data sets and labelling tools use, or else by the contents of the
columns. A person is expected to check it against the examples.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rungwise.core.configuration.config import Config, validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.storage.archives import Member
from rungwise.core.storage.outside import matching
from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus.readers.streams import compression_suffix, detect_wide_encoding, guess_encoding
from rungwise.tasks.formats import TaggedFormat
from rungwise.tasks.formats.base import FormatConfig, read_bytes
from rungwise.tasks.formats.guess_fields import ROWS
from rungwise.tasks.formats.guess_json import MAGIC, guess_json, guess_parquet
from rungwise.tasks.formats.guess_lines import guess_lines
from rungwise.tasks.kinds.examples import Example

_SAMPLE_BYTES = 1 << 20  # read from a file of lines
_MOST_DAMAGED = 0.3
_WHOLE = ("squad", "dream", "folders")
_TABLES = (".csv", ".tsv", ".conll", ".conllu", ".parquet")  # one is no text of a class


class _Block(Config):
    format: TaggedFormat


@dataclass(frozen=True)
class Guess:
    """The format block found, the examples it read from a sample, and how many examples it could
    not read."""

    form: dict[str, Any]
    examples: list[Example]
    damaged: int

    @property
    def labels(self) -> Counter[str]:
        """How often each label occurs; tags count once per word."""
        if "target" in self.form.get("columns", ()):
            return Counter()  # targets are texts to write
        targets = [getattr(e, "tags", None) or getattr(e, "target", None) for e in self.examples]
        return Counter(
            label
            for target in targets
            for label in (target if isinstance(target, tuple) else [target])
            if isinstance(label, str)
        )


def guess_format(path: str) -> Guess:
    """Guess how to read the files that `path` matches, from the first of them.

    Raises ConfigError if nothing matches, DataError if no block reads it.
    """
    files = matching([path], "FILE")
    for form in _forms(files):
        guess = _try(form, files)
        if guess is not None:
            return guess
    raise DataError(
        f"{path}: no format reads this; docs/reference/layouts.md has blocks for public layouts"
    )


def _forms(files: Sequence[SourceFile]) -> Iterator[dict[str, Any]]:
    folders = {file.uri.rpartition("/")[0] for file in files}
    content = read_bytes(files[0])
    if content.startswith(MAGIC):
        yield from guess_parquet(content)
        return
    encoding, text = _decoded(files[0], content)
    if text.lstrip().startswith(("{", "[")):
        forms = guess_json(text)
    elif len(folders) > 1 and not files[0].name.endswith(_TABLES):
        # Most of the texts may be ASCII, and only some tell the encoding.
        others = (_decoded(file, read_bytes(file))[0] for file in files)
        encoding = next((each for each in others if each != "utf-8"), encoding)
        # aclImdb keeps its unlabelled reviews beside the classes.
        unlabelled = any(folder.endswith("/unsup") for folder in folders)
        forms = iter([{"kind": "folders"} | ({"skip_labels": ["unsup"]} if unlabelled else {})])
    else:
        forms = guess_lines(text)
    keys = {} if encoding == "utf-8" else {"encoding": encoding}
    yield from (form | keys for form in forms)


def _try(form: dict[str, Any], files: Sequence[SourceFile]) -> Guess | None:
    counts: Counter[str] = Counter()
    examples: list[Example] = []
    try:
        block = validate(_Block, {"format": form | {"on_error": "drop"}})
        samples = block.format.select_files(
            files if form["kind"] == "folders" else files[:1], counts
        )
        for file in samples:
            examples += islice(block.format.read(_sample(file, form), "train", counts), 2 * ROWS)
    except (ConfigError, DataError):
        return None
    damaged = FormatConfig.count_damaged(counts)
    if not examples or damaged > _MOST_DAMAGED * (len(examples) + damaged):
        return None
    return Guess(form | ({"on_error": "drop"} if damaged else {}), examples, damaged)


def _sample(file: SourceFile, form: Mapping[str, Any]) -> SourceFile:
    """Return a JSON file as a whole, and the first lines of other files."""
    content = read_bytes(file)
    whole = form.get("layout") in ("json", "parquet") or form["kind"] in _WHOLE
    # In UTF-16 and UTF-32 a line does not end with a byte.
    if not whole and not form.get("encoding", "").startswith("utf-"):
        head = content[:_SAMPLE_BYTES]
        content = content if len(head) == len(content) else head[: head.rfind(b"\n") + 1]
    name = file.name.removesuffix(compression_suffix(file.name))
    uri = file.uri.removesuffix(compression_suffix(file.uri))
    return Member(uri, name, len(content), content=content)


def _decoded(file: SourceFile, content: bytes) -> tuple[str, str]:
    if wide := detect_wide_encoding(file):
        return wide, content.decode(wide, "replace")
    # Mostly-ASCII text gives the detector too little to guess an encoding from.
    try:
        return "utf-8", content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        head = content[:_SAMPLE_BYTES]
        western = sum(byte > 127 for byte in head) < 0.1 * len(head)
    # The control characters of Latin-1 are quotes and dashes of Windows.
    usual = "cp1252" if re.search(rb"[\x80-\x9f]", content) else "latin-1"
    encoding = usual if western else guess_encoding(head) or usual
    return encoding, content.decode(encoding, "replace")
