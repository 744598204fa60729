"""`rungwise resume JOB`: submit a job that ended again; it goes on from its checkpoints."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_cluster, add_submission, add_verb


def add(commands: Commands) -> None:
    parser = add_verb(
        commands, "resume", resume, "submit a job that ended again, from its checkpoints"
    )
    parser.add_argument("job", metavar="ID", help="an id, or how it begins")
    add_submission(parser)
    add_cluster(parser)


def resume(options: argparse.Namespace) -> int:
    from rungwise.submission.connection import server
    from rungwise.submission.jobs import resume_command

    return resume_command(
        options.job,
        server(options.address, options.name),
        options.working_dir,
        wait=not options.no_wait,
    )
