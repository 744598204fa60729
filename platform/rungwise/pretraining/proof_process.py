"""One run of a proof (resume_proof.py): the pretrain stage in its own process with its own Ray."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from rich.console import Console

from rungwise.cluster.environment import set_environment
from rungwise.cluster.session import session
from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.configuration.config import Config
from rungwise.core.errors import UserError
from rungwise.core.plural import format_count
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context, SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.pretraining.config import PretrainStageConfig, require_gradient
from rungwise.pretraining.gradient import pretrain_by_gradient
from rungwise.pretraining.summary import PretrainSummary

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
        with (folder / "log").open("w+b") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "rungwise.pretraining.proof_process", scratch],
                env=variables | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=log,
                stderr=log,
            )
            try:
                with console.status(f"{title}, starting") as status:
                    while process.poll() is None:
                        step = _read_step(folder)
                        if job.kill_at is not None and step >= job.kill_at:
                            break
                        if step >= 0:
                            status.update(f"{title}, step {step} of {total}")
                        time.sleep(_POLL_SECONDS)
            finally:
                kill_with_children(process.pid)
                process.wait()
            step = _read_step(folder)
            console.print(f"{title}, {step} of {total} steps in {time.monotonic() - began:.0f} s")
            if job.kill_at is not None and step >= job.kill_at:
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
