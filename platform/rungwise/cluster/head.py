"""Ray on this machine, in a process of its own, which ends with the one that started it.

It imports and starts Ray beside the imports of the driver. The kernel closes the driver's end of a
pipe however the driver ends, and this process then ends all that Ray has started: agents would
outlive a raylet that was killed by up to a minute.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from typing import Any, NoReturn

import psutil

from rungwise.core.errors import UserError

_END_SECONDS = 3.0  # for Ray's own shutdown; what is left then is killed
# Nobody asks this Ray for statistics of the machine, or gives it notice of the machine's end.
_SPARED = {"REPORTER_UPDATE_INTERVAL_MS": "60000", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}


class Head:
    """Starts Ray at once; `address` waits until it runs."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """`settings` are of Ray's RayParams. Its processes inherit the environment of this one."""
        code = f"import sys; sys.path[:] = {sys.path!r}; from rungwise.cluster import head; "
        # Of a session of its own, so that Ctrl-C in a terminal ends the driver before its Ray.
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{code}head.main({json.dumps(settings)!r})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def address(self) -> str:
        """Ray's address, once it runs. Raises UserError if it does not start."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process has ended"}
        if "error" in answer:
            reason, load = answer["error"].partition("\n")[0], os.getloadavg()[0]
            raise UserError(
                f"Ray did not start ({reason}); the load is {load:.0f} on {os.cpu_count()} cores: "
                "if that is much, give the same command again later"
            )
        return answer["address"]

    def stop(self) -> None:
        """End all its processes; takes some tenths of a second."""
        with self._process:  # closes the pipes, and waits
            pass


def main(settings: str) -> None:
    """Start Ray, print its address or error as JSON, and end it with stdin."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    os.environ.update(_SPARED | os.environ)
    from rungwise import ray_private

    logging.getLogger("ray").setLevel(logging.ERROR)

    class Node(ray_private.Node):
        def start_api_server(self, **options: Any) -> None:
            """Start no server: jobs of this Ray come from the driver alone."""

    try:
        ray_private.enable_token_auth_by_default()
        ray_private.ensure_token_if_auth_enabled({}, create_token_if_missing=True)
        parameters = ray_private.RayParams(
            **json.loads(settings), no_monitor=True, include_log_monitor=False
        )
        node = Node(parameters, head=True, shutdown_at_exit=False, ray_init_cluster=True)
        answer = {"address": node.address_info["gcs_address"]}
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)  # noqa: T201
    threading.Event().wait()


def _end_with_stdin() -> NoReturn:
    """End this process, and all it has started, at the end of stdin."""
    try:
        sys.stdin.buffer.read()
        _end_children()
    finally:
        os._exit(0)  # the driver waits for it


def _end_children() -> None:
    """End all that Ray has started. Any of them may end by itself meanwhile."""
    children = psutil.Process().children(recursive=True)
    raylets = []
    for each in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            if each.name() == "raylet":  # which ends its workers and agents
                each.terminate()
                raylets.append(each)
    psutil.wait_procs(raylets, _END_SECONDS)
    children += psutil.Process().children(recursive=True)
    for each in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(children, _END_SECONDS)
