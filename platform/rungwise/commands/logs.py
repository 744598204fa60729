"""`rungwise logs JOB`: print what a job has printed."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_cluster, add_verb


def add(commands: Commands) -> None:
    parser = add_verb(commands, "logs", logs, "print what a job has printed")
    parser.add_argument("job", metavar="ID", help="an id, or how it begins")
    parser.add_argument("--follow", "-f", action="store_true", help="until the job ends")
    add_cluster(parser)


def logs(options: argparse.Namespace) -> int:
    from rungwise.submission.connection import server
    from rungwise.submission.jobs import logs_command

    return logs_command(options.job, server(options.address, options.name), options.follow)
