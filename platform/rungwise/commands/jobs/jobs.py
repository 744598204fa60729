"""`rungwise jobs`: list the jobs of a cluster."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import (
    Commands,
    add_cluster,
    add_json,
    add_verb,
    find_server,
    print_json,
)


def add(commands: Commands) -> None:
    parser = add_verb(commands, jobs, "list a cluster's jobs")
    add_cluster(parser)
    add_json(parser)


def jobs(options: argparse.Namespace) -> None:
    from rungwise.submission.jobs import describe_jobs, jobs_command

    server = find_server(options)
    if options.json:
        print_json(describe_jobs(server))
    else:
        jobs_command(server)
