"""`rungwise logs JOB`: print the log of a job."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_job, add_verb, find_server


def add(commands: Commands) -> None:
    parser = add_job(add_verb(commands, logs, "print the log of a job"))
    parser.add_argument("--follow", "-f", action="store_true", help="keep printing until it ends")


def logs(options: argparse.Namespace) -> int:
    from rungwise.submission.jobs import logs_command

    return logs_command(options.job, find_server(options), options.follow)
