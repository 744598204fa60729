"""The commands submit, jobs, logs, stop and resume."""

import datetime
import difflib
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.job_submission import JobDetails, JobStatus, JobType
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rungwise.core.configuration.secrecy import redact
from rungwise.core.console import plain_console
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import FAILED, INTERRUPTED, OK
from rungwise.core.package_data import PACKAGE
from rungwise.core.stages.provenance import COMMIT_VARIABLE, commit
from rungwise.core.storage.folder import local_path
from rungwise.submission.connection import Client, Server, UnreachableError, connect
from rungwise.submission.follow import Follower
from rungwise.submission.packing import package_uri
from rungwise.submission.probe import METADATA as PROBE

_STYLES = {
    JobStatus.PENDING: "yellow",
    JobStatus.RUNNING: "bold cyan",
    JobStatus.SUCCEEDED: "green",
    JobStatus.STOPPED: "yellow",
    JobStatus.FAILED: "bold red",
}
_ENDS = {
    JobStatus.SUCCEEDED: "succeeded",
    JobStatus.FAILED: "failed",
    JobStatus.STOPPED: "been stopped",
}
_LONGEST_NAME = 40
_POLL_SECONDS = 0.5
# How long a job may take after SIGTERM to close its runs and connections before Ray kills it. Ray
# reads this where the job runs; its default of 3 s is too short for a slow tracking server.
_STOP_SECONDS = 60
_VARIABLES = {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_SECONDS)}


def submit_command(
    workflow: str,
    config: str,
    overrides: Sequence[str],
    server: Server,
    folder: str,
    *,
    wait: bool,
    any_version: bool,
) -> int:
    """Check everything, submit, and follow the job; return 0 only if it succeeded. Raises
    UserError, before anything is uploaded, if the job could not run."""
    # Importing recipes imports all training code, which the other commands do not need.
    from rungwise.submission import local, preflight

    job = local.load_job(folder, workflow, config, overrides)
    client, report = preflight.check_job(job, server, any_version)
    report.show()
    # The name is shown in Ray's dashboard.
    metadata = {"job_name": job.recipe.name, "commit": commit(job.folder) or ""}
    return _submit(client, job.entrypoint, job.environment, metadata, wait)


def jobs_command(server: Server) -> None:
    """Print the jobs of a cluster, newest first."""
    table = Table(box=None, pad_edge=False, expand=True)
    for heading in ("id", "name", "status"):
        table.add_column(heading, no_wrap=True)
    for heading in ("age", "ran for"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("command", overflow="ellipsis", no_wrap=True, ratio=1)
    now = time.time() * 1000
    jobs = describe_jobs(server)
    for job in jobs:
        start, end = job["started_ms"] or now, job["ended_ms"] or now
        status = Text(job["status"], _STYLES[JobStatus(job["status"].upper())])
        times = _duration(now - start), _duration(end - start)
        table.add_row(Text(job["id"]), Text(job["name"]), status, *times, Text(job["command"]))
    console = Console()
    console.print(table if jobs else f"no jobs at {server.address}", highlight=False)


def describe_jobs(server: Server) -> list[dict[str, Any]]:
    """The jobs of a cluster as plain data, newest first; times are in ms since 1970."""
    return [
        {
            "id": _id(job),
            "name": (job.metadata or {}).get("job_name", ""),
            "status": job.status.value.lower(),
            "message": job.message,
            "started_ms": job.start_time,
            "ended_ms": job.end_time,
            "command": job.entrypoint,
        }
        for job in _list_jobs(connect(server))
    ]


def logs_command(job: str, server: Server, follow: bool) -> int:
    """Print a job's output so far, or follow it to its end and return the job's status."""
    client = connect(server)
    job_id = _id(_find(client, job))
    if follow:
        return _follow(client, job_id)
    _write(client.get_job_logs(job_id))
    return OK


def stop_command(job: str, server: Server) -> None:
    """Stop a job as Ctrl-C stops a run, and wait until it has ended."""
    client, console = connect(server), plain_console()
    details = _find(client, job)
    job_id = _id(details)
    if details.status.is_terminal():
        console.print(f"{job_id} has {_ENDS[details.status]} already")
        return
    client.stop_job(job_id)
    with console.status(f"{escape(job_id)} closes its runs (at most {_STOP_SECONDS} s)"):
        while not (details := client.get_details(job_id)).status.is_terminal():
            time.sleep(_POLL_SECONDS)
    console.print(f"{job_id} has {_ENDS[details.status]}")
    if details.status is JobStatus.STOPPED:
        console.print(f"go on from its checkpoints: rungwise resume {job_id}{server.option}")


def resume_command(job: str, server: Server, folder: str, *, wait: bool) -> int:
    """Resubmit an ended job with the same package and command; it continues from its checkpoints.
    Raises UserError if it is still running or has succeeded, or if the cluster no longer has its
    package and the folder no longer holds the same files."""
    client = connect(server)
    details = _find(client, job)
    job_id, option = _id(details), server.option
    if not details.status.is_terminal():
        raise UserError(
            f"{job_id} is {details.status.value.lower()}; follow it with: rungwise logs --follow "
            f"{job_id}{option}, or end it first: rungwise stop {job_id}{option}"
        )
    if details.status is JobStatus.SUCCEEDED:
        raise UserError(f"{job_id} has succeeded: there is nothing left to go on with")
    metadata = {**(details.metadata or {}), "resumes": job_id}
    environment = dict(details.runtime_env or {})
    if not environment.get("working_dir"):
        raise UserError(f"{job_id} was submitted without a folder, so there is none to send again")

    def renew(uri: str, source: Path) -> str:
        """The folder that Ray has to upload again, or the URI if the cluster still has it."""
        if not uri.startswith("gcs://") or client.has_package(uri):
            return uri
        if package_uri(source) == uri:
            return str(source)
        # As Job.entrypoint quotes it.
        command = details.entrypoint.removeprefix("python ").removeprefix("-m rungwise run ")
        raise UserError(
            f"the cluster no longer has the package of {job_id}, and {source} holds other "
            f"files; submit what is there now: rungwise submit {command} --working-dir "
            f"{shlex.quote(folder)}{option}"
        )

    environment["working_dir"] = renew(environment["working_dir"], local_path(folder).resolve())
    if modules := environment.get("py_modules"):
        environment["py_modules"] = [renew(uri, PACKAGE) for uri in modules]
    return _submit(client, details.entrypoint, environment, metadata, wait)


def _submit(
    client: Client,
    entrypoint: str,
    environment: dict[str, Any],
    metadata: dict[str, str],
    wait: bool,
) -> int:
    """Submit a job, and follow it if `wait`; return the exit status."""
    variables = {**(environment.get("env_vars") or {}), **_VARIABLES}
    variables[COMMIT_VARIABLE] = metadata.get("commit", "")
    name = metadata.get("job_name", "job")
    job_id = client.submit_job(
        entrypoint=entrypoint,
        submission_id=f"{name[:_LONGEST_NAME]}-{secrets.token_hex(3)}",
        runtime_env={**environment, "env_vars": variables},
        metadata=metadata,
    )
    console, option = plain_console(), client.server.option
    console.print(Text.assemble("\n", ("submitted", "green"), " ", (job_id, "bold")))
    if not wait:
        console.print(f"follow it with: rungwise logs --follow {job_id}{option}")
        console.print(f"end it with:    rungwise stop {job_id}{option}")
        return OK
    console.print("Ctrl-C leaves it running\n")
    return _follow(client, job_id)


def _follow(client: Client, job_id: str) -> int:
    console, errors, option = plain_console(), plain_console(stderr=True), client.server.option
    try:
        details = Follower(client, job_id, _write, errors.print).follow()
    except KeyboardInterrupt:
        errors.print(f"\n{job_id} goes on without you:")
        for command in ("logs --follow", "stop"):
            errors.print(f"  rungwise {command} {job_id}{option}")
        return INTERRUPTED
    except UnreachableError as error:
        errors.print(redact(str(error)))
        errors.print(f"{job_id} may go on; then: rungwise logs --follow {job_id}{option}")
        return FAILED
    duration = _duration((details.end_time or 0) - (details.start_time or 0))
    end = (_ENDS[details.status], _STYLES[details.status])
    console.print(Text.assemble("\n", (job_id, "bold"), " has ", end, f" after {duration}"))
    if details.status is JobStatus.SUCCEEDED:
        return OK
    if details.driver_exit_code is None and details.message and details.status is JobStatus.FAILED:
        console.print(
            redact(details.message.strip())
        )  # Ray's: the command never ran, or its node died
    console.print(f"go on from its checkpoints: rungwise resume {job_id}{option}")
    return FAILED


def _list_jobs(client: Client) -> list[JobDetails]:
    """Submitted jobs, newest first, without the probes of pre-flight checks."""
    jobs = [
        job
        for job in client.list_jobs()
        if job.type is JobType.SUBMISSION and PROBE not in (job.metadata or {})
    ]
    return sorted(jobs, key=lambda job: -(job.start_time or 0))


def _find(client: Client, job: str) -> JobDetails:
    """The job with this id or with a unique id that starts with it. Raises UserError if none."""
    jobs = {_id(details): details for details in _list_jobs(client)}
    if job in jobs:
        return jobs[job]
    matches = [name for name in jobs if name.startswith(job)]
    if len(matches) == 1:
        return jobs[matches[0]]
    if matches:
        raise UserError(f"several jobs begin with {job}: {', '.join(matches)}; give more of the id")
    near = difflib.get_close_matches(job, jobs, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "see: rungwise jobs" + client.server.option
    raise UserError(f"the cluster at {client.server.address} knows no job {job}; {hint}")


def _id(job: JobDetails) -> str:
    assert job.submission_id is not None, "_list_jobs leaves out other jobs"
    return job.submission_id


def _duration(milliseconds: float) -> str:
    seconds = max(0, round(milliseconds / 1000))
    if seconds < 60:
        return f"{seconds} s"
    text = str(datetime.timedelta(seconds=seconds))  # 2 days, 3:04:05
    return text.replace(" days, ", " d ").replace(" day, ", " d ")


def _write(text: str) -> None:
    sys.stdout.write(redact(text))
    sys.stdout.flush()
