"""Kill a run, restart it with other workers, and compare it with an undisturbed one.

    undisturbed   n workers ─────────────────────────────────────────> losses, hash of the rows
    disturbed     n workers ──> SIGKILL to all of its processes, at a random step
                  m workers ──> from the last checkpoint to the end ─> losses, hash of the rows

Both runs cut their batches for as many logical workers, the least common multiple of n and m, so
that neither micro-batches nor dropout depend on the workers. A batch with fewer rows is cut for the
workers there are; with dropout, m is then n.

The kill falls into the second epoch of the instances if the run has one, because mistakes in the
data order show there first; else anywhere. At least a tenth of the run comes after it, and at least
one checkpoint before it.

Each run is the pretrain stage in its own process with its own Ray. The JSON certificate holds what
was compared step by step: the hash over the (instance, epoch) pairs of all steps so far, and the
losses of both runs; the largest relative difference of a loss and the difference allowed; where the
kill could fall and did; versions and seeds. The runs' files are removed if the runs agree.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from rungwise.cluster.environment import set_environment
from rungwise.cluster.session import session
from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.configuration.config import validate
from rungwise.core.errors import UserError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context, SilentReporter
from rungwise.core.stages.provenance import provenance
from rungwise.core.storage.folder import Folder
from rungwise.instances.summary import InstancesSummary
from rungwise.pretraining import gradient
from rungwise.pretraining.config import FitConfig, PretrainStageConfig, require_gradient
from rungwise.pretraining.initial import INITIAL
from rungwise.pretraining.summary import GradientRun, PretrainSummary
from rungwise.training.config import GradientConfig, first_longer_step
from rungwise.training.curriculum import READ_BY_NAME, rows_per_epoch

# The largest relative difference of a loss that counts as equal with other workers, because sums
# are in another order.
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-3}
TO_COME = 0.1  # share of the run after the kill, at least
CERTIFICATE = "resume-certificate.json"

_POLL_SECONDS = 0.05


def prove_resume(
    config: FitConfig[GradientConfig],
    inputs: Mapping[str, Artifact],
    compute: ComputeConfig,
    place: Folder,
    workers_after: int | None = None,
    seed: int | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Run the proof in `place` and return the certificate, which is also written there.

    `workers_after` is by default half as many as before, or one fewer if their number is odd, or
    two after one; `seed` chooses the step of the kill; `console` shows progress. Raises UserError
    if a second run could not be the same, if the run has a single step, or if it does not fit one
    of the numbers of workers.
    """
    console = console or Console(quiet=True)
    settings = config.pretrain.model_copy(update={"log_every_steps": 1})
    config = FitConfig(config.model, settings)
    before = compute.num_workers
    # Half as many share the parts of a batch as they are, which keeps micro-batches large.
    other = 2 if before == 1 else before - 1 if before % 2 else before // 2
    logical = math.lcm(before, workers_after or other, compute.logical_workers or 1)
    shared = logical <= settings.global_batch_size
    # Without logical workers, each worker draws the dropout of its own rows.
    dropout = None if shared else _dropout(config)
    after = workers_after or (before if dropout else other)
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    if settings.max_seconds is not None:
        raise UserError(
            f"pretrain.max_seconds is {settings.max_seconds}: a clock ends the run, so no second "
            "one would be the same; set pretrain.max_seconds=null for the proof"
        )
    if dropout and after != before:
        raise UserError(
            f"--workers-after is {after} after {before}, but {dropout}, and "
            f"pretrain.global_batch_size {settings.global_batch_size} has too few rows to draw it "
            f"for {logical} logical workers; leave --workers-after out, or raise the batch"
        )
    kill_steps(config, inputs["instances"], settings.steps)
    # The number of workers is part of the proof, so none may go missing.
    compute = compute.model_copy(
        update={"min_workers": None, "logical_workers": logical if shared else None}
    )
    for workers in (before, after):
        changed = compute.model_copy(update={"num_workers": workers})
        gradient.check_fit(config, inputs, changed)
    read = {name: inputs[name] for name in (*READ_BY_NAME, INITIAL) if name in inputs}

    straight, broken = place / "undisturbed", place / "disturbed"
    undisturbed = _run(config, read, compute, straight, "1 of 3, undisturbed", console)
    assert undisturbed is not None
    # Only now is the end known: a budget of tokens or an early stop may decide it.
    steps = _gradient(undisturbed).steps
    where, first, last = kill_steps(config, inputs["instances"], steps)
    kill_at = random.Random(seed).randint(first, last)
    every = min(compute.checkpoint_every_steps, max(1, kill_at // 3))
    compute, changed = (
        each.model_copy(update={"checkpoint_every_steps": every}) for each in (compute, changed)
    )
    _run(config, read, compute, broken, "2 of 3, to be killed", console, kill_at)
    disturbed = _run(config, read, changed, broken, "3 of 3, resumed", console)
    assert disturbed is not None
    certificate = {
        **_compared(_gradient(undisturbed), _gradient(disturbed), same_workers=before == after),
        "workers": {"undisturbed": before, "until_the_kill": before, "after_it": after},
        "logical_workers": compute.logical_workers,
        "parallel": compute.parallel,
        "killed_at_step": kill_at,
        "kill_drawn_from": {"part": where, "first_step": first, "last_step": last},
        "steps_after_the_kill": steps - kill_at,
        "resumed_at_step": _gradient(disturbed).attempts[-1].step,
        "steps": steps,
        "instances": InstancesSummary.of(inputs["instances"]).instances.train,
        "global_batch_size": settings.global_batch_size,
        "epochs": undisturbed.epochs,
        "precision": _precision(_gradient(undisturbed)),
        "seeds": {"pretrain": settings.seed, "kill": seed},
        "config": fingerprint({"config": config.blocks()}),
        "instances_fingerprints": [read[name].fingerprint for name in READ_BY_NAME if name in read],
        "initial_fingerprint": read[INITIAL].fingerprint if INITIAL in read else None,
        "made_by": provenance(),
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    place.write_bytes(CERTIFICATE, json.dumps(certificate, indent=1).encode())
    if certificate["verdict"] == "same":
        straight.remove()
        broken.remove()
    return certificate


def _dropout(config: FitConfig[GradientConfig]) -> str | None:
    """Return the setting by which units are dropped, in words; None if none are."""
    for key, value in config.model:
        if key.endswith("dropout") and value:
            return f"model.{key} is {value}"
    if rate := config.objective.default_dropout:
        return f"pretrain.objective {config.objective.name} has a dropout of {rate}"
    return None


def kill_steps(
    config: FitConfig[GradientConfig], instances: Artifact, steps: int
) -> tuple[str, int, int]:
    """Where a run of so many steps can be killed: that part in words, first and last step. Raises
    UserError for a run of one step, which leaves nothing to compare."""
    settings = config.pretrain
    size = settings.global_batch_size
    count = rows_per_epoch(config.model, InstancesSummary.of(instances).instances.train, size)
    longer_from = first_longer_step(settings.steps, settings.longer_share)
    latest = steps - max(1, math.ceil(TO_COME * steps))
    if latest < 1:
        raise UserError(
            f"the run has {steps} step, and one before the kill and one after it are needed; raise "
            "pretrain.steps"
        )
    first, last = -(-count // size) + 1, min(2 * count // size, longer_from, latest)
    if first <= last:
        return "the second epoch", first, last
    first = min(latest, max(2, math.ceil(TO_COME * steps)))  # a checkpoint must lie before it
    return f"a run of {steps * size / count:.2f} epochs", first, latest


def _gradient(summary: PretrainSummary) -> GradientRun:
    assert summary.gradient is not None, "the proof is of a fit by gradient"
    return summary.gradient


def _precision(run: GradientRun) -> str:
    """The precision that "auto" resolved to."""
    return "bfloat16" if run.bfloat16 else "float32"


def _compared(one: GradientRun, other: GradientRun, same_workers: bool) -> dict[str, Any]:
    tolerance = 0.0 if same_workers else TOLERANCES[_precision(one)]
    pairs = list(zip(one.history, other.history, strict=False))
    difference = max(relative_difference(a["loss"], b["loss"]) for a, b in pairs)
    steps_alike = [a["step"] for a in one.history] == [b["step"] for b in other.history]
    differing = [a[0] for a, b in zip(one.data, other.data, strict=False) if a != b]
    same_rows = one.data == other.data
    return {
        "verdict": "same" if same_rows and steps_alike and difference <= tolerance else "DIFFERENT",
        "same_instances_at_every_step": same_rows,
        "first_differing_step": differing[0] if differing else None,
        "data_hash": {"undisturbed": one.data_hash, "disturbed": other.data_hash},
        "largest_relative_loss_difference": difference,
        "allowed_loss_difference": tolerance,
        "bit_identical_losses": one.history == other.history,
        # Rows of [step, undisturbed, disturbed].
        "data_hash_by_step": [
            [a[0], a[1], b[1]] for a, b in zip(one.data, other.data, strict=False)
        ],
        "loss_by_step": [[a["step"], a["loss"], b["loss"]] for a, b in pairs],
    }


def relative_difference(one: float, other: float) -> float:
    """The difference of two losses as a share of the first, or of the other if that is 0."""
    return 0.0 if one == other else abs(one - other) / abs(one or other)


class StepFile(SilentReporter):
    """Writes the last step to a file. At step `hold_at` it blocks, to be killed there."""

    def __init__(self, path: str, hold_at: int | None) -> None:
        self._path = path
        self._hold_at = hold_at

    def progress(self, done: float, total: float, **shown: float | str) -> None:
        Path(self._path).write_text(f"{done:.0f}")
        while self._hold_at is not None and done >= self._hold_at:
            time.sleep(_POLL_SECONDS)


def _run(
    config: FitConfig[GradientConfig],
    read: Mapping[str, Artifact],
    compute: ComputeConfig,
    output: Folder,
    title: str,
    console: Console,
    kill_at: int | None = None,
) -> PretrainSummary | None:
    """Run the stage in its own process; return its summary, or None if it was killed."""
    began = time.monotonic()
    workers, total = compute.num_workers, config.pretrain.steps
    title = f"run {title}: {workers} worker{'s' if workers > 1 else ''}"
    with tempfile.TemporaryDirectory(prefix="rungwise-proof-") as scratch:
        steps, result = Path(scratch) / "step", Path(scratch) / "summary.json"
        job = {
            "config": config.blocks(),
            "compute": compute.model_dump(mode="json"),
            "inputs": {name: artifact.folder.uri for name, artifact in read.items()},
            "output": output.uri,
            "steps": str(steps),
            "hold_at": kill_at,
            "result": str(result),
        }
        path = Path(scratch) / "job.json"
        path.write_text(json.dumps(job))
        # Its own Ray, because a shared cluster must not be killed.
        variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        with (Path(scratch) / "log").open("w+b") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "rungwise.pretraining.resume_proof", str(path)],
                env=variables | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=log,
                stderr=log,
            )
            try:
                with console.status(f"{title}, starting") as status:
                    while process.poll() is None:
                        step = _read_step(steps)
                        if kill_at is not None and step >= kill_at:
                            break
                        if step >= 0:
                            status.update(f"{title}, step {step} of {total}")
                        time.sleep(_POLL_SECONDS)
            finally:
                kill_with_children(process.pid)
                process.wait()
            done = _read_step(steps)
            console.print(f"{title}, {done} of {total} steps in {time.monotonic() - began:.0f} s")
            if kill_at is not None and done >= kill_at:
                return None
            if not result.exists():
                log.seek(0)
                raise UserError(f"a run of the proof failed: {_last_line(log.read())}")
        return PretrainSummary.model_validate_json(result.read_text())


def kill_with_children(pid: int) -> None:
    """Send SIGKILL to a process and all its descendants, by process id."""
    try:
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _read_step(path: Path) -> int:
    text = path.read_text() if path.exists() else ""
    return int(text) if text else -1


def _last_line(log: bytes) -> str:
    lines = [line for line in log.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


def _work(path: str) -> None:
    job = json.loads(Path(path).read_text())
    compute = ComputeConfig(**job["compute"])
    inputs: dict[str, Artifact] = {}
    for name, uri in job["inputs"].items():
        artifact = artifacts.load(Folder.at(uri))
        assert artifact is not None
        inputs[name] = artifact
    context = Context(compute, StepFile(job["steps"], job["hold_at"]))
    output = Folder.at(job["output"])
    with session(compute):
        summary = gradient.pretrain_by_gradient(
            require_gradient(validate(PretrainStageConfig, job["config"]), "steps"),
            inputs,
            output,
            context,
        )
    Folder.at(Path(job["result"]).parent).write_bytes(
        Path(job["result"]).name, summary.model_dump_json().encode()
    )


if __name__ == "__main__":
    set_environment()
    _work(sys.argv[1])
