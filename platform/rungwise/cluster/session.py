"""Join the cluster of a submitted job or start Ray on this machine, and silence Ray's output."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from rungwise import ray_private
from rungwise.cluster.environment import ENVIRONMENT
from rungwise.cluster.head import Head
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.exit_codes import terminate_as_interrupt
from rungwise.core.storage.folder import Folder

_IDLE_BYTES = 256 << 20  # of a worker that has imported PyTorch


@contextlib.contextmanager
def session(
    compute: ComputeConfig, num_cpus: int | None = None, head: Head | None = None
) -> Iterator[None]:
    """Connect to Ray for the duration of the block.

    Inside a submitted job, or with RAY_ADDRESS set, this joins that cluster. Otherwise it starts
    Ray here (or takes `head`, of `local_head`) with this machine's cores, or `num_cpus`. Ray 2.60
    opens its ports on every interface; the token of a local cluster keeps others out.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    for name in ("ray", "ray.data", "ray.train", "ray.tune"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminate_as_interrupt())
        if address := os.environ.get("RAY_ADDRESS"):
            variables = {name: os.environ[name] for name in ENVIRONMENT} | _source_path()
            runtime_env = {"env_vars": variables}
        else:
            head = head or _make_head(compute, num_cpus)
            stack.callback(head.stop)
            address, runtime_env = head.address(), None
            ray_private.enable_token_auth_by_default()
        stack.callback(ray.shutdown)
        try:
            ray.init(
                address, runtime_env=runtime_env, log_to_driver=False, logging_level=logging.ERROR
            )
        except SystemExit as error:  # of Ray's own handler, at SIGTERM
            raise KeyboardInterrupt from error
        with terminate_as_interrupt():  # again, since ray.init installs its own handler
            yield


@contextlib.contextmanager
def local_head(compute: ComputeConfig) -> Iterator[Head | None]:
    """Begin to start Ray for a `session` on this machine; None if that would start nothing."""
    is_connected = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    if is_connected or "RAY_ADDRESS" in os.environ:
        yield None
        return
    head = _make_head(compute)
    try:
        yield head
    finally:
        head.stop()


def _make_head(compute: ComputeConfig, num_cpus: int | None = None) -> Head:
    """Make the process that starts Ray here, with more idle workers than CPUs, since those have
    imported what they need; a `runtime_env` would prevent their use."""
    room = psutil.virtual_memory().available // 16 // _IDLE_BYTES
    variables = {
        "RAY_num_workers_soft_limit": (os.cpu_count() or 1) + room,
        "RAY_idle_worker_killing_memory_threshold_bytes": _IDLE_BYTES // 4,
        # By default a training that does not fit in memory is started again without end.
        "RAY_task_oom_retries": 10,
    }
    for name, value in variables.items():
        os.environ.setdefault(name, str(value))
    megabytes = compute.object_store_megabytes
    return Head({"num_cpus": num_cpus, "object_store_memory": megabytes << 20})


def _source_path() -> dict[str, str]:
    """The PYTHONPATH of workers, relative, if this package came with a job's working directory."""
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
    """A folder, removed at the end, for internal files of Ray: hidden, below the artifact."""
    folder = output / f".{name}"
    try:
        yield folder.uri
    finally:
        folder.remove()
