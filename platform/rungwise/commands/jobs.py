"""`rungwise jobs`: list the jobs of a cluster."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_cluster, add_verb, chosen_server


def add(commands: Commands) -> None:
    add_cluster(add_verb(commands, "jobs", jobs, "list the jobs of a cluster"))


def jobs(options: argparse.Namespace) -> int:
    from rungwise.submission.jobs import jobs_command

    return jobs_command(chosen_server(options))
