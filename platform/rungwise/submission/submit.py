"""Submit a checked job, follow its log over broken connections, and return its exit status.

Everything else that is done with a job is `ray job`, whose commands are printed.
"""

import asyncio
import contextlib
import logging
import os
import platform
import secrets
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import ray
import requests
from packaging.version import Version
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient
from rich.filesize import decimal

from rungwise.cluster.local import DASHBOARD_PORT, find_cluster
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import FAILED, INTERRUPTED, OK, plain_console
from rungwise.core.stages.provenance import COMMIT_VARIABLE, commit
from rungwise.core.storage.folder import local_path
from rungwise.core.wording import format_count
from rungwise.submission.job import SubmittedJob, check_paths, check_stages, check_upload

ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"
_DEFAULT_TOKEN = Path(".ray", "auth_token")  # the last place where Ray looks, below the home


@dataclass(frozen=True)
class Server:
    """A job server, and the token to show it, if any."""

    address: str
    token: str | None = field(repr=False)
    token_path: Path | None  # None also if the token is in a variable

    def command(self, *arguments: str) -> str:
        """`ray job ARGUMENTS` for a shell, with the address and the token's file."""
        variables = ["RAY_AUTH_MODE=token"] if self.token is not None else []
        if self.token_path is not None:
            variables.append(f"RAY_AUTH_TOKEN_PATH={shlex.quote(str(self.token_path))}")
        verb, *rest = arguments
        command = shlex.join(["ray", "job", verb, "--address", self.address, *rest])
        return " ".join([*variables, command])


def find_server(address: str | None) -> Server:
    """The server at `address`, in the environment, or of the cluster here, or UserError."""
    if address := address or os.environ.get(ADDRESS_VARIABLE):
        url = address if "://" in address else f"http://{address}"
        return _make_server(url.rstrip("/"))
    if cluster := find_cluster():
        return _make_server(cluster.job_address)
    raise UserError(
        "which cluster? give --address http://HOST:8265 or set RAY_API_SERVER_ADDRESS (after "
        "`kubectl port-forward service/rungwise-head-svc 8265` it is http://127.0.0.1:8265), or "
        "start one here with: rungwise up"
    )


def connect(server: Server) -> JobSubmissionClient:
    """Ray's client of the server. Raises UserError if none answers, or it refuses the token."""
    for module in ("dashboard_sdk", "job.sdk"):  # else these tell of packages and sockets
        logging.getLogger(f"ray.dashboard.modules.{module}").setLevel(logging.WARNING)
    headers = {} if server.token is None else {"Authorization": f"Bearer {server.token}"}
    os.environ[ADDRESS_VARIABLE] = server.address  # which Ray's client prefers to its argument
    try:
        return JobSubmissionClient(server.address, headers=headers)
    except AuthenticationError as error:
        raise UserError(
            f"the cluster at {server.address} wants a token, and "
            + ("none is set" if server.token is None else "refuses this one")
            + "; put the cluster's token in a file and name the file in RAY_AUTH_TOKEN_PATH"
        ) from error
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"no job server of a Ray cluster answers at {server.address}; start one with `rungwise "
            "up`, or forward the port of one on Kubernetes and leave it open: kubectl port-forward "
            f"service/rungwise-head-svc {DASHBOARD_PORT}"
        ) from error


def _make_server(address: str) -> Server:
    """The server with the token of the cluster started here, or else from where Ray looks."""
    cluster = find_cluster()
    default = Path.home() / _DEFAULT_TOKEN
    if cluster and cluster.job_address == address:
        path = Path(cluster.token_path)
    elif value := os.environ.get("RAY_AUTH_TOKEN"):
        return Server(address, value.strip(), None)
    elif value := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        path = local_path(value)
    elif default.is_file():
        path = default
    else:
        return Server(address, None, None)
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read the token at {path} ({error}); name its file in RAY_AUTH_TOKEN_PATH"
        ) from error
    return Server(address, token, path)


_LONGEST_NAME = 40
_POLL_SECONDS = 1.0
# A head that has just started turns submissions away until its agent runs.
_NOT_YET = "No available agent"
_START_SECONDS = 60.0
# Longer than a laptop sleeps, but not for ever for a dead cluster.
PATIENCE_SECONDS = 1800.0
# How long a job may take after SIGTERM to close its runs before Ray kills it; Ray's default of 3 s
# is too short for a slow tracking server.
_VARIABLES = {"RAY_JOB_STOP_WAIT_TIME_S": "60"}


def submit(job: SubmittedJob, server: Server, *, wait: bool) -> int:
    """Check, submit and follow the job. Raises UserError before anything is uploaded."""
    console = plain_console()
    notes = check_stages(job)
    sizes = check_upload(job.folder, job.excludes)
    client = connect(server)
    check_versions(client)
    if paths := check_paths(job, sizes):
        notes.append(f"every machine must have {', '.join(paths)} at the same place")
    files = format_count(sum(not name.endswith("/") for name in sizes), "file")
    console.print(f"command  {job.entrypoint}", highlight=False, markup=False)
    console.print(f"upload   {files} of {job.folder}, {decimal(sum(sizes.values()))}", markup=False)
    for note in notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    job_id = _submit(client, job)
    console.print(f"\nsubmitted {job_id}")
    commands = [server.command("logs", "--follow", job_id), server.command("stop", job_id)]
    if not wait:
        console.print("\n  ".join(["follow it, or end it:", *commands]))
        return OK
    console.print("Ctrl-C leaves it running\n")
    try:
        details = follow(client, job_id)
    except KeyboardInterrupt:
        console.print("\n  ".join([f"\n{job_id} goes on; follow it, or end it:", *commands]))
        return INTERRUPTED
    console.print(f"\n{job_id}: {details.status.value.lower()}")
    if details.status is JobStatus.SUCCEEDED:
        return OK
    if details.driver_exit_code is None and details.message:
        console.print(details.message.strip(), markup=False)  # Ray's: the command never ran
    console.print("submit it again, and it continues from its checkpoints")
    return FAILED


def check_versions(client: JobSubmissionClient) -> None:
    """Raise UserError if the cluster has another minor version of Ray or Python."""
    metadata = client._do_request("GET", "/api/v0/cluster_metadata").json()["data"]
    here = {"Ray": ray.__version__, "Python": platform.python_version()}
    for name, local in here.items():
        remote = metadata[f"{name.lower()}Version"]
        if Version(remote).release[:2] != Version(local).release[:2]:
            raise UserError(
                f"{name} is {remote} on the cluster and {local} here; make this environment with "
                f"{name} {remote}"
            )


def follow(client: JobSubmissionClient, job_id: str) -> JobDetails:
    """Print the job's output, each character once, until it has ended. Raises UserError after
    PATIENCE_SECONDS without an answer. KeyboardInterrupt does not stop the job."""
    printed = 0

    def write(text: str, position: int) -> None:
        """Write the new part of `text`, which begins at `position` in the output."""
        nonlocal printed
        sys.stdout.write(text[max(0, printed - position) :])
        sys.stdout.flush()
        printed = max(printed, position + len(text))

    async def tail() -> None:
        # Every connection receives the output from its beginning.
        position = 0
        async for text in client.tail_job_logs(job_id):
            write(text, position)
            position += len(text)

    last_answer = time.monotonic()
    while True:
        with contextlib.suppress(aiohttp.ClientError, RuntimeError, OSError):
            asyncio.run(tail())
        try:
            details = client.get_job_info(job_id)
            if details.status.is_terminal():
                write(client.get_job_logs(job_id), 0)
                return details
            last_answer = time.monotonic()
        except requests.RequestException as error:
            if time.monotonic() - last_answer > PATIENCE_SECONDS:
                raise UserError(
                    f"{client.get_address()} no longer answers, and {job_id} may go on; submit it "
                    "again later, and it continues from its checkpoints"
                ) from error
        except RuntimeError as error:
            raise UserError(
                f"{client.get_address()} does not know the job {job_id} ({error}); a head that "
                "starts anew forgets its jobs: submit it again, and it continues"
            ) from error
        time.sleep(_POLL_SECONDS)


def _submit(client: JobSubmissionClient, job: SubmittedJob) -> str:
    """Upload and submit the job; return its id."""
    name, head = job.recipe.name, commit(job.folder) or ""
    deadline = time.monotonic() + _START_SECONDS
    with tempfile.TemporaryDirectory() as scratch:
        environment = job.environment(Path(scratch))
        environment["env_vars"] = {**_VARIABLES, COMMIT_VARIABLE: head}
        while True:
            try:
                return client.submit_job(
                    entrypoint=job.entrypoint,
                    submission_id=f"{name[:_LONGEST_NAME]}-{secrets.token_hex(3)}",
                    runtime_env=environment,
                    metadata={"job_name": name, "commit": head},
                )
            except RuntimeError as error:
                if _NOT_YET not in str(error) or time.monotonic() > deadline:
                    raise UserError(
                        f"{client.get_address()} refuses the job: {str(error).splitlines()[-1]}"
                    ) from error
                time.sleep(_POLL_SECONDS)
