"""`rungwise stop JOB`: stop a job as Ctrl-C stops a run."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_job, add_verb, find_server


def add(commands: Commands) -> None:
    add_job(add_verb(commands, stop, "stop a job as Ctrl-C stops a run"))


def stop(options: argparse.Namespace) -> None:
    from rungwise.submission.jobs import stop_command

    stop_command(options.job, find_server(options))
