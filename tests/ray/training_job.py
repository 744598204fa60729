"""Runs the pretrain stage on a Ray of its own, and does to it what a test asks for.

    python -m tests.ray.training_job JOB.json

The job names what is done to the run when it reaches a step: kill the leading worker, take a node
away, or announce that a node will go. Its result is the stage's summary.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rungwise.cluster.session import session, set_environment

set_environment()

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from rungwise import artifact as artifacts  # noqa: E402
from rungwise.context import ComputeConfig, Context, SilentReporter  # noqa: E402
from rungwise.storage import Folder  # noqa: E402
from rungwise.training import trainer  # noqa: E402
from rungwise.training.trainer import PretrainStageConfig  # noqa: E402


class Watch(SilentReporter):
    """Writes each step to a file; at `kill_at` the worker that reports kills itself, once."""

    def __init__(self, folder: str, kill_at: int | None, pause: float) -> None:
        self.folder = folder
        self.kill_at = kill_at
        self.pause = pause  # seconds a step, so that a run is not over before anything happens

    def progress(self, done: float, total: float, **shown: float | str) -> None:
        (Path(self.folder) / "step").write_text(f"{done:.0f}")
        time.sleep(self.pause)
        killed = Path(self.folder) / "killed"
        if self.kill_at is not None and done >= self.kill_at and not killed.exists():
            killed.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)


def when_at(folder: str, step: int, action: Any) -> None:
    """Call `action` from a thread of its own when the run has reached that step."""

    def wait() -> None:
        path = Path(folder) / "step"
        while not (path.exists() and int(path.read_text() or -1) >= step):
            time.sleep(0.02)
        action()
        (Path(folder) / "done").write_text("")

    threading.Thread(target=wait, daemon=True).start()


def drain(node_id: str, address: str) -> None:
    """What a cloud's notice of a preemption becomes (`ray drain-node`)."""
    command = ["drain-node", "--address", address, "--node-id", node_id, "--reason"]
    subprocess.run(
        [
            str(Path(sys.executable).with_name("ray")),
            *command,
            "DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message",
            "preempted",
            "--deadline-remaining-seconds",
            "60",
        ],
        check=True,
        capture_output=True,
    )


def main(path: str) -> None:
    job = json.loads(Path(path).read_text())
    folder = str(Path(path).parent)
    compute = ComputeConfig(**job["compute"])
    config = PretrainStageConfig.model_validate(job["config"])
    instances = artifacts.load(Folder.at(job["instances"]))
    assert instances is not None
    watch = Watch(folder, job.get("kill_worker_at"), job.get("pause", 0.0))
    cluster = None
    if job.get("nodes", 1) > 1:
        memory = {"object_store_memory": 100 << 20}
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **memory})
        nodes = [cluster.add_node(num_cpus=1, **memory) for _ in range(job["nodes"] - 1)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        if "kill_node_at" in job:
            when_at(
                folder,
                job["kill_node_at"],
                lambda: cluster.remove_node(nodes[-1], allow_graceful=False),
            )
        if "drain_node_at" in job:
            node_id = nodes[-1].node_id
            when_at(folder, job["drain_node_at"], lambda: drain(node_id, cluster.address))
    with session(compute):
        summary = trainer.run(
            config, {"instances": instances}, Folder.at(job["output"]), Context(compute, watch)
        )
    (Path(folder) / "summary.json").write_text(json.dumps(summary))
    if cluster is not None:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
