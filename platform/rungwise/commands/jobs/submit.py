"""`rungwise submit WORKFLOW CONFIG`: check a workflow, run it on a cluster, follow it."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import (
    Commands,
    add_cluster,
    add_submission,
    add_verb,
    add_workflow,
    find_server,
)


def add(commands: Commands) -> None:
    parser = add_verb(commands, submit, "check a workflow, run it on a cluster, follow it")
    add_workflow(parser)
    parser.add_argument(
        "--ignore-versions",
        action="store_true",
        help="submit even if the cluster has another minor version of Ray or Python",
    )
    add_submission(parser)
    add_cluster(parser)


def submit(options: argparse.Namespace) -> int:
    from rungwise.submission.jobs import submit_command

    return submit_command(
        options.workflow,
        options.config,
        options.overrides,
        find_server(options),
        options.working_dir,
        wait=not options.no_wait,
        any_version=options.ignore_versions,
    )
