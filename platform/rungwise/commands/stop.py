"""`rungwise stop JOB`: end a job as Ctrl-C ends a run."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_cluster, add_verb


def add(commands: Commands) -> None:
    parser = add_verb(commands, "stop", stop, "end a job as Ctrl-C ends a run")
    parser.add_argument("job", metavar="ID", help="an id, or how it begins")
    add_cluster(parser)


def stop(options: argparse.Namespace) -> int:
    from rungwise.submission.connection import server
    from rungwise.submission.jobs import stop_command

    return stop_command(options.job, server(options.address, options.name))
