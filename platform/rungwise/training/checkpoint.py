"""Checkpoints: everything a run needs to continue, as data and not as code (checkpoint_files.py).

Training stops only while tensors are copied to host memory; a thread writes them. The learning rate
and the data follow from the step, and dropout is seeded by it, so no generator state is saved.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from rungwise.core.errors import UserError
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.training.checkpoint_files import (
    Checkpoint,
    CheckpointFiles,
    CheckpointRules,
    Superseded,
)
from rungwise.training.optimizer import AVERAGE
from rungwise.training.parallel import Group
from rungwise.training.state import RunState, TensorPiece
from rungwise.training.tensor_files import MODEL, save_tensors, write_file
from rungwise.training.throughput import Progress, Saved

T = TypeVar("T")

_STORE_SECONDS = 180.0  # how long a store may be unavailable before a save fails
_PAUSE_SECONDS = 1.0
_FAILURES_IN_A_ROW = 3
_LAST_SECONDS = 10.0  # for the writing thread, when a run ends with an error


class PartWriter:
    """One save in progress: a thread with a copy of all it needs, which writes to `folder`. The
    leader's calls `commit` with the descriptions of all workers' parts once they are there."""

    def __init__(
        self,
        step: int,
        folder: Folder,
        pieces: dict[str, TensorPiece],
        group: Group,
        commit: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        self._folder = folder
        self._pieces = pieces
        self._group = group
        self._commit = commit
        self.step = step
        self.seconds = self.stall_seconds = 0.0
        self.bytes = 0
        self.error: Exception | None = None
        self.written = threading.Event()  # this worker's part is written, or has failed
        self.cancelled = threading.Event()  # another worker's part has failed
        self.thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        began = time.perf_counter()
        group = self._group
        try:
            part = self._retry(self._write_part)
            self.written.set()
            if group.leads:
                parts = [part]
                for rank in range(1, group.world_size):
                    parts.append(self._retry(lambda rank=rank: self._wait_for_part(rank)))
                if not self.cancelled.is_set():
                    self._retry(lambda: self._commit(parts))
        except Exception as error:  # raised by `settle`
            self.error = error
        finally:
            self.seconds = time.perf_counter() - began
            self._pieces.clear()
            self.written.set()

    def _retry(self, write: Callable[[], T]) -> T:
        """The result of `write`, retried for some minutes if a store is unavailable."""
        deadline = time.monotonic() + _STORE_SECONDS
        while True:
            try:
                return write()
            except UserError:
                remote = self._folder.remote
                if not remote or time.monotonic() > deadline or self.cancelled.wait(_PAUSE_SECONDS):
                    raise

    def _write_part(self) -> dict[str, Any]:
        name = self._file_name(self._group.rank)
        tensors = {key: piece.local.contiguous() for key, piece in self._pieces.items()}
        with self._folder.staged(name) as path:
            write_file(tensors, path)
            digest, self.bytes = file_digest(path), path.stat().st_size
        part = {
            "file": name,
            "sha256": digest,
            "bytes": self.bytes,
            "tensors": {
                key: [piece.start, len(piece.local) if piece.shape else 1, list(piece.shape)]
                for key, piece in self._pieces.items()
            },
        }
        if not self._group.leads:
            self._folder.write_bytes(f"{name}.json", json.dumps(part).encode())
        return part

    def _wait_for_part(self, rank: int) -> dict[str, Any]:
        name = f"{self._file_name(rank)}.json"
        pause = 0.02
        while not self._folder.exists(name):
            if self.cancelled.wait(pause):
                return {}
            pause = min(1.0, pause * 1.5)
        return json.loads(self._folder.read_bytes(name))

    def _file_name(self, rank: int) -> str:
        return f"part-{rank:05d}-of-{self._group.world_size:05d}.safetensors"


class Checkpoints:
    """Saves and resumes one run. All workers call its methods at the same steps."""

    def __init__(self, rules: CheckpointRules, group: Group | None = None) -> None:
        self._rules = rules
        self._files = CheckpointFiles(rules)
        self._group = group or Group(0, 1, torch.device("cpu"))
        self._last: Checkpoint | None = None  # loaded, or written
        self._host: dict[str, Tensor] = {}
        self._writer: PartWriter | None = None
        self._failures = 0
        self.settled: list[Saved] = []  # in order; the reporting caller clears it
        self.skipped: list[str] = []  # the folders of damaged checkpoints that `resume` passed over

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, ascending."""
        return self._files.steps()

    def resume(self, state: RunState) -> Progress:
        """Load the newest sound checkpoint, of this run or an earlier one, or start from step 0."""
        if self._group.leads:  # the others cannot begin to save before they have its number
            self._files.begin_attempt()
        self._files.attempt = self._group.from_leader(self._files.attempt)
        latest = self._files.resumed = self.newest_sound()
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
        names = (
            [each for each in self._files.finished() if each.step <= most] if group.leads else []
        )
        while True:
            # The leader decides, so workers cannot disagree about one that is being removed.
            checkpoint = self._from_leader(names.pop() if names else None)
            if checkpoint is None:
                return None
            damaged = self._files.count_damaged(checkpoint, group.rank, group.world_size)
            if not group.count(damaged):
                return checkpoint
            self._files.damaged.add(checkpoint)
            self.skipped.append(self._files.at(checkpoint).uri)

    def load(self, checkpoint: Checkpoint, state: RunState) -> Progress:
        """Load a checkpoint into `state`."""
        self._last = checkpoint
        progress = Progress(**self._files.record(checkpoint)["progress"])
        saved = self._files.tensors(checkpoint)
        state.restore(saved)
        if self._files.folder.remote:
            # Workers of one machine share downloads, so wait for all before deleting.
            self._group.count(0)
            self._files.remove_downloads(saved)
        return progress

    def export_model(
        self, output: Folder, carried: Mapping[str, Tensor] = MappingProxyType({})
    ) -> None:
        """Write the whole weights of the checkpoint last written or loaded, averaged if there is an
        average, and the untrained tensors `carried` as `model.safetensors` in `output`."""
        assert self._last is not None, "a run ends with a checkpoint"
        saved = self._files.tensors(self._last)
        weights: dict[str, Tensor] = {}
        for name in saved.tensors:
            kind, _, own = name.partition("/")
            average = f"{AVERAGE}{own}"
            if kind == "model":
                weights[own] = saved.read(average if average in saved.tensors else name)
        save_tensors(output, MODEL, {**carried, **weights})
        self._files.remove_downloads(saved)

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
        self._writer = PartWriter(
            step,
            self._files.at(Checkpoint(step, self._files.attempt)),
            pieces,
            group,
            lambda parts: self._files.commit(step, parts, record),
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
            self._last = Checkpoint(writer.step, self._files.attempt)
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
