"""Query the head, with a short job that prints what only the head knows.

The job server lists existing machines over HTTP, but not which ones the autoscaler may add, what
they cost, or where a relative root is. The head knows from its description
(cluster/description.py) and its environment.

The job is deleted by the next query. Ray watches a job for some seconds after its end, and would
list one deleted in that time as failed.
"""

import contextlib
import json
import shlex
import time
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rungwise.cluster.description import MACHINE_FILE, Scaling
from rungwise.cluster.expected_nodes import MACHINE_VARIABLE
from rungwise.cluster.ray_start import ROOT_VARIABLE
from rungwise.core.errors import UserError
from rungwise.submission.connection import Client

METADATA = "rungwise_probe"
_MARK = "rungwise-head:"
_PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.3
_WATCHED_SECONDS = 10.0
# Runs on the head, where rungwise may not be installed.
_CODE = f"""
import json, os
path = os.environ.get({MACHINE_VARIABLE!r}, {str(MACHINE_FILE)!r})
machine = json.load(open(path)) if os.path.exists(path) else {{}}
head = {{"scaling": machine.get("scaling"), "root": os.environ.get({ROOT_VARIABLE!r})}}
print({_MARK!r} + json.dumps(head))
"""


@dataclass(frozen=True)
class Head:
    """Which machines may be added (None if unknown), and the root of artifacts."""

    scaling: Scaling | None
    root: str | None


def query_head(client: Client) -> Head:
    """Query the head. Raises UserError if the job does not end or prints something unexpected."""
    for earlier in client.list_jobs():
        probe = earlier.submission_id if METADATA in (earlier.metadata or {}) else None
        end_ms = earlier.end_time
        if probe and end_ms and time.time() - end_ms / 1000 > _WATCHED_SECONDS:
            with contextlib.suppress(UserError):  # another client may have been first
                client.delete_job(probe)
    job = client.submit_job(entrypoint=f"python -c {shlex.quote(_CODE)}", metadata={METADATA: "1"})
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not client.get_details(job).status.is_terminal():
        if time.monotonic() > deadline:
            client.stop_job(job)
            raise UserError(
                f"a job that asks the head what it may start did not end in "
                f"{_PATIENCE_SECONDS:.0f} s; the dashboard at {client.server.address} shows "
                f"its log: {job}"
            )
        time.sleep(_POLL_SECONDS)
    output = client.get_job_logs(job)
    lines = [line for line in output.splitlines() if line.startswith(_MARK)]
    try:
        answer: dict[str, Any] = json.loads(lines[-1].removeprefix(_MARK))
        scaling = answer["scaling"]
        return Head(None if scaling is None else Scaling.model_validate(scaling), answer["root"])
    except (IndexError, ValueError, KeyError, ValidationError) as error:
        last = (output.strip().splitlines() or ["nothing"])[-1]
        raise UserError(
            f"the head does not say what it may start; it printed: {last}. Compare {MACHINE_FILE} "
            "on the head with what this version of rungwise reads"
        ) from error
