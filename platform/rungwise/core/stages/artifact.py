"""Artifacts: the folders that stages write, with summaries. One without a record is unfinished.

    {root}/{stage}/{label}-{fingerprint}/
        ...                         what the stage wrote
        artifact.json               the record; written last, in one write
        .shared.json                the results of `.shared` that it was made of
    {root}/{stage}/.shared/{key}/   files that artifacts of a stage share, and a note, written last

Artifacts are looked up by fingerprint; the label is only for people. Each file is checked against
the record when it is read. A seal is a digest, which anybody can compute of an edited record.
The record has the summary, of one class per stage, as JSON: adding or removing a field requires
raising the version of the stage, unless a new field has a default that is true of older artifacts.

A note is what a stage leaves for its next attempt or for others, checked before it is trusted. It
has a digest of its own, and the digests and stamps (`Folder.stamp`) of the files that it marks as
done. A file is hashed if it has another stamp; if it was changed, its work is done again.
"""

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.errors import DataError
from rungwise.core.storage.folder import Folder, file_digest

RECORD = "artifact.json"
RECORD_FORMAT = 3  # from 3 on, digests of inputs cover their summaries

_digests: dict[str, dict[str, str]] = {}  # artifact URI -> file name -> sha256
_sound: set[tuple[str, int, int]] = set()  # verified files: path, size, modification time


def is_hidden(name: str) -> bool:
    """Whether a file is internal to a stage and therefore not in the record."""
    return name == RECORD or name.rpartition("/")[2].startswith(".")


def seal(record: dict[str, Any]) -> dict[str, Any]:
    """Add a digest of the whole record, so that edits are detected."""
    return record | {"sha256": fingerprint(record, length=64)}


def unseal(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without its seal. Raises ValueError if it was edited."""
    record = dict(record)
    stated, actual = record.pop("sha256", None), fingerprint(record, length=64)
    if stated != actual:
        raise ValueError(f"it was edited: its sha256 is {actual}, it says {stated}")
    return record


def read_record(folder: Folder) -> dict[str, Any]:
    """Read the record of an artifact, without its seal. Raises DataError if it is a link
    or a later version wrote it, and ValueError if it was edited."""
    if not folder.remote and (path := Path(folder.path(RECORD))).is_symlink():
        raise link_error(path)
    try:
        record = json.loads(folder.read_bytes(RECORD))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    # Before its digest, which a later version may compute in another way.
    if record["format"] > RECORD_FORMAT:
        later = f"{record['format']}, of a later rungwise"
        expected = f"format {RECORD_FORMAT} or before"
        raise DataError.at(folder.path(RECORD), expected, later, "update rungwise")
    return unseal(record)


@dataclass(frozen=True)
class CheckedFolder(Folder):
    """The artifact folder `root` or a folder inside it. Reading a file raises DataError if the file
    is not in the record or differs from it."""

    root: str

    @classmethod
    def of(cls, folder: Folder, record: dict[str, Any]) -> "CheckedFolder":
        _digests[folder.uri] = {name: file["sha256"] for name, file in record["files"].items()}
        return cls(folder.uri, folder.uri)

    def __truediv__(self, name: str) -> Folder:
        return CheckedFolder(f"{self.uri}/{name}", self.root)

    def read_bytes(self, name: str) -> bytes:
        with self.open(name) as stream:
            return stream.read()

    def open(self, name: str) -> BinaryIO:
        """Open a file whose bytes have all been verified. For an object this is a temporary copy,
        deleted when the stream is closed."""
        with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
            return self.local(name, Path(scratch)).open("rb")

    def local(self, name: str, cache: Path | None = None) -> Path:
        path = super().local(name, cache)
        if is_hidden(name) or not path.exists():
            return path
        try:
            self._compare(name, path)
        except DataError:
            if not self.remote:
                raise
            path.unlink()  # the cached copy may be damaged rather than the object
            path = super().local(name, cache)
            self._compare(name, path)
        return path

    def _compare(self, name: str, path: Path) -> None:
        if path.is_symlink():
            raise link_error(path)
        state = path.stat()
        version = (str(path), state.st_size, state.st_mtime_ns)
        if version in _sound:
            return
        name = f"{self.uri}/{name}".removeprefix(f"{self.root}/")
        if self.root not in _digests:  # loaded by another process
            CheckedFolder.of(Folder(self.root), read_record(Folder(self.root)))
        expected = _digests[self.root].get(name)
        if expected is None:
            raise DataError(f"{self.root}/{name} is not in the record of its artifact; remove it")
        digest = file_digest(path)
        if digest != expected:
            raise change_error(f"{self.root}/{name}", expected, digest)
        _sound.add(version)


def link_error(path: Path) -> DataError:
    """Build the error for a link in place of a file."""
    return DataError(f"{path} is a link, where a file was written; put the file there")


def change_error(path: str, expected: str, digest: str) -> DataError:
    """Build the error for a file that differs from the record. It counts as modified now, so that
    no note trusts the shared result that it may be a link of."""
    with contextlib.suppress(OSError):
        os.utime(path)
    return DataError(
        f"{path} has changed since it was written: expected sha256 {expected[:12]}, found "
        f"{digest[:12]}; delete the folder to have it built again"
    )


@dataclass(frozen=True)
class Artifact:
    """A finished stage: its folder and record. `Summary.of` caches the summary in `parsed`."""

    stage: str
    fingerprint: str
    folder: Folder
    record: dict[str, Any]
    parsed: dict[type, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def headline(self) -> str:
        return self.record["summary"]["headline"]

    @property
    def label(self) -> str:
        return self.record["label"]

    @property
    def digest(self) -> str:
        """A hash of the fingerprint (which is that of the facts), the summary, the files and,
        recursively, the inputs. It leaves out when and where the artifact was built."""
        files = {name: file["sha256"] for name, file in self.record["files"].items()}
        inputs = {name: of.get("digest") for name, of in self.record.get("inputs", {}).items()}
        parts = {"summary": self.record.get("summary"), "files": files, "inputs": inputs}
        return fingerprint({"of": self.fingerprint, **parts}, length=64)

    def verify(self) -> None:
        """Rehash every file. Raises DataError for the first one that differs from the record, is
        missing, is a link or is not in the record."""
        present = set(self.folder.names())
        for name, expected in self.record["files"].items():
            place = self.folder.path(name)
            if name not in present:
                raise DataError(f"{place} is in the record but is missing")
            if not self.folder.remote and Path(place).is_symlink():
                raise link_error(Path(place))
            digest = self.folder.sha256(name)
            if digest != expected["sha256"]:
                raise change_error(place, expected["sha256"], digest)
        for name in sorted(present - self.record["files"].keys()):
            if not is_hidden(name):
                raise DataError(f"{self.folder.path(name)} is not in the record; remove it")


Inputs = Mapping[str, Artifact]  # of a stage, by name


def describe_inputs(inputs: Inputs) -> dict[str, Any]:
    return {
        name: {"stage": each.stage, "fingerprint": each.fingerprint, "digest": each.digest}
        for name, each in inputs.items()
    }


def find_folder(root: Folder, stage: str, label: str, fingerprint: str) -> Folder:
    """The existing folder with this fingerprint, else the path for a new one."""
    for name in (root / stage).subfolders():
        if name.endswith(f"-{fingerprint}"):
            return root / stage / name
    return root / stage / f"{label}-{fingerprint}"


def load(folder: Folder) -> Artifact | None:
    """Load the artifact in `folder`, or return None if there is no record. Raises DataError if the
    record is unreadable or belongs to another folder."""
    if not folder.exists(RECORD):
        return None
    try:
        record = read_record(folder)
        if fault := _fault(folder, record):
            raise ValueError(fault)
        checked = CheckedFolder.of(folder, record)
        return Artifact(record["stage"], record["fingerprint"], checked, record)
    except OSError as error:
        raise DataError(
            f"{folder.path(RECORD)} cannot be read ({error.strerror or error}); make it readable, "
            "or delete the folder to rebuild it"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder.path(RECORD)} is not a record ({error}); delete the folder to rebuild it"
        ) from error


def _fault(folder: Folder, record: dict[str, Any]) -> str:
    """How a record contradicts itself or its folder; empty if it does not."""
    if (facts := record.get("facts")) is None:
        return ""
    of_facts = fingerprint(facts)
    stated, actual = (record["stage"], record["fingerprint"]), (facts["stage"], of_facts)
    if stated != actual:
        return f"its facts give {' '.join(actual)}, it says {' '.join(stated)}"
    if not folder.uri.endswith(f"-{of_facts}"):
        return f"it is of a folder whose name ends with -{of_facts}"
    inputs = {name: source["fingerprint"] for name, source in record["inputs"].items()}
    return "" if inputs == facts["inputs"] else "its inputs are not those of its facts"


def finish(folder: Folder, record: dict[str, Any], known: Mapping[str, str]) -> Artifact:
    """Hash the files of `folder`, then write the record, which makes the artifact finished. `known`
    maps files to the sha256 computed where they were written, so that a driver does not reread
    terabytes. Raises DataError if one of them is missing."""
    files = {
        name: {"bytes": size, "sha256": known.get(name) or folder.sha256(name)}
        for name, size in folder.sizes().items()
        if not is_hidden(name)
    }
    if missing := sorted(known.keys() - files.keys()):
        raise DataError(
            f"{folder.path(missing[0])} was written but is missing; delete the folder to rebuild it"
        )
    record = {"format": RECORD_FORMAT, **record, "files": files}
    text = json.dumps(seal(record), indent=1, ensure_ascii=False, allow_nan=False)
    folder.write_bytes(RECORD, text.encode("utf-8"))
    checked = CheckedFolder.of(folder, record)
    return Artifact(record["stage"], record["fingerprint"], checked, record)


def delete(folder: Folder) -> None:
    """Delete an artifact. The record goes first, so that half of one does not count as finished."""
    folder.remove(RECORD)
    folder.remove()


def list_artifacts(root: Folder, stage: str) -> list[Artifact]:
    """Every finished artifact of a stage, newest first. The copy of a registered model is none: its
    record has no time."""
    results = (load(root / stage / name) for name in (root / stage).subfolders())
    finished = [each for each in results if each is not None and "finished" in each.record]
    return sorted(finished, key=lambda each: each.record["finished"], reverse=True)


def find_artifacts(root: Folder) -> list[Artifact]:
    """Every finished artifact of every stage, oldest first."""
    artifacts = (each for stage in root.subfolders() for each in list_artifacts(root, stage))
    return sorted(artifacts, key=lambda artifact: artifact.record["finished"])


def collect_inputs(fingerprints: Collection[str], artifacts: Iterable[Artifact]) -> set[str]:
    """The fingerprints and those of everything they were built from."""
    inputs = {
        each.fingerprint: [of["fingerprint"] for of in each.record["inputs"].values()]
        for each in artifacts
    }
    result: set[str] = set()
    queue = list(fingerprints)
    while queue:
        if (name := queue.pop()) not in result:
            result.add(name)
            queue += inputs.get(name, ())
    return result


def find_input(artifact: Artifact, stage: str) -> Artifact:
    """Load the artifact of `stage` that `artifact` was built from. Raises DataError if it is not
    under the same root or its files have changed since."""
    entry = artifact.record["inputs"][stage]
    root = Folder.at(artifact.folder.uri.rsplit("/", 2)[0])
    folder = find_folder(root, entry["stage"], "", entry["fingerprint"])
    source = load(folder)
    if source is None:
        raise DataError(
            f"the {stage} that {artifact.folder.uri} was built from are not below the same root: "
            f"expected a finished artifact {entry['fingerprint']} in {root.uri}/{stage}"
        )
    if entry.get("digest") not in (None, source.digest):
        raise DataError(
            f"{source.folder.uri} is not what {artifact.folder.uri} was built from: its files or "
            "summary are others, or an earlier rungwise wrote its record; delete both to have "
            "them built again"
        )
    return source


def chain(artifact: Artifact) -> list[Artifact]:
    """List everything an artifact was built from, each once, inputs first and itself last. Raises
    DataError as `find_input` does."""
    sources: dict[str, Artifact] = {}
    for name in artifact.record["inputs"]:
        sources |= {each.folder.uri: each for each in chain(find_input(artifact, name))}
    return [*sources.values(), artifact]


def at_or_below(folder: Folder) -> Artifact | None:
    """The artifact in a folder, or the newest one directly below it; None if there is neither."""
    root, _, stage = folder.uri.rpartition("/")
    return load(folder) or next(iter(list_artifacts(Folder.at(root), stage)), None)


class SummaryPart(BaseModel):
    """Base of summaries and their parts: frozen, refuses unknown fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), defer_build=True
    )


class Summary(SummaryPart):
    """Base of every summary. `headline` is for the terminal. Only the runner uses `sha256` (of
    files hashed where they were written) and `show` (files to log to the tracking server)."""

    headline: str
    sha256: dict[str, str] = Field(default_factory=dict, exclude=True, repr=False)
    show: tuple[str, ...] = Field(default=(), exclude=True, repr=False)

    @property
    def caution(self) -> str:
        """The reason not to use the result, or "". A model with one gets no alias."""
        return ""

    @classmethod
    def of(cls, artifact: Artifact) -> Self:
        """Parse the summary of a finished stage. Raises DataError if it does not fit this class."""
        summary = artifact.parsed.get(cls)
        if summary is None:
            try:
                summary = cls.model_validate(artifact.record["summary"])
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                raise DataError(
                    f"{artifact.folder.path(RECORD)} holds no {cls.__name__} "
                    f"(summary.{where}: {first['msg'].lower()}); delete the folder to rebuild it"
                ) from error
            artifact.parsed[cls] = summary
        return summary

    def replace_summary(self, artifact: Artifact) -> Artifact:
        """Return `artifact` with this summary instead of its own; writes nothing."""
        record = {**artifact.record, "summary": self.model_dump(mode="json")}
        changed = Artifact(artifact.stage, artifact.fingerprint, artifact.folder, record)
        changed.parsed[type(self)] = self
        return changed


class PerSplit(SummaryPart):
    """A count for each split of a corpus."""

    train: int
    validation: int

    @classmethod
    def sum_rows(cls, rows: Sequence[Any], unit: str) -> Self:
        """Add up the field `unit` of rows of each split."""
        counts = dict.fromkeys(cls.model_fields, 0)
        for row in rows:
            counts[row.split] += getattr(row, unit)
        return cls(**counts)

    @property
    def total(self) -> int:
        return self.train + self.validation


logger = logging.getLogger(__name__)

_NO_FILES: Mapping[str, str] = MappingProxyType({})


def write_note(output: Folder, name: str, data: Any, files: Mapping[str, str] = _NO_FILES) -> None:
    """Write a note of plain JSON data that marks `files`, sha256 by name, as done."""
    marks = {file: [digest, output.stamp(file)] for file, digest in files.items()}
    note = seal({"content": data, "files": marks})
    output.write_bytes(name, json.dumps(note).encode())


def read_note(output: Folder, name: str) -> Any:
    """Return the content of a note; None if there is none, or it or a file of its was changed."""
    try:
        text = output.read_bytes(name)
    except FileNotFoundError:
        return None
    try:
        note = unseal(json.loads(text))
        if all(
            output.stamp(file) == stamp != "" or output.sha256(file) == digest
            for file, (digest, stamp) in note["files"].items()
        ):
            return note["content"]
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        pass
    logger.warning("%s or a file of its was damaged: its work is done again", output.path(name))
    return None


SHARED = ".shared"
_NOTE = "note.json"
_USED = ".shared.json"


@dataclass(frozen=True)
class SharedResults:
    """The results in a folder, by key."""

    folder: Folder

    @classmethod
    def beside(cls, artifact: Folder) -> "SharedResults":
        """The results that the artifacts beside this one share."""
        return cls(Folder(artifact.uri.rpartition("/")[0]) / SHARED)

    def __getitem__(self, key: str) -> Folder:
        return self.folder / key

    def read(self, key: str) -> Any:
        """Return the content of a result; None if there is none, or it is not whole."""
        return read_note(self[key], _NOTE)

    def write(self, key: str, content: Any, files: Mapping[str, str]) -> None:
        """Mark a result of `files`, sha256 by name, as whole."""
        write_note(self[key], _NOTE, content, files)

    def find_used(self) -> dict[str, str]:
        """Return all that artifacts beside this folder have noted by `note_used`."""
        stage = Folder(self.folder.uri.rpartition("/")[0])
        notes = (read_note(stage / name, _USED) for name in stage.subfolders())
        return {part: key for used in notes if used for part, key in used.items()}

    def find_unused(self) -> list[str]:
        """Return the keys of results of which no artifact was made."""
        keys = set(self.folder.subfolders())
        return sorted(keys - set(self.find_used().values())) if keys else []


def note_used(artifact: Folder, results: Mapping[str, str]) -> None:
    """Note of which results an artifact was made: their keys, by a name for what is reused."""
    write_note(artifact, _USED, dict(results))
