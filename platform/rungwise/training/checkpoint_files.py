"""Checkpoints as files: which steps have one, whether it is sound, and which ones stay.

    checkpoints/
        .attempt-0000033f9a01c2b4              one for each start of the run: a number, a random one
        step-000000400-0000033f9a01c2b4/       of a step and the attempt that wrote it
            part-00000-of-00002.safetensors    one worker's part of model and moments (state.py)
            checkpoint.json                    written last: progress, each sha256

An earlier attempt may still be at work, on a machine that was cut off. It touches no file of a
later one, and in any order of their operations, what an attempt has saved stays until something
later is saved (tests/unit/training/test_checkpoint_attempts.py tries them all).
"""

import hashlib
import json
import logging
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rungwise.core.errors import DataError, RungwiseError, UserError
from rungwise.core.stages.stage import ContinuableRun
from rungwise.core.storage.folder import Folder, file_digest, flush_to_disk
from rungwise.training.state import SavedTensors

logger = logging.getLogger(__name__)

RECORD = "checkpoint.json"
_NAME = re.compile(r"step-(\d{9})-([0-9a-f]{16})")
_ATTEMPT = re.compile(r"\.attempt-([0-9a-f]{16})")
_RANDOM_BITS = 40


class Superseded(RungwiseError):
    """A later attempt at the same run has begun, so this one must end."""


class Checkpoint(NamedTuple):
    """Names a checkpoint; the latest one of a run is the largest."""

    step: int
    attempt: int

    @property
    def name(self) -> str:
        return f"step-{self.step:09}-{self.attempt:016x}"


@dataclass(frozen=True)
class CheckpointRules:
    """Where the checkpoints of a run are, and which stay: the last `keep` finished ones, every
    `keep_every`-th step, and `keep_step`. Checkpoints of `earlier`, which shares its first steps
    with this run, count as this run's."""

    folder: Folder
    keep: int
    keep_every: int | None = None
    keep_step: int | None = None
    earlier: ContinuableRun | None = None


class CheckpointFiles:
    """The checkpoints in one folder."""

    def __init__(self, rules: CheckpointRules) -> None:
        self._rules = rules
        self.folder = rules.folder
        self.attempt = 0
        self.resumed: Checkpoint | None = None  # the sound one that this attempt continues
        self.damaged: set[Checkpoint] = set()  # used by the leader

    def begin_attempt(self) -> None:
        """Become the latest attempt, and remove what saves of earlier ones left unfinished: none of
        them may save again. An attempt that began meanwhile may be later, and is left alone."""
        number = (self._latest_attempt() >> _RANDOM_BITS) + 1
        self.attempt = (number << _RANDOM_BITS) + secrets.randbits(_RANDOM_BITS)
        self.folder.write_bytes(f".attempt-{self.attempt:016x}", b"")
        for checkpoint in self._all():
            earlier = checkpoint.attempt < self.attempt
            if earlier and not self.at(checkpoint).exists(RECORD):
                self.at(checkpoint).remove()

    def finished(self) -> list[Checkpoint]:
        """The finished checkpoints, the latest last."""
        return [each for each in self._all() if self.at(each).exists(RECORD)]

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, ascending."""
        return sorted({each.step for each in self.finished()})

    def at(self, checkpoint: Checkpoint) -> Folder:
        return self.folder / checkpoint.name

    def record(self, checkpoint: Checkpoint) -> dict[str, Any]:
        record = self.sound_record(checkpoint)
        if record is None:
            raise DataError(
                f"{self.at(checkpoint).path(RECORD)} is damaged; remove this checkpoint"
            )
        return record

    def sound_record(self, checkpoint: Checkpoint) -> dict[str, Any] | None:
        """The record of a checkpoint; None if it is damaged or gone."""
        try:
            record = json.loads(self.at(checkpoint).read_bytes(RECORD))
        except (ValueError, RecursionError, FileNotFoundError):
            return None
        digest = record.pop("sha256", None) if isinstance(record, dict) else None
        return record if digest == _record_digest(record) else None

    def count_damaged(self, checkpoint: Checkpoint, rank: int, world_size: int) -> int:
        """How many of a worker's share of that checkpoint's files are damaged."""
        record = self.sound_record(checkpoint)
        if record is None:
            return 1
        share = record["parts"][rank::world_size]
        return sum(self._sound_path(checkpoint, part) is None for part in share)

    def tensors(self, checkpoint: Checkpoint) -> SavedTensors:
        record = self.record(checkpoint)
        parts = {part["file"]: part for part in record["parts"]}

        def local_path(file: str) -> Path:
            # Local files have been verified already; a download must be.
            if not self.folder.remote:
                return self.at(checkpoint).local(file)
            path = self._sound_path(checkpoint, parts[file])
            if path is None:
                place = self.at(checkpoint).path(file)
                raise DataError(f"{place} is not what was written; run again")
            return path

        return SavedTensors(local_path, record["tensors"])

    def remove_downloads(self, saved: SavedTensors) -> None:
        if self.folder.remote:
            for path in saved.paths.values():
                path.unlink(missing_ok=True)

    def commit(self, step: int, parts: list[dict[str, Any]], record: dict[str, Any]) -> None:
        """Make a checkpoint valid and remove expired ones. Raises Superseded by a later attempt."""
        self._refuse_superseded()
        checkpoint = Checkpoint(step, self.attempt)
        folder = self.at(checkpoint)
        tensors: dict[str, Any] = {}
        for part in parts:
            for name, (start, rows, shape) in part["tensors"].items():
                entry = tensors.setdefault(name, {"shape": shape, "pieces": []})
                entry["pieces"].append([part["file"], start, rows])
        files = [{key: part[key] for key in ("file", "sha256", "bytes")} for part in parts]
        whole = {**record, "parts": files, "tensors": tensors}
        folder.write_bytes(RECORD, json.dumps({**whole, "sha256": _record_digest(whole)}).encode())
        # A later attempt may have removed parts of it before the record was there.
        self._refuse_superseded()
        try:
            if not folder.remote:
                # Its names must survive a power loss before older ones are removed.
                for place in (folder.uri, self.folder.uri):
                    flush_to_disk(place)
            for name in set(folder.names()) - {RECORD, *(part["file"] for part in parts)}:
                folder.remove(name)
            for old in self._expired(checkpoint):
                # The record goes first: a half-deleted checkpoint must not look valid.
                self.at(old).remove(RECORD)
                self.at(old).remove()
        except (UserError, OSError):
            logger.warning("old checkpoints below %s stay", self.folder.uri, exc_info=True)

    def _expired(self, last: Checkpoint) -> list[Checkpoint]:
        """The checkpoints to remove once this attempt's `last` one is valid. Those of other
        attempts after the one that was resumed are damaged, or came too late to be resumed. They
        must not displace sound ones, and stay until this run reaches them."""
        rules = self._rules
        past = [each for each in self.finished() if each <= last and each.attempt <= self.attempt]
        sound = [
            each
            for each in past
            if each.attempt == self.attempt
            or (self.resumed is not None and each <= self.resumed and each not in self.damaged)
        ]
        files = [
            each
            for each in sound[: -rules.keep]
            if each.step == rules.keep_step
            or (rules.keep_every is not None and each.step % rules.keep_every == 0)
        ]
        return sorted(set(past) - {*sound[-rules.keep :], *files})

    def _all(self) -> list[Checkpoint]:
        """Every checkpoint, finished or not, the latest last."""
        matches = map(_NAME.fullmatch, self.folder.subfolders())
        return sorted(Checkpoint(int(match[1]), int(match[2], 16)) for match in matches if match)

    def _latest_attempt(self) -> int:
        matches = map(_ATTEMPT.fullmatch, self.folder.files())
        return max((int(match[1], 16) for match in matches if match), default=0)

    def _refuse_superseded(self) -> None:
        if self._latest_attempt() > self.attempt:
            raise Superseded(f"a later attempt at the run of {self.folder.uri} has begun")

    def _sound_path(self, checkpoint: Checkpoint, part: dict[str, Any]) -> Path | None:
        """The local file of that part; None if it is missing or damaged."""
        try:
            path = self.at(checkpoint).local(part["file"])
            return path if file_digest(path) == part["sha256"] else None
        except FileNotFoundError:
            return None


def _record_digest(record: Any) -> str:
    # Equals the written text: json restores floats exactly and keeps the order of keys.
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()
