"""Submit a checked job, follow its log over broken connections, and return its exit status.

Everything else that is done with a job is `ray job`, whose commands are printed.
"""

import asyncio
import contextlib
import platform
import secrets
import sys
import time

import aiohttp
import ray
import requests
from packaging.version import Version
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient
from rich.filesize import decimal

from rungwise.core.console import plain_console
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import FAILED, INTERRUPTED, OK
from rungwise.core.plural import format_count
from rungwise.core.stages.provenance import COMMIT_VARIABLE, commit
from rungwise.submission.job import SubmittedJob, check_paths, check_stages
from rungwise.submission.packing import check_upload
from rungwise.submission.server import Server, connect

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
    """Check everything, submit, and follow the job; return 0 only if it succeeded. Raises
    UserError, before anything is uploaded, if the job could not run."""
    console = plain_console()
    notes = check_stages(job)
    upload = check_upload(job.folder)
    if paths := check_paths(job, upload):
        notes.append(f"every machine must have {', '.join(paths)} at the same place")
    client = connect(server)
    check_versions(client)
    files = format_count(len(upload.sizes), "file")
    console.print(f"command  {job.entrypoint}", highlight=False, markup=False)
    console.print(f"upload   {files} of {job.folder}, {decimal(upload.size_bytes)}", markup=False)
    for note in notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    job_id = _submit(client, job)
    console.print(f"\nsubmitted {job_id}")
    if not wait:
        console.print(f"follow it with: {server.command('logs', '--follow', job_id)}")
        console.print(f"end it with:    {server.command('stop', job_id)}")
        return OK
    console.print("Ctrl-C leaves it running\n")
    try:
        details = follow(client, job_id)
    except KeyboardInterrupt:
        console.print(f"\n{job_id} goes on without you; follow it, or end it:")
        console.print(f"  {server.command('logs', '--follow', job_id)}")
        console.print(f"  {server.command('stop', job_id)}")
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
    for name, remote, local in (
        ("Ray", metadata["rayVersion"], ray.__version__),
        ("Python", metadata["pythonVersion"], platform.python_version()),
    ):
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
    environment = {**job.environment, "env_vars": {**_VARIABLES, COMMIT_VARIABLE: head}}
    deadline = time.monotonic() + _START_SECONDS
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
