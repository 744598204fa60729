"""The base of all formats of task data, and helpers for reading and for messages."""

import contextlib
import difflib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, field_validator

from rungwise.core.configuration.config import Config
from rungwise.core.errors import DataError, list_first
from rungwise.core.storage.source_files import SourceFile, refuse_bomb
from rungwise.corpus.config import DETECT, has_ascii_breaks
from rungwise.corpus.readers.streams import UnsoundError, read_pieces
from rungwise.tasks.kinds.examples import Damage, Example, Kind, check_encodable

DROPPED = "damaged_examples_dropped"  # their counter
_SHOWN = 60
_NAMES_SHOWN = 20


class FormatConfig(Config, ABC):
    """Base of the format blocks. What follows from the format is a property, never a key."""

    encoding: str = "utf-8"  # a Python codec
    on_error: Literal["error", "drop"] = "error"  # a damaged example: fail, or drop and count it

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str) -> str:
        has_ascii_breaks(encoding)
        if encoding == DETECT:
            raise ValueError(f"{DETECT} is for corpora; name the encoding, such as gb18030")
        return encoding

    fixed_kind: ClassVar[Kind]  # the kind of task, where it does not depend on the keys

    @property
    def task_kind(self) -> Kind:
        """The kind of task in files of this format."""
        return self.fixed_kind

    @abstractmethod
    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Example]:
        """Yield the examples of a file in order; `counts` counts those left out, by reason.

        Raises DataError, naming file and line, for data that cannot be used.
        """

    def select_files(
        self, files: Sequence[SourceFile], counts: Counter[str]
    ) -> Sequence[SourceFile]:
        """Return the files of a split that hold examples; `counts` counts the others."""
        return files

    @contextlib.contextmanager
    def skip_damage(self, counts: Counter[str], counter: str = DROPPED) -> Iterator[None]:
        """Skip what raises Damage if `on_error` is drop, and count it."""
        try:
            yield
        except Damage:
            if self.on_error == "error":
                raise
            counts[counter] += 1

    @property
    def stated_labels(self) -> tuple[str, ...]:
        """The names of the labels in order, each once; () if the file decides."""
        labels = getattr(self, "labels", None) or ()
        return tuple(dict.fromkeys(labels.values() if isinstance(labels, dict) else labels))


def _as_names(value: Any) -> Any:
    """Turn numbers into text: YAML reads `0` as a number, but the label in the file is text."""
    if value == [] or value == {}:
        raise ValueError("expected labels, found none; leave the key out to take the file's")

    def as_text(item: Any) -> Any:
        return str(item) if isinstance(item, int) and not isinstance(item, bool) else item

    if isinstance(value, Mapping):
        return {as_text(key): item for key, item in value.items()}
    return tuple(map(as_text, value)) if isinstance(value, list | tuple) else value


# {value in the file: name}, or only the names.
Labels = Annotated[dict[str, str] | tuple[str, ...], BeforeValidator(_as_names)]


def label_name(value: str, labels: dict[str, str] | tuple[str, ...] | None, where: str) -> str:
    """Return the name of the label written as `value`; raise Damage if it is empty or not one of
    the stated labels."""
    if value and (labels is None or value in labels):
        return labels[value] if isinstance(labels, dict) else value
    if not value or labels is None:
        raise Damage.explain(where, "a label", "nothing", "labels")
    expected = f"one of the labels {join_names(labels)}"
    raise Damage.explain(where, expected, quote(value) + suggest(value, labels), "labels")


def read_bytes(file: SourceFile) -> bytes:
    """Read a file, unpacked if its name ends in .gz. Raises DataError if it is damaged, or unpacks
    to far more than text does."""
    pieces, num_bytes = [], 0
    try:
        for piece in read_pieces(file):
            num_bytes += len(piece)
            refuse_bomb(file, num_bytes)
            pieces.append(piece)
        return b"".join(pieces)
    except UnsoundError as error:
        raise DataError(f"{file.uri}: {error}; fetch the file again") from None


def read_text(file: SourceFile, encoding: str | None = None) -> str:
    """Read a file as text, without a byte order mark; without `encoding`, which is a key of tasks,
    as UTF-8.

    Raises DataError if it is not in `encoding`, naming the line, or is a damaged .gz.
    """
    content = read_bytes(file)
    try:
        return content.decode(encoding or "utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        line, remedy = before.count(bytes([10])) + 1, "convert the file"
        if encoding:
            remedy = "set data.format.encoding to what the file is in, or convert it"
        raise DataError(
            f"{file.uri}:{line}: expected {error.encoding.upper()}, found the byte "
            f"0x{error.object[error.start]:02x}; {remedy}"
        ) from None


def split_lines(text: str) -> list[str]:
    """Split a text at LF, CRLF and CR only; the lines have no line ends."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def words(value: Any, where: str, what: str) -> str:
    """Return `value` if it is a text that is not blank, or join a list of texts by blanks;
    raise Damage that names `what` for anything else."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = " ".join(each for each in value if each.strip())
    if not isinstance(value, str):
        raise Damage.explain(where, f"text as {what}", quote(value))
    if not value.strip():
        raise Damage(
            f"{where}: {what} is empty; mend the line, or check which column data.format names"
        )
    return check_encodable(value, where, what)


def quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def join_names(names: Iterable[str]) -> str:
    return list_first(names, _NAMES_SHOWN) or "none"


def suggest(name: str, names: Iterable[str]) -> str:
    """Suggest the most similar name; empty if none is similar."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
