"""Join the cluster of a submitted job or start Ray on this machine, and silence Ray's output."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import ray

from rungwise.cluster import expected_nodes
from rungwise.cluster.environment import ENVIRONMENT
from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import terminate_as_interrupt
from rungwise.core.storage.folder import Folder

_IDLE_BYTES = 256 << 20  # of a worker that has imported PyTorch


@contextlib.contextmanager
def session(compute: ComputeConfig, num_cpus: int | None = None) -> Iterator[None]:
    """Connect to Ray for the duration of the block.

    Inside a submitted job, or with RAY_ADDRESS set, this joins that cluster. Otherwise it starts
    Ray here with this machine's cores, or `num_cpus`, until the block ends; other clusters on the
    machine are neither joined nor touched. Ray 2.60 on Linux opens its ports on every interface
    whatever address it is given; the token of a local cluster keeps others out.
    """
    address = os.environ.get("RAY_ADDRESS")
    if ray.is_initialized():
        yield
        return
    for name in ("ray", "ray.data", "ray.train", "ray.tune"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if address:
        variables = {name: os.environ[name] for name in ENVIRONMENT} | _source_path()
        variables |= expected_nodes.scaling_variables()
        target: dict[str, Any] = {"address": address, "runtime_env": {"env_vars": variables}}
    else:
        # Its processes inherit the environment of this one. With a `runtime_env`, the workers that
        # Ray starts in advance could not be used.
        for name, value in _local_settings().items():
            os.environ.setdefault(name, str(value))
        target = {
            "address": "local",
            "num_cpus": num_cpus,
            "include_dashboard": False,
            "object_store_memory": compute.object_store_megabytes << 20,
        }
    try:
        with terminate_as_interrupt():
            _init(**target, log_to_driver=False, logging_level=logging.ERROR)
            with terminate_as_interrupt():  # again, since ray.init installs its own handler
                yield
    finally:
        ray.shutdown()


def _init(**arguments: Any) -> None:
    """Start or join Ray; retry once if it times out after its 30 s, as on a busy machine."""
    for is_last in (False, True):
        try:
            ray.init(**arguments)
            return
        except SystemExit as error:  # of Ray's own handler, at SIGTERM
            raise KeyboardInterrupt from error
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            ray.shutdown()
            if is_last:
                load, cores = os.getloadavg()[0], os.cpu_count()
                raise UserError(
                    f"Ray did not start within 30 s, twice; the load is {load:.0f} on {cores} "
                    "cores: give the same command again when the machine is less busy"
                ) from error


def _local_settings() -> dict[str, int]:
    """Settings of a local Ray, which keeps idle workers, since they have imported what they need.

    By default it keeps as many as it has free CPUs. While trials take all CPUs, every short task
    then starts a process, which imports for seconds, and ends it. Idle workers take a sixteenth of
    the free memory, and are ended first if memory runs out.
    """
    room = psutil.virtual_memory().available // 16 // _IDLE_BYTES
    return {
        "RAY_num_workers_soft_limit": (os.cpu_count() or 1) + room,
        "RAY_idle_worker_killing_memory_threshold_bytes": _IDLE_BYTES // 4,
        # By default a training that does not fit in memory is started again without end.
        "RAY_task_oom_retries": 10,
    }


def _source_path() -> dict[str, str]:
    """The PYTHONPATH of workers if this package came with a job's working directory. The path is
    relative, since Ray unpacks that directory to a different place on every node and starts workers
    in it."""
    source_root = Path(__file__).resolve().parents[2]
    if not source_root.is_relative_to(Path.cwd().resolve()):
        return {}
    return {"PYTHONPATH": str(source_root.relative_to(Path.cwd().resolve()))}


def quiet_ray_data() -> None:
    """Silence Ray Data and make it preserve the order of rows. Call it in each stage."""
    from ray.data import DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = True
    # At ERROR it prints tracebacks of errors that the driver reports in one line.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


@contextlib.contextmanager
def shared_scratch(output: Folder, name: str) -> Iterator[str]:
    """A folder for internal files of Ray Train and Tune, removed at the end of the block. It is
    below the artifact, which every node can reach, and its name starts with a dot because it is not
    part of the artifact."""
    folder = output / f".{name}"
    try:
        yield folder.uri
    finally:
        folder.remove()
