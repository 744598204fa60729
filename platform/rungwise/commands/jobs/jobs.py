"""`rungwise submit|jobs|logs|stop|resume`: jobs on a cluster (submission/jobs.py)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rungwise.commands.arguments import (
    Commands,
    add_cluster,
    add_json,
    add_verb,
    add_workflow,
    print_json,
)

if TYPE_CHECKING:
    from rungwise.submission.connection import Server


def add(commands: Commands) -> None:
    submit_parser = add_verb(commands, submit, "check a workflow, run it on a cluster, follow it")
    add_workflow(submit_parser)
    submit_parser.add_argument(
        "--ignore-versions",
        action="store_true",
        help="submit even if the cluster has another minor version of Ray or Python",
    )
    jobs_parser = add_verb(commands, jobs, "list a cluster's jobs")
    add_json(jobs_parser)
    logs_parser = add_verb(commands, logs, "print the log of a job")
    logs_parser.add_argument(
        "--follow", "-f", action="store_true", help="keep printing until it ends"
    )
    stop_parser = add_verb(commands, stop, "stop a job as Ctrl-C stops a run")
    help_text = "resubmit an ended job; it continues from its checkpoints"
    resume_parser = add_verb(commands, resume, help_text)
    for parser in (logs_parser, stop_parser, resume_parser):
        parser.add_argument("job", metavar="ID", help="the id of a job, or its first characters")
    for parser in (submit_parser, resume_parser):
        parser.add_argument("--working-dir", default=".", metavar="FOLDER", help="folder to upload")
        parser.add_argument(
            "--no-wait", action="store_true", help="return once the job is submitted"
        )
    for parser in (submit_parser, jobs_parser, logs_parser, stop_parser, resume_parser):
        add_cluster(parser)


def submit(options: argparse.Namespace) -> int:
    from rungwise.submission.jobs import submit_command

    return submit_command(
        options.workflow,
        options.config,
        options.overrides,
        _find_server(options),
        options.working_dir,
        wait=not options.no_wait,
        any_version=options.ignore_versions,
    )


def jobs(options: argparse.Namespace) -> None:
    from rungwise.submission.jobs import describe_jobs, jobs_command

    server = _find_server(options)
    if options.json:
        print_json(describe_jobs(server))
    else:
        jobs_command(server)


def logs(options: argparse.Namespace) -> int:
    from rungwise.submission.jobs import logs_command

    return logs_command(options.job, _find_server(options), options.follow)


def stop(options: argparse.Namespace) -> None:
    from rungwise.submission.jobs import stop_command

    stop_command(options.job, _find_server(options))


def resume(options: argparse.Namespace) -> int:
    from rungwise.submission.jobs import resume_command

    server = _find_server(options)
    return resume_command(options.job, server, options.working_dir, wait=not options.no_wait)


def _find_server(options: argparse.Namespace) -> Server:
    """The job server of the cluster. Raises UserError if nothing names one."""
    from rungwise.submission.connection import find_server

    return find_server(options.address, options.name)
