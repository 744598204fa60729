"""Checkpoints: everything a run needs to continue, as data and not as code.

    checkpoints/
        .attempt-0000033f9a01c2b4              one for each start of the run: a number, a random one
        step-000000400-0000033f9a01c2b4/       of a step and the attempt that wrote it
            part-00000-of-00002.safetensors    one worker's part of model and moments (state.py)
            checkpoint.json                    written last: progress, each sha256

Training stops only while tensors are copied to host memory; a thread writes them. The learning rate
and the data follow from the step, and dropout is seeded by it, so no generator state is saved.

An earlier attempt may still be at work, on a machine that was cut off. It touches no file of a
later one, and in any order of their operations, what an attempt has saved stays until something
later is saved (tests/unit/training/test_checkpoint_attempts.py tries them all).
"""

import contextlib
import hashlib
import json
import logging
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from rungwise.core.errors import DataError, RungwiseError, UserError
from rungwise.core.stages.stage import ContinuableRun
from rungwise.core.storage.folder import Folder, file_digest, flush_to_disk
from rungwise.training.optimizer import AVERAGE
from rungwise.training.parallel import Group
from rungwise.training.state import RunState, SavedTensors, TensorPiece
from rungwise.training.tensor_files import MODEL, save_tensors, write_file
from rungwise.training.throughput import Progress, Saved

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
        if (record := self.sound_record(checkpoint)) is None:
            place = self.at(checkpoint).path(RECORD)
            raise DataError(f"{place} is damaged; remove this checkpoint")
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


T = TypeVar("T")

_STORE_SECONDS = 180.0  # how long a store may be unavailable before a save fails
_PAUSE_SECONDS = 1.0
_FAILURES_IN_A_ROW = 3
_LAST_SECONDS = 10.0  # for the writing thread, when a run ends with an error


@dataclass
class PartWriter:
    """One save in progress: a thread with a copy of all it needs, which writes to `folder`. The
    leader's calls `commit` with the descriptions of all workers' parts once they are there."""

    step: int
    folder: Folder
    pieces: dict[str, TensorPiece]
    group: Group
    commit: Callable[[list[dict[str, Any]]], None]
    seconds: float = 0.0
    stall_seconds: float = 0.0
    bytes: int = 0
    error: Exception | None = None
    # This worker's part is written, or has failed; another worker's has.
    written: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        began = time.perf_counter()
        group = self.group
        try:
            part = self._retry(self._write_part)
            self.written.set()
            if group.leads:
                parts = [part]
                for rank in range(1, group.world_size):
                    parts.append(self._retry(lambda rank=rank: self._wait_for_part(rank)))
                if not self.cancelled.is_set():
                    self._retry(lambda: self.commit(parts))
        except Exception as error:  # raised by `settle`
            self.error = error
        finally:
            self.seconds = time.perf_counter() - began
            self.pieces.clear()
            self.written.set()

    def _retry(self, write: Callable[[], T]) -> T:
        """The result of `write`, retried for some minutes if a store is unavailable."""
        deadline = time.monotonic() + _STORE_SECONDS
        while True:
            try:
                return write()
            except UserError:
                remote = self.folder.remote
                if not remote or time.monotonic() > deadline or self.cancelled.wait(_PAUSE_SECONDS):
                    raise

    def _write_part(self) -> dict[str, Any]:
        name = self._file_name(self.group.rank)
        tensors = {key: piece.local.contiguous() for key, piece in self.pieces.items()}
        with self.folder.staged(name) as path:
            write_file(tensors, path)
            digest, self.bytes = file_digest(path), path.stat().st_size
        part = {
            "file": name,
            "sha256": digest,
            "bytes": self.bytes,
            "tensors": {
                key: [piece.start, len(piece.local) if piece.shape else 1, list(piece.shape)]
                for key, piece in self.pieces.items()
            },
        }
        if not self.group.leads:
            self.folder.write_bytes(f"{name}.json", json.dumps(part).encode())
        return part

    def _wait_for_part(self, rank: int) -> dict[str, Any]:
        name = f"{self._file_name(rank)}.json"
        pause = 0.02
        while not self.folder.exists(name):
            if self.cancelled.wait(pause):
                return {}
            pause = min(1.0, pause * 1.5)
        return json.loads(self.folder.read_bytes(name))

    def _file_name(self, rank: int) -> str:
        return f"part-{rank:05d}-of-{self.group.world_size:05d}.safetensors"


class Checkpoints(CheckpointFiles):
    """Saves and resumes one run. All workers call these methods at the same steps."""

    def __init__(self, rules: CheckpointRules, group: Group | None = None) -> None:
        super().__init__(rules)
        self._group = group or Group(0, 1, torch.device("cpu"))
        self._last: Checkpoint | None = None  # loaded, or written
        self._host: dict[str, Tensor] = {}
        self._writer: PartWriter | None = None
        self._failures = 0
        self.settled: list[Saved] = []  # in order; the reporting caller clears it
        self.skipped: list[str] = []  # the folders of damaged checkpoints that `resume` passed over

    def resume(self, state: RunState) -> Progress:
        """Load the newest sound checkpoint, of this run or an earlier one, or start from step 0."""
        if self._group.leads:  # the others cannot begin to save before they have its number
            self.begin_attempt()
        self.attempt = self._group.from_leader(self.attempt)
        latest = self.resumed = self.newest_sound()
        if (earlier := self._rules.earlier) is not None:
            folder = Folder(earlier.artifact.folder.uri) / "checkpoints"
            before = Checkpoints(CheckpointRules(folder, 1), self._group)
            shared = before.newest_sound(earlier.steps)
            self.skipped += before.skipped
            if shared is not None and (latest is None or shared.step > latest.step):
                progress = before.load(shared, state)
                run = {"fingerprint": earlier.artifact.fingerprint, "label": earlier.artifact.label}
                progress.prolonged.append({**run, "step": shared.step})
                return progress
        return Progress() if latest is None else self.load(latest, state)

    def _from_leader(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """The leader's `checkpoint`, on every worker."""
        step, attempt = checkpoint or (-1, 0)
        step, attempt = self._group.from_leader(step), self._group.from_leader(attempt)
        return None if step < 0 else Checkpoint(step, attempt)

    def newest_sound(self, most: float = math.inf) -> Checkpoint | None:
        """The newest undamaged checkpoint up to step `most`; each worker verifies its share."""
        group = self._group
        finished = self.finished() if group.leads else []
        names = [each for each in finished if each.step <= most]
        while True:
            # The leader decides, so workers cannot disagree about one that is being removed.
            checkpoint = self._from_leader(names.pop() if names else None)
            if checkpoint is None:
                return None
            damaged = self.count_damaged(checkpoint, group.rank, group.world_size)
            if not group.count(damaged):
                return checkpoint
            self.damaged.add(checkpoint)
            self.skipped.append(self.at(checkpoint).uri)

    def load(self, checkpoint: Checkpoint, state: RunState) -> Progress:
        """Load a checkpoint into `state`."""
        self._last = checkpoint
        progress = Progress(**self.record(checkpoint)["progress"])
        saved = self.tensors(checkpoint)
        state.restore(saved)
        if self.folder.remote:
            # Workers of one machine share downloads, so wait for all before deleting.
            self._group.count(0)
            self.remove_downloads(saved)
        return progress

    def export_model(self, output: Folder, carried: Mapping[str, Tensor]) -> None:
        """Write the whole weights of the checkpoint last written or loaded, averaged if there is an
        average, and the untrained tensors `carried` as `model.safetensors` in `output`."""
        assert self._last is not None, "a run ends with a checkpoint"
        saved = self.tensors(self._last)
        weights: dict[str, Tensor] = {}
        for name in saved.tensors:
            kind, _, own = name.partition("/")
            average = f"{AVERAGE}{own}"
            if kind == "model":
                weights[own] = saved.read(average if average in saved.tensors else name)
        save_tensors(output, MODEL, {**carried, **weights})
        self.remove_downloads(saved)

    def save(
        self, state: RunState, progress: Progress, wait: bool = False, must: bool = False
    ) -> float:
        """Start to write this step's checkpoint, after the one before; returns the seconds that
        training stopped. `wait`: until it is written. Raises the writing thread's error after three
        failures in a row; with `must`, after the first; Superseded at once."""
        began = time.perf_counter()
        self.settle()
        group, step = self._group, progress.step
        pieces = {
            name: TensorPiece(self._copy_to_host(name, piece.local), piece.start, piece.shape)
            for name, piece in state.pieces(group.rank, group.world_size).items()
        }
        if group.device.type == "cuda":
            torch.cuda.synchronize(group.device)
        # A copy: training changes `progress` while the thread writes.
        record = {"progress": asdict(progress)}
        folder = self.at(Checkpoint(step, self.attempt))
        self._writer = PartWriter(
            step, folder, pieces, group, lambda parts: self.commit(step, parts, record)
        )
        self._writer.stall_seconds = time.perf_counter() - began
        if wait:
            self.settle(must)
        return time.perf_counter() - began

    def settle(self, must: bool = False) -> None:
        """Wait until the last save is valid or has failed, and agree on the outcome."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.written.wait()
        failed = 1
        try:
            failed = self._group.count(writer.error is not None)
        finally:
            # Also if another worker is gone: waiting for its part would never end.
            if failed:
                writer.cancelled.set()
        writer.thread.join()
        failed = failed or self._group.from_leader(writer.error is not None)
        error = writer.error or UserError("another worker could not write its part")
        if not failed:
            self._last = Checkpoint(writer.step, self.attempt)
        megabytes, why = writer.bytes / 1e6, str(error) if failed else ""
        saved = Saved(writer.step, writer.seconds, writer.stall_seconds, megabytes, why)
        self.settled.append(saved)
        self._failures = self._failures + 1 if failed else 0
        if isinstance(error, Superseded):
            raise error
        if failed and (must or self._failures >= _FAILURES_IN_A_ROW):
            if isinstance(error, UserError):
                raise UserError(f"the checkpoint of step {writer.step} is not written: {error}")
            raise error

    def close(self) -> None:
        """Give the writing thread a moment to finish; for a run that ends with an error."""
        if self._writer is not None:
            self._writer.thread.join(_LAST_SECONDS)
            self._writer.cancelled.set()

    def _copy_to_host(self, name: str, local: Tensor) -> Tensor:
        """A copy in host memory that later steps do not change."""
        if local.device.type != "cuda":
            return local.detach().clone()
        # Page-locked and reused: allocating it again would take longer than the copy.
        host = self._host.get(name)
        if host is None or host.shape != local.shape:
            host = torch.empty(local.shape, dtype=local.dtype, pin_memory=True)
            self._host[name] = host
        return host.copy_(local, non_blocking=True)


# Saves outside the schedule are asked for by a mark in the scratch folder of a training: by the
# driver when it is interrupted, or by Ray Train's controller before it changes the workers.
SCRATCH = "ray-train"  # of a training, below its artifact (cluster/session.py: shared_scratch)
PATIENCE_SECONDS = 120.0  # for a step and a save; after that the last checkpoint must do
_MARK = "save"
_POLL_SECONDS = 0.2


class SaveRequests:
    """Returns True once per request, on the leading worker: its answer counts for all (loop.py)."""

    def __init__(self, scratch: Folder, leads: bool) -> None:
        self._scratch = scratch
        self._leads = leads
        self._saved = False

    def __call__(self) -> bool:
        if not self._leads:
            return False
        # If the store is unavailable, only the steps since the last checkpoint are lost.
        with contextlib.suppress(UserError, OSError):
            if self._scratch.exists(_MARK) and not self._saved:
                self._saved = True
                return True
            if self._saved:
                self._scratch.remove(_MARK)
        self._saved = False
        return False


def request_saves(scratches: Sequence[Folder], seconds: float = PATIENCE_SECONDS) -> None:
    """Ask trainings to save, and wait until they have or `seconds` are over."""
    with contextlib.suppress(UserError, OSError):
        for scratch in scratches:
            scratch.write_bytes(_MARK, b"")
        deadline = time.monotonic() + seconds
        while any(each.exists(_MARK) for each in scratches) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        drop_requests(scratches)


def drop_requests(scratches: Sequence[Folder]) -> None:
    """Remove what a driver that was killed has asked for."""
    for scratch in scratches:
        scratch.remove(_MARK)
