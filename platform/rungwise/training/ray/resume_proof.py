"""Kill a run, restart it with other workers, and compare it with an undisturbed one.

    undisturbed   n workers ─────────────────────────────────────────> losses, hash of the rows
    disturbed     n workers ──> SIGKILL to all of its processes, at a random step
                  m workers ──> from the last checkpoint to the end ─> losses, hash of the rows

Both cut their batches for the least common multiple of n and m logical workers. The kill falls into
the second epoch if there is one, because mistakes in the data order show there first.
"""

import contextlib
import datetime
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
from typing import Any, Literal

import psutil
from rich.console import Console

from rungwise.cluster.environment import set_environment
from rungwise.cluster.session import session
from rungwise.core.configuration.config import Config
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import UserError, format_count
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact, SummaryPart
from rungwise.core.stages.provenance import provenance
from rungwise.core.stages.stage import Context, SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.instances.summary import InstancesSummary
from rungwise.training.config import FitConfig, GradientFit
from rungwise.training.feed import is_read, rows_per_epoch
from rungwise.training.fit_config import PretrainStageConfig, require_gradient
from rungwise.training.initial import INITIAL
from rungwise.training.ray.gradient import check_fit, pretrain_by_gradient
from rungwise.training.summary import GradientRun, PretrainSummary

_POLL_SECONDS = 0.05
_JOB, _STEP, _SUMMARY = "job.json", "step", "summary.json"


class ProofJob(Config):
    """A run; `inputs` are folders by name. With `kill_at`, it blocks at that step to be killed."""

    config: PretrainStageConfig
    inputs: dict[str, str]
    compute: ComputeConfig
    output: str
    kill_at: int | None = None


def run_job(job: ProofJob, title: str, console: Console) -> PretrainSummary | None:
    """Run the stage in its own process; return its summary, or None if it was killed."""
    began = time.monotonic()
    total = require_gradient(job.config, "steps").pretrain.steps
    title = f"run {title}: {format_count(job.compute.num_workers, 'worker')}"
    with tempfile.TemporaryDirectory(prefix="rungwise-proof-") as scratch:
        folder = Path(scratch)
        (folder / _JOB).write_text(job.model_dump_json())
        # Its own Ray, because a shared cluster must not be killed.
        variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}

        def must_be_killed() -> bool:
            return job.kill_at is not None and _read_step(folder) >= job.kill_at

        with (folder / "log").open("w+b") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "rungwise.training.ray.resume_proof", scratch],
                env=variables | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=log,
                stderr=log,
            )
            try:
                with console.status(title):
                    while process.poll() is None and not must_be_killed():
                        time.sleep(_POLL_SECONDS)
            finally:
                kill_with_children(process.pid)
                process.wait()
            step = _read_step(folder)
            console.print(f"{title}, {step} of {total} steps in {time.monotonic() - began:.0f} s")
            if must_be_killed():
                return None
            if not (folder / _SUMMARY).exists():
                log.seek(0)
                lines = log.read().decode(errors="replace").strip().splitlines()
                last = lines[-1].strip() if lines else "it said nothing"
                raise UserError(f"a run of the proof failed: {last}")
        return PretrainSummary.model_validate_json((folder / _SUMMARY).read_text())


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


def _read_step(folder: Path) -> int:
    path = folder / _STEP
    text = path.read_text() if path.exists() else ""
    return int(text) if text else -1


class StepFile(SilentReporter):
    """Writes the last step to a file. At step `kill_at` it blocks, to be killed there."""

    def __init__(self, path: Path, kill_at: int | None) -> None:
        self._path = path
        self._kill_at = kill_at

    def progress(self, done: float, total: float, **shown: float | str) -> None:
        self._path.write_text(f"{done:.0f}")
        while self._kill_at is not None and done >= self._kill_at:
            time.sleep(_POLL_SECONDS)


def _work(folder: Path) -> None:
    job = ProofJob.model_validate_json((folder / _JOB).read_text())
    inputs: dict[str, Artifact] = {}
    for name, uri in job.inputs.items():
        artifact = artifacts.load(Folder.at(uri))
        assert artifact is not None
        inputs[name] = artifact
    config, output = require_gradient(job.config, "steps"), Folder.at(job.output)
    alone = job.compute.is_one_process
    report = StepFile(folder / _STEP, job.kill_at)
    context = Context(job.compute, report, trains_here=alone)
    with contextlib.nullcontext() if alone else session(job.compute):
        summary = pretrain_by_gradient(config, inputs, output, context)
    Folder.at(folder).write_bytes(_SUMMARY, summary.model_dump_json().encode())


if __name__ == "__main__":
    set_environment()
    _work(Path(sys.argv[1]))


# The largest relative difference of a loss that counts as equal with other workers, because sums
# are in another order.
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-3}
REST = 0.1  # share of the run after the kill, at least
CERTIFICATE = "resume-certificate.json"


class KillWindow(SummaryPart):
    """Where the kill could fall: that part of the run in words, its first and last step."""

    part: str
    first_step: int
    last_step: int


class Certificate(SummaryPart):
    """The two runs, step by step. Rows by step are (step, undisturbed, disturbed)."""

    verdict: Literal["same", "DIFFERENT"]
    same_instances_at_every_step: bool
    first_differing_step: int | None
    data_hash: dict[str, str]  # over all steps, of each run
    largest_relative_loss_difference: float
    allowed_loss_difference: float
    data_hash_by_step: list[tuple[int, str, str]]
    loss_by_step: list[tuple[int, float, float]]
    workers: dict[str, int]
    killed_at_step: int
    kill_drawn_from: KillWindow
    kill_seed: int
    steps_after_the_kill: int
    resumed_at_step: int
    steps: int
    precision: str
    undisturbed: ProofJob
    made_by: dict[str, Any]
    at: str


def prove_resume(
    config: GradientFit,
    inputs: Mapping[str, Artifact],
    compute: ComputeConfig,
    place: Folder,
    workers_after: int | None = None,
    seed: int | None = None,
    console: Console | None = None,
) -> Certificate:
    """Run the proof in `place` and return the certificate, which is written there. By default half
    as many workers come after the kill, or one fewer of an odd number, or two after one; `seed`
    chooses the step of the kill. Raises UserError if two runs cannot be the same or do not fit."""
    console = console or Console(quiet=True)
    settings = config.pretrain.model_copy(update={"log_every_steps": 1})
    config = FitConfig(config.model, settings)
    before = compute.num_workers
    # Half as many share the parts of a batch as they are, which keeps micro-batches large.
    default = 2 if before == 1 else before - 1 if before % 2 else before // 2
    after = workers_after or default
    logical = math.lcm(before, after, compute.logical_workers or 1)
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    if settings.max_seconds is not None:
        raise UserError(
            f"pretrain.max_seconds is {settings.max_seconds}: a clock ends the run, so no second "
            "one would be the same; set pretrain.max_seconds=null for the proof"
        )
    if logical > settings.global_batch_size:
        raise UserError(
            f"--workers-after is {after} after {before}, but pretrain.global_batch_size "
            f"{settings.global_batch_size} has too few rows for {logical} logical workers; choose "
            "other workers, or raise the batch"
        )
    instances = inputs["instances"]
    kill_steps(config, instances, settings.steps)
    # The number of workers is part of the proof, so none may go missing.
    compute = compute.model_copy(update={"min_workers": None, "logical_workers": logical})
    for workers in (before, after):
        check_fit(config, inputs, compute.model_copy(update={"num_workers": workers}))
    inputs = {name: each for name, each in inputs.items() if is_read(name) or name == INITIAL}

    straight, broken = place / "undisturbed", place / "disturbed"
    job = ProofJob(
        config=PretrainStageConfig(model=config.model, pretrain=settings),
        inputs={name: artifact.folder.uri for name, artifact in inputs.items()},
        compute=compute,
        output=straight.uri,
    )
    one = _gradient_run(run_job(job, "1 of 3, undisturbed", console))
    # Only now is the end known: a budget of tokens or an early stop may decide it.
    window = kill_steps(config, instances, one.steps)
    kill_at = random.Random(seed).randint(window.first_step, window.last_step)
    every = min(compute.checkpoint_every_steps, max(1, kill_at // 3))
    compute = compute.model_copy(update={"checkpoint_every_steps": every})
    disturbed = job.model_copy(update={"compute": compute, "output": broken.uri})
    killed = disturbed.model_copy(update={"kill_at": kill_at})
    run_job(killed, "2 of 3, to be killed", console)
    compute = compute.model_copy(update={"num_workers": after})
    resumed = disturbed.model_copy(update={"compute": compute})
    other = _gradient_run(run_job(resumed, "3 of 3, resumed", console))
    certificate = Certificate(
        **_compare(one, other, same_workers=before == after),
        workers={"undisturbed": before, "until_the_kill": before, "after_it": after},
        killed_at_step=kill_at,
        kill_drawn_from=window,
        kill_seed=seed,
        steps_after_the_kill=one.steps - kill_at,
        resumed_at_step=other.attempts[-1].step,
        steps=one.steps,
        precision=_precision(one),
        undisturbed=job,
        made_by=provenance(),
        at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    place.write_bytes(CERTIFICATE, certificate.model_dump_json(indent=1).encode())
    if certificate.verdict == "same":
        straight.remove()
        broken.remove()
    return certificate


def kill_steps(config: GradientFit, instances: Artifact, steps: int) -> KillWindow:
    """Where a run of so many steps can be killed. Raises UserError for a run of one step."""
    size = config.pretrain.global_batch_size
    count = rows_per_epoch(config, InstancesSummary.of(instances).instances.train, size)
    latest = steps - max(1, math.ceil(REST * steps))
    if latest < 1:
        raise UserError(
            f"the run has {steps} step, and one before the kill and one after it are needed; raise "
            "pretrain.steps"
        )
    first = -(-count // size) + 1
    last = min(2 * count // size, config.pretrain.first_longer_step, latest)
    if first <= last:
        return KillWindow(part="the second epoch", first_step=first, last_step=last)
    first = min(latest, max(2, math.ceil(REST * steps)))  # a checkpoint must lie before it
    part = f"a run of {steps * size / count:.2f} epochs"
    return KillWindow(part=part, first_step=first, last_step=latest)


def _gradient_run(summary: PretrainSummary | None) -> GradientRun:
    assert summary is not None
    assert summary.gradient is not None, "the proof is of a fit by gradient"
    return summary.gradient


def _precision(run: GradientRun) -> str:
    """The precision that "auto" resolved to."""
    return "bfloat16" if run.bfloat16 else "float32"


def _compare(one: GradientRun, other: GradientRun, same_workers: bool) -> dict[str, Any]:
    """The fields of a certificate that compare the steps of two runs."""
    tolerance = 0.0 if same_workers else TOLERANCES[_precision(one)]
    losses = [
        (int(a["step"]), a["loss"], b["loss"])
        for a, b in zip(one.history, other.history, strict=False)
    ]
    hashes = [(a[0], a[1], b[1]) for a, b in zip(one.data, other.data, strict=False)]
    difference = max(abs(a - b) / abs(a or b or 1.0) for _, a, b in losses)
    same_steps = [a["step"] for a in one.history] == [b["step"] for b in other.history]
    same_rows = one.data == other.data
    is_same = same_rows and same_steps and difference <= tolerance
    return {
        "verdict": "same" if is_same else "DIFFERENT",
        "same_instances_at_every_step": same_rows,
        "first_differing_step": next((step for step, a, b in hashes if a != b), None),
        "data_hash": {"undisturbed": one.data_hash, "disturbed": other.data_hash},
        "largest_relative_loss_difference": difference,
        "allowed_loss_difference": tolerance,
        "data_hash_by_step": hashes,
        "loss_by_step": losses,
    }
