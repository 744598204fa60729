"""`rungwise jobs`: list the jobs of a cluster."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_cluster, add_verb


def add(commands: Commands) -> None:
    add_cluster(add_verb(commands, "jobs", jobs, "list the jobs of a cluster"))


def jobs(options: argparse.Namespace) -> int:
    from rungwise.submission.connection import server
    from rungwise.submission.jobs import jobs_command

    return jobs_command(server(options.address, options.name))
