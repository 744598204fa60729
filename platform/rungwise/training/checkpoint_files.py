"""Checkpoints as files: which steps have one, whether it is sound, and which ones stay.

    checkpoints/step-000000400/
        part-00000-of-00002-3f9a.safetensors   one worker's part of model and moments (state.py)
        part-00001-of-00002-3f9a.safetensors
        checkpoint.json                        written last: progress, identity, each sha256

Without `checkpoint.json` there is no checkpoint, so a killed save leaves the previous one intact.
Digests are checked before anything is loaded, including the record's own. A damaged checkpoint is
skipped for the one before it and does not count as kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rungwise.core.errors import DataError, UserError
from rungwise.core.storage.folder import Folder, file_digest, flush_to_disk
from rungwise.training.state import SavedTensors

logger = logging.getLogger(__name__)

RECORD = "checkpoint.json"
_STEP = "step-"


@dataclass(frozen=True)
class EarlierRun:
    """A finished run that shares its first `steps` steps with this one: its checkpoints, and its
    fingerprint and label."""

    folder: Folder
    steps: int
    names: Mapping[str, str]


@dataclass(frozen=True)
class CheckpointRules:
    """Where the checkpoints of a run are, the identity that marks them as its own, and which stay:
    the last `keep` finished ones, every `keep_every`-th step, and `keep_step`. Checkpoints of
    `earlier` count as this run's."""

    folder: Folder
    identity: str
    keep: int
    keep_every: int | None = None
    keep_step: int | None = None
    earlier: EarlierRun | None = None


class CheckpointFiles:
    """The checkpoints in one folder."""

    def __init__(self, rules: CheckpointRules) -> None:
        self._rules = rules
        self.folder = rules.folder
        self.damaged: set[int] = set()  # used by the leader

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, ascending."""
        return [
            int(name.removeprefix(_STEP))
            for name in self.folder.subfolders()
            if name.startswith(_STEP) and (self.folder / name).exists(RECORD)
        ]

    def at(self, step: int) -> Folder:
        return self.folder / f"{_STEP}{step:09d}"

    def remove_unfinished(self) -> None:
        """Remove what a killed save left; this run may not save at that step again."""
        for name in self.folder.subfolders():
            if name.startswith(_STEP) and not (self.folder / name).exists(RECORD):
                (self.folder / name).remove()

    def record(self, step: int) -> dict[str, Any]:
        record = self.sound_record(step)
        if record is None:
            raise DataError(f"{self.at(step).path(RECORD)} is damaged; remove this checkpoint")
        return record

    def sound_record(self, step: int) -> dict[str, Any] | None:
        """The record of that step; None if it is damaged."""
        try:
            record = json.loads(self.at(step).read_bytes(RECORD))
        except ValueError:
            return None
        digest = record.pop("sha256", None) if isinstance(record, dict) else None
        return record if digest == _record_digest(record) else None

    def count_damaged(self, step: int, rank: int, world_size: int) -> int:
        """How many of a worker's share of that step's files are damaged."""
        record = self.sound_record(step)
        if record is None:
            return 1
        share = record["parts"][rank::world_size]
        return sum(self._sound_path(step, part) is None for part in share)

    def tensors(self, step: int) -> SavedTensors:
        record = self.record(step)
        parts = {part["file"]: part for part in record["parts"]}

        def local_path(file: str) -> Path:
            # Local files have been verified already; a download must be.
            if not self.folder.remote:
                return self.at(step).local(file)
            path = self._sound_path(step, parts[file])
            if path is None:
                raise DataError(f"{self.at(step).path(file)} is not what was written; run again")
            return path

        return SavedTensors(local_path, record["tensors"])

    def remove_downloads(self, saved: SavedTensors) -> None:
        if self.folder.remote:
            for path in saved.paths.values():
                path.unlink(missing_ok=True)

    def commit(self, step: int, parts: list[dict[str, Any]], record: dict[str, Any]) -> None:
        """Make the checkpoint valid, then remove expired ones."""
        folder = self.at(step)
        tensors: dict[str, Any] = {}
        for part in parts:
            for name, (start, rows, shape) in part["tensors"].items():
                entry = tensors.setdefault(name, {"shape": shape, "pieces": []})
                entry["pieces"].append([part["file"], start, rows])
        files = [{key: part[key] for key in ("file", "sha256", "bytes")} for part in parts]
        whole = {**record, "parts": files, "tensors": tensors}
        folder.write_bytes(RECORD, json.dumps({**whole, "sha256": _record_digest(whole)}).encode())
        try:
            if not folder.remote:
                # Its names must survive a power loss before older ones are removed.
                for place in (folder.uri, self.folder.uri):
                    flush_to_disk(place)
            for name in set(folder.names()) - {RECORD, *(part["file"] for part in parts)}:
                folder.remove(name)
            self.damaged.discard(step)
            for old in self._expired(step):
                # The record goes first: a half-deleted checkpoint must not look valid.
                self.at(old).remove(RECORD)
                self.at(old).remove()
        except (UserError, OSError):
            logger.warning("old checkpoints below %s stay", self.folder.uri, exc_info=True)

    def _expired(self, last: int) -> list[int]:
        """The steps to remove once the checkpoint of step `last` is valid.

        Checkpoints of later steps are damaged, or the run would have resumed from them. They must
        not displace sound ones, and stay until this run reaches them.
        """
        rules, past = self._rules, [step for step in self.steps() if step <= last]
        sound = [step for step in past if step not in self.damaged]
        old = [
            step
            for step in sound[: -rules.keep]
            if step != rules.keep_step and (rules.keep_every is None or step % rules.keep_every)
        ]
        return old + [step for step in past if step in self.damaged]

    def _sound_path(self, step: int, part: dict[str, Any]) -> Path | None:
        """The local file of that part; None if it is missing or damaged."""
        try:
            path = self.at(step).local(part["file"])
            return path if file_digest(path) == part["sha256"] else None
        except FileNotFoundError:
            return None


def _record_digest(record: Any) -> str:
    # Equals the written text: json restores floats exactly and keeps the order of keys.
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()
