"""`rungwise resume JOB`: resubmit a job that has ended; it continues from its checkpoints."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_job, add_submission, add_verb, find_server


def add(commands: Commands) -> None:
    help_text = "resubmit an ended job; it continues from its checkpoints"
    add_submission(add_job(add_verb(commands, resume, help_text)))


def resume(options: argparse.Namespace) -> int:
    from rungwise.submission.jobs import resume_command

    server = find_server(options)
    return resume_command(options.job, server, options.working_dir, wait=not options.no_wait)
