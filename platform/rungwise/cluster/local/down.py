"""`rungwise down`: end what `rungwise up` started, and nothing else on the machine."""

import contextlib
import time
from pathlib import Path

from rich.console import Console

from rungwise.cluster import registry
from rungwise.cluster.local import processes as services
from rungwise.cluster.local.machine import ClusterFolder
from rungwise.cluster.local.processes import end_processes, find_process
from rungwise.cluster.registry import RegisteredCluster

_JOBS_SECONDS = 15.0
_POLL_SECONDS = 0.5


def stop_cluster(console: Console) -> None:
    """Stop the cluster's jobs, end its processes, remove its token and record; logs stay."""
    cluster = registry.find()
    if cluster is None:
        console.print("no cluster was started here")
        return
    folder = ClusterFolder()
    with folder.locked(), console.status("ending the cluster"):
        missing = [entry.what for entry in cluster.processes if find_process(entry) is None]
        jobs = _stop_jobs(cluster)
        count = end_processes(cluster.processes, folder.scratch)
        folder.clear()
    if missing:
        console.print(f"had ended by itself: {', '.join(missing)}")
    if jobs:
        console.print(f"stopped {jobs} running jobs; submit them again to go on")
    console.print(f"ended {count} processes of the cluster")
    console.print(f"logs stay in {folder.logs}")


def _stop_jobs(cluster: RegisteredCluster) -> int:
    """Stop running jobs so that they close their MLflow runs; return how many there were."""
    dashboard, token = cluster.job_address, Path(cluster.token_path)
    jobs = []
    with contextlib.suppress(OSError, ValueError):
        jobs = services.list_jobs(dashboard, token)
        for job in jobs:
            services.stop_job(dashboard, token, job["submission_id"])
        deadline = time.monotonic() + _JOBS_SECONDS
        while services.list_jobs(dashboard, token) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    return len(jobs)
