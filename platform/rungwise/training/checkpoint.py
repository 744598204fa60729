"""Checkpoints: everything a run needs to continue, as data and not as code.

    checkpoints/step-000000400/
        part-00000-of-00002-3f9a.safetensors   one worker's part of model and moments (state.py)
        part-00001-of-00002-3f9a.safetensors
        checkpoint.json                        written last: progress, identity, each sha256

Without `checkpoint.json` there is no checkpoint, so a killed save leaves the previous one intact.
Training stops only while tensors are copied to host memory; a thread writes them. Each worker
writes its own object, and the leader writes the record when all are there. File names contain a
random number per attempt, so files of a killed attempt are never mistaken for new ones.

Digests are checked before anything is loaded, including the record's own. A damaged checkpoint is
skipped for the one before it and does not count as kept. The data position is the step
(instances/order.py), the learning rate follows from the progress, and dropout is seeded by the step
(loop.py), so no generator state is saved.

If the store is unavailable, a save retries for up to three minutes while training continues to its
next save. A failed save is reported, and the next one tries again; the third in a row ends the run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rungwise.core.errors import DataError, UserError
from rungwise.core.storage.folder import Folder, file_digest, flush_to_disk
from rungwise.training.average import AVERAGE, WeightAverage
from rungwise.training.optimizer import Optimizers
from rungwise.training.parallel import Group
from rungwise.training.part_writer import PartWriter
from rungwise.training.progress import Progress
from rungwise.training.state import SavedTensors, named_state, pieces_to_write, restore
from rungwise.training.streams import STATE, StreamStates
from rungwise.training.tensor_files import MODEL, save_tensors

T = TypeVar("T")
logger = logging.getLogger(__name__)

RECORD = "checkpoint.json"
_STEP = "step-"

_FAILURES_IN_A_ROW = 3
_LAST_WORDS_SECONDS = 10.0  # for the writing thread, when a run ends with an error


@dataclass(frozen=True)
class Saved:
    """The outcome of one save. `error` is empty if the checkpoint is valid."""

    step: int
    save_seconds: float  # of the writing thread
    stall_seconds: float  # of training
    megabytes: float  # of this worker's part
    error: str = ""


@dataclass(frozen=True)
class EarlierRun:
    """A finished run that shares its first `steps` steps with this one: checkpoints and names."""

    folder: Folder
    steps: int
    named: Mapping[str, str]


class Checkpoints:
    """The checkpoints of one run, in one folder. `identity` says which run they belong to.

    Kept are the last `keep` finished ones, every `keep_every`-th step, and `keep_step`. Checkpoints
    of `earlier` count as this run's. All workers call `resume`, `save` and `settle` at the same
    steps.
    """

    def __init__(
        self,
        folder: Folder,
        identity: str,
        keep: int,
        keep_every: int | None = None,
        group: Group | None = None,
        keep_step: int | None = None,
        earlier: EarlierRun | None = None,
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._keep = keep
        self._keep_every = keep_every
        self._keep_step = keep_step
        self._earlier = earlier
        self._group = group or Group(0, 1, torch.device("cpu"))
        self._attempt = ""
        self._host: dict[str, Tensor] = {}
        self._writer: PartWriter | None = None
        self._failures = 0
        self._damaged: set[int] = set()  # read by the leader
        self.settled: list[Saved] = []  # in order; the reporting caller clears it

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, ascending."""
        return [
            int(name.removeprefix(_STEP))
            for name in self._folder.subfolders()
            if name.startswith(_STEP) and (self._folder / name).exists(RECORD)
        ]

    def resume(
        self,
        model: nn.Module,
        optimizers: Optimizers,
        states: StreamStates | None = None,
        average: WeightAverage | None = None,
    ) -> Progress:
        """Load the newest sound checkpoint, of this run or an earlier one, or start from step 0.

        Raises DataError, on every worker, if the folder holds checkpoints of another configuration.
        """
        self.refuse_foreign()
        if self._group.leads:  # the others cannot begin to save before they have its number
            self._remove_unfinished()
        self._attempt = f"{self._group.from_leader(secrets.randbits(40)):010x}"
        step = self.newest_sound()
        if (earlier := self._earlier) is not None:
            before = Checkpoints(earlier.folder, "", 1, group=self._group)
            shared = before.newest_sound(earlier.steps)
            if shared is not None and shared > (step or 0):
                progress = before.load(shared, model, optimizers, states, average)
                progress.prolonged.append({**earlier.named, "step": shared})
                return progress
        return Progress() if step is None else self.load(step, model, optimizers, states, average)

    def refuse_foreign(self) -> None:
        """Raise DataError if the folder holds a checkpoint of another configuration."""
        steps = self.steps() if self._group.leads else []
        records = {step: self._sound_record(step) for step in steps}
        foreign = [n for n, each in records.items() if each and each["identity"] != self._identity]
        # If the leader alone raised, the others would wait forever.
        step = self._group.from_leader(foreign[0] if foreign else -1)
        if step >= 0:
            raise DataError(
                f"{self._at(step).uri} is a checkpoint of another configuration: expected "
                f"{self._identity}, found {self._record(step)['identity']}; remove it, or go back "
                "to the config it was made with"
            )

    def _remove_unfinished(self) -> None:
        """Remove what a killed save left; this run may not save at that step again."""
        finished = {self._name(step) for step in self.steps()}
        for name in self._folder.subfolders():
            if name.startswith(_STEP) and name not in finished:
                (self._folder / name).remove()

    def newest_sound(self, most: float = math.inf) -> int | None:
        """The newest step, up to `most`, with an undamaged checkpoint; None if there is none. Each
        worker verifies its share of the files."""
        group = self._group
        steps = [step for step in self.steps() if step <= most] if group.leads else []
        while True:
            # The leader decides, so workers cannot disagree about one that is being removed.
            step = group.from_leader(steps.pop() if steps else -1)
            if step < 0:
                return None
            if not group.count(self._damaged_files(step)):
                return step
            self._damaged.add(step)
            logger.warning("%s is damaged, using the one before it", self._at(step).uri)

    def load(
        self,
        step: int,
        model: nn.Module,
        optimizers: Optimizers,
        states: StreamStates | None = None,
        average: WeightAverage | None = None,
    ) -> Progress:
        """Load the state of `step` into the arguments."""
        saved = self._tensors(step)
        restore(model, optimizers, saved)
        if states is not None:
            states.restore(saved)
        if average is not None:
            average.restore(saved, step)
        if self._folder.remote:
            # Workers of one machine share downloads, so wait for all before deleting.
            self._group.count(0)
            for path in saved.opened():
                path.unlink(missing_ok=True)
        return Progress(**self._record(step)["progress"])

    def export_model(
        self, step: int, output: Folder, carried: Mapping[str, Tensor] = MappingProxyType({})
    ) -> None:
        """Write the whole weights of `step`, averaged if there is an average, and the untrained
        tensors `carried` as `model.safetensors` in `output`."""
        saved = self._tensors(step)
        weights: dict[str, Tensor] = {}
        for name in saved.tensors:
            kind, _, own = name.partition("/")
            average = f"{AVERAGE}{own}"
            if kind == "model":
                weights[own] = saved.read(average if average in saved.tensors else name)
        save_tensors(output, MODEL, {**carried, **weights})
        if self._folder.remote:
            for path in saved.opened():
                path.unlink(missing_ok=True)

    def save(
        self,
        model: nn.Module,
        optimizers: Optimizers,
        progress: Progress,
        wait: bool = False,
        must: bool = False,
        states: StreamStates | None = None,
        average: WeightAverage | None = None,
    ) -> float:
        """Start to write the checkpoint of this step; returns the seconds that training stopped.

        Waits for the previous save first, with `wait` for this one too. Raises the error of the
        writing thread after three failures in a row; with `must`, after the first.
        """
        began = time.perf_counter()
        self.settle()
        state = named_state(model, optimizers) | (average.named() if average else {})
        mine = dict(pieces_to_write(state, self._group.rank, self._group.world_size))
        if states is not None:
            mine[STATE] = states.piece()
        pieces = {
            name: (self._copied(name, piece.local), piece.start, piece.shape)
            for name, piece in mine.items()
        }
        if self._group.device.type == "cuda":
            torch.cuda.synchronize(self._group.device)
        record = {"identity": self._identity, "progress": asdict(progress)}
        step = progress.step  # training changes `progress` while the thread writes
        self._writer = PartWriter(
            step,
            self._at(step),
            pieces,
            self._group,
            self._attempt,
            lambda parts: self._commit(step, parts, record),
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
        self.settled.append(
            Saved(
                writer.step,
                writer.seconds,
                writer.stall_seconds,
                writer.bytes / 1e6,
                str(error) if failed else "",
            )
        )
        self._failures = self._failures + 1 if failed else 0
        if failed and (must or self._failures >= _FAILURES_IN_A_ROW):
            if isinstance(error, UserError):
                raise UserError(f"the checkpoint of step {writer.step} is not written: {error}")
            raise error

    def close(self) -> None:
        """Give the writing thread a moment to finish; for a run that ends with an error."""
        if self._writer is not None:
            self._writer.thread.join(_LAST_WORDS_SECONDS)
            self._writer.cancelled.set()

    def _commit(self, step: int, parts: list[dict[str, Any]], record: dict[str, Any]) -> None:
        """Make the checkpoint valid, then remove expired ones."""
        folder = self._at(step)
        tensors: dict[str, Any] = {}
        for part in parts:
            for name, (start, rows, shape) in part["tensors"].items():
                entry = tensors.setdefault(name, {"shape": shape, "pieces": []})
                entry["pieces"].append([part["file"], start, rows])
        files = [{key: part[key] for key in ("file", "sha256", "bytes")} for part in parts]
        whole = {**record, "parts": files, "tensors": tensors}
        folder.write_bytes(RECORD, json.dumps({**whole, "sha256": _digest_of(whole)}).encode())
        try:
            if not folder.remote:
                # Its names must survive a power loss before older ones are removed.
                for place in (folder.uri, self._folder.uri):
                    flush_to_disk(place)
            for name in set(folder.names()) - {RECORD, *(part["file"] for part in parts)}:
                folder.remove(name)
            self._damaged.discard(step)
            for old in self._expired(step):
                # The record goes first: a half-deleted checkpoint must not look valid.
                self._at(old).remove(RECORD)
                self._at(old).remove()
        except (UserError, OSError):
            logger.warning("old checkpoints below %s stay", self._folder.uri, exc_info=True)

    def _expired(self, last: int) -> list[int]:
        """The steps to remove once the checkpoint of step `last` is valid.

        Checkpoints of later steps are damaged, or the run would have resumed from them. They must
        not displace sound ones, and stay until this run reaches them.
        """
        every, past = self._keep_every, [step for step in self.steps() if step <= last]
        sound = [step for step in past if step not in self._damaged]
        old = [
            step
            for step in sound[: -self._keep]
            if step != self._keep_step and (every is None or step % every != 0)
        ]
        return old + [step for step in past if step in self._damaged]

    def _copied(self, name: str, local: Tensor) -> Tensor:
        """A copy in host memory that later steps do not change."""
        if local.device.type != "cuda":
            return local.detach().clone()
        # Page-locked and reused: allocating it again would take longer than the copy.
        host = self._host.get(name)
        if host is None or host.shape != local.shape:
            host = torch.empty(local.shape, dtype=local.dtype, pin_memory=True)
            self._host[name] = host
        return host.copy_(local, non_blocking=True)

    def _record(self, step: int) -> dict[str, Any]:
        record = self._sound_record(step)
        if record is None:
            raise DataError(f"{self._at(step).path(RECORD)} is damaged; remove this checkpoint")
        return record

    def _sound_record(self, step: int) -> dict[str, Any] | None:
        """The record of that step; None if it is damaged."""
        try:
            record = json.loads(self._at(step).read_bytes(RECORD))
        except ValueError:
            return None
        written = record.pop("sha256", None) if isinstance(record, dict) else None
        return record if written == _digest_of(record) else None

    def _damaged_files(self, step: int) -> int:
        """How many of this worker's share of that step's files are damaged."""
        record = self._sound_record(step)
        if record is None:
            return 1
        share = record["parts"][self._group.rank :: self._group.world_size]
        return sum(self._sound(step, part) is None for part in share)

    def _sound(self, step: int, part: dict[str, Any]) -> Path | None:
        """The local file of that part; None if it is missing or damaged."""
        try:
            path = self._at(step).local(part["file"])
            return path if file_digest(path) == part["sha256"] else None
        except FileNotFoundError:
            return None

    def _tensors(self, step: int) -> SavedTensors:
        record = self._record(step)
        parts = {part["file"]: part for part in record["parts"]}

        def path_of(file: str) -> Path:
            # Local files have been verified already; a download must be.
            if not self._folder.remote:
                return self._at(step).local(file)
            path = self._sound(step, parts[file])
            if path is None:
                raise DataError(f"{self._at(step).path(file)} is not what was written; run again")
            return path

        return SavedTensors(path_of, record["tensors"])

    def _at(self, step: int) -> Folder:
        return self._folder / self._name(step)

    @staticmethod
    def _name(step: int) -> str:
        return f"{_STEP}{step:09d}"


def _digest_of(record: Any) -> str:
    # Equals the written text: json restores floats exactly and keeps the order of keys.
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()
