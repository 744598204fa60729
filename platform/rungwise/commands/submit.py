"""`rungwise submit`: run a workflow on a cluster, by its job server or as a RayJob."""

import argparse
from pathlib import Path

from rungwise.commands.arguments import Commands, add_cluster, add_verb, add_workflow


def add(commands: Commands) -> None:
    parser = add_verb(commands, submit, "check a workflow, run it on a cluster, follow it")
    add_workflow(parser)
    parser.add_argument("--working-dir", default=".", metavar="FOLDER", help="folder to upload")
    parser.add_argument("--no-wait", action="store_true", help="return once the job is submitted")
    parser.add_argument(
        "--kubernetes",
        type=Path,
        metavar="OVERLAY",
        help="print a RayJob with the cluster of this folder, such as infra/kuberay/overlays/cpu",
    )
    parser.add_argument(
        "--apply", action="store_true", help="with --kubernetes: pipe it to `kubectl create`"
    )
    add_cluster(parser)


def submit(options: argparse.Namespace) -> int | None:
    """Submit the job; return its exit status. Raises UserError if it could not run."""
    # Importing recipes imports all training code.
    from rungwise.core.errors import UserError
    from rungwise.submission.job import load_job

    if options.apply and options.kubernetes is None:
        raise UserError("--apply needs --kubernetes OVERLAY, which names the cluster of the RayJob")
    job = load_job(options.working_dir, options.workflow, options.config, options.overrides)
    if options.kubernetes is not None:
        from rungwise.submission.kubernetes import submit_rayjob

        submit_rayjob(job, options.kubernetes, apply=options.apply)
        return None
    from rungwise.submission.submit import find_server
    from rungwise.submission.submit import submit as submit_job

    return submit_job(job, find_server(options.address), wait=not options.no_wait)
