"""The pretrain stage on Ray, in a process of its own, for tests that do something to it.

    python -m tests.faults.training_job JOB.json

Started here or as a `Job`, it joins the cluster of RAY_ADDRESS or starts a Ray of its own. Beside
its summary it leaves the step it has reached, the nodes it found, and a file a worker that says
where the worker ran and whom it was connected to.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
from torch import distributed as dist

from rungwise.cluster.environment import ENVIRONMENT, set_environment
from rungwise.cluster.session import session
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context, SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.training.config import GradientFit
from rungwise.training.fit_config import PretrainStageConfig, pretrain_model
from rungwise.training.ray.resume_proof import kill_with_children
from rungwise.training.summary import PretrainSummary
from tests.conftest import REPOSITORY
from tests.waiting import wait_until


class Watch(SilentReporter):
    """Writes each step to a file; at `kill_at` the worker that reports kills itself, once."""

    def __init__(self, folder: str, kill_at: int | None, pause: float) -> None:
        self.folder = Path(folder)
        self.kill_at = kill_at
        self.pause = pause  # seconds a step, so that a run is not over before anything happens

    def progress(self, done: float, total: float, **shown: float | str) -> None:
        # Whole or not at all: a test reads it meanwhile.
        workers = dist.get_world_size() if dist.is_initialized() else 1
        (self.folder / "step.tmp").write_text(f"{done:.0f} {workers}")
        (self.folder / "step.tmp").rename(self.folder / "step")
        time.sleep(self.pause)
        killed = self.folder / "killed"
        if self.kill_at is not None and done >= self.kill_at and not killed.exists():
            killed.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)

    def flush(self) -> None:
        """Each worker's last words."""
        if not dist.is_initialized():
            return
        sockets = psutil.Process().net_connections("tcp")
        connected = [one for one in sockets if one.status == psutil.CONN_ESTABLISHED]
        listening = [one for one in sockets if one.status == psutil.CONN_LISTEN]
        worker = {
            "rank": dist.get_rank(),
            "world_size": dist.get_world_size(),
            "node": ray.util.get_node_ip_address(),
            "master": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
            "interface": os.environ.get("GLOO_SOCKET_IFNAME"),
            "listens": sorted({_plain(one.laddr) for one in listening}),
            "connections": sorted((_plain(one.laddr), _plain(one.raddr)) for one in connected),
        }
        (self.folder / f"worker-{os.getpid()}.json").write_text(json.dumps(worker))


class Job:
    """A run in a process and a session of its own."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, errors: Path) -> None:
        self.process = process
        self.folder = folder
        self._errors = errors

    def wait_until(self, what: str, holds: Callable[[], object], seconds: float = 200) -> None:
        wait_until(lambda: f"{what}: {self.errors()}", holds, seconds, self.process.poll)

    def wait_for_step(self, step: int) -> None:
        self.wait_until(f"step {step}", lambda: self.reached()[0] >= step)

    def reached(self) -> tuple[int, int]:
        """The last step, and how many workers took part in it."""
        path = self.folder / "step"
        step, workers = path.read_text().split() if path.exists() else ("-1", "0")
        return int(step), int(workers)

    def family(self) -> list[psutil.Process]:
        """All that the run has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def nodes(self) -> dict[str, str]:
        """The ids of the nodes by their addresses."""
        return json.loads((self.folder / "nodes.json").read_text())

    def summary(self, seconds: float = 280) -> PretrainSummary:
        assert self.process.wait(seconds) == 0, self.errors()
        return PretrainSummary.model_validate_json((self.folder / "summary.json").read_text())

    def workers(self) -> list[dict[str, Any]]:
        """What the workers said when they ended, by rank."""
        workers = [json.loads(path.read_text()) for path in self.folder.glob("worker-*.json")]
        return sorted(workers, key=lambda worker: worker["rank"])

    def checkpoint(self) -> dict[str, Any] | None:
        """The record of the newest checkpoint."""
        records = sorted(self.folder.glob("output/checkpoints/*/checkpoint.json"))
        return json.loads(records[-1].read_text()) if records else None

    def errors(self) -> str:
        return self._errors.read_text()[-5000:]


@contextlib.contextmanager
def job(
    folder: Path,
    settings: GradientFit,
    instances: Artifact,
    environment: dict[str, str] | None = None,
    compute: dict[str, Any] | None = None,
    **does: Any,
) -> Iterator[Job]:
    """The run started; what is left of its processes at the end of the block is killed.

    `does` are `kill_at` and `pause` of `Watch`, and `output` if it is not below `folder`.
    """
    folder.mkdir(exist_ok=True)
    whole = {
        "config": settings.blocks(),
        "compute": {
            "num_workers": 2,
            "micro_batch_size": 4,
            "checkpoint_every_steps": 5,
            "object_store_megabytes": 100,
            **(compute or {}),
        },
        "instances": instances.folder.uri,
        "output": str(folder / "output"),
        **does,
    }
    (folder / "job.json").write_text(json.dumps(whole))
    (folder / "step").unlink(missing_ok=True)
    if environment is None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_ADDRESS")}
    errors = folder / "errors.log"
    with errors.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.training_job", str(folder / "job.json")],
            cwd=REPOSITORY,
            env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            text=True,
        )
    try:
        yield Job(process, folder, errors)
    finally:
        kill_with_children(process.pid)
        process.wait()


def _plain(address: Any) -> str:
    return f"{address.ip.removeprefix('::ffff:')}:{address.port}"


def main(path: str) -> None:
    job = json.loads(Path(path).read_text())
    folder = Path(path).parent
    compute = ComputeConfig(**job["compute"])
    config = PretrainStageConfig.model_validate(job["config"])
    instances = artifacts.load(Folder.at(job["instances"]))
    assert instances is not None
    watch = Watch(str(folder), job.get("kill_at"), job.get("pause", 0.0))
    if address := os.environ.get("RAY_ADDRESS"):
        # All nodes of these clusters are on this machine; a driver runs on the head.
        ray.init(
            address=address,
            _node_ip_address=address.rpartition(":")[0],
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": {name: os.environ[name] for name in ENVIRONMENT}},
        )
    with session(compute):
        nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes()}
        (folder / "nodes.json").write_text(json.dumps(nodes))
        summary = pretrain_model(
            config, {"instances": instances}, Folder.at(job["output"]), Context(compute, watch)
        )
    (folder / "summary.json").write_text(summary.model_dump_json())


if __name__ == "__main__":
    set_environment()
    main(sys.argv[1])
