"""`rungwise jobs`: list the jobs of a cluster."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import (
    Commands,
    add_cluster,
    add_json,
    add_verb,
    chosen_server,
    print_json,
)


def add(commands: Commands) -> None:
    parser = add_verb(commands, "jobs", jobs, "list a cluster's jobs")
    add_cluster(parser)
    add_json(parser)


def jobs(options: argparse.Namespace) -> None:
    from rungwise.submission.jobs import jobs_command, jobs_of

    if options.json:
        print_json(jobs_of(chosen_server(options)))
    else:
        jobs_command(chosen_server(options))
