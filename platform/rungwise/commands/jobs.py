"""`rungwise submit|status|up|down`: run a workflow on a cluster, or on one on this machine."""

import argparse
from collections import defaultdict
from collections.abc import Callable

from rungwise.commands.arguments import Commands, add_verb, add_workflow
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import INTERRUPTED, plain_console

_MOST_RUNS = 200  # read from MLflow, newest first
_PERCENT, _COUNT, _NUMBER = "{:.1%}".format, "{:,.0f}".format, "{:.4g}".format
_SECONDS = "{:,.0f} s".format


def add(commands: Commands) -> None:
    parser = add_verb(commands, submit, "check a workflow, run it on a cluster, follow it")
    add_workflow(parser)
    parser.add_argument("--working-dir", default=".", metavar="FOLDER", help="folder to upload")
    parser.add_argument("--no-wait", action="store_true", help="return once the job is submitted")
    help_text = "default: RAY_API_SERVER_ADDRESS, else the cluster that `rungwise up` started"
    parser.add_argument("--address", metavar="URL", help=help_text)
    parser = add_verb(commands, status, "show how runs are doing: tokens/s, MFU, losses")
    parser.add_argument("run", metavar="RUN", nargs="?", help="name of a recipe; default: all")
    parser.add_argument("--experiment", default="rungwise", help="in MLflow")
    parser = add_verb(commands, up, "start a Ray cluster of several nodes on this machine")
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="default: 2")
    parser.add_argument("--root", default="artifacts", help="root of recipes and MLflow's store")
    add_verb(commands, down, "stop the cluster that `up` started, nothing else")


def submit(options: argparse.Namespace) -> int:
    """Submit the job; return its exit status. Raises UserError if it could not run."""
    # Importing recipes imports all training code.
    from rungwise.submission import find_server, load_job, submit

    job = load_job(options.working_dir, options.workflow, options.config, options.overrides)
    return submit(job, find_server(options.address), wait=not options.no_wait)


def up(options: argparse.Namespace) -> int | None:
    """Start the cluster, or say that it runs already."""
    from rungwise.cluster.local import describe_cluster, start_cluster

    console = plain_console()
    try:
        console.print(describe_cluster(start_cluster(options.nodes, options.root, console)))
    except KeyboardInterrupt:
        console.print("interrupted; everything that had started was stopped")
        return INTERRUPTED
    return None


def down(options: argparse.Namespace) -> None:
    """End the cluster's processes and jobs, and remove its token and record."""
    from rungwise.cluster.local import end_cluster, find_cluster

    say = plain_console().print
    if (cluster := find_cluster()) is None:
        say("no cluster was started here")
        return
    count = end_cluster(cluster)
    say(f"ended {count} processes of the cluster; submit a job that ran again, and it goes on")


# What is shown of a stage: MLflow's name, and how it is written.
_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "tokens": ("train/tokens", _COUNT),
    "tokens/s": ("system/tokens_per_second", _COUNT),
    "MFU": ("system/mfu", _PERCENT),
    "loss": ("train/loss", _NUMBER),
    "validation": ("validation/loss", _NUMBER),
    "data wait": ("system/data_wait_share", _PERCENT),
    "starting": ("system/starting_seconds", _SECONDS),
    "time": ("system/stage_seconds", _SECONDS),
}


def status(options: argparse.Namespace) -> None:
    """Print the latest figures of each stage. Raises UserError if MLflow has no such experiment."""
    from rungwise.core.tracking.store import hide_credentials, store_client
    from rungwise.pipeline.places import default_places

    uri = default_places()[1]
    with store_client(uri) as client:
        experiment = client.get_experiment_by_name(options.experiment)
        if experiment is None:
            raise UserError(
                f"MLflow at {hide_credentials(uri)} has no experiment {options.experiment}; start "
                "a run, or give another --experiment or MLFLOW_TRACKING_URI"
            )
        # Whole recipes, trials and seeds are runs, too.
        only = "tags.`rungwise.stage` LIKE '%'"
        stages = client.search_runs([experiment.experiment_id], only, 1, _MOST_RUNS)
    states: dict[tuple[str, str], str] = {}  # of the newest run of each stage
    figures: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for each in stages:
        stage, _, label = (each.info.run_name or "").rpartition(" of ")
        key = label, stage
        if options.run in (None, label):
            states.setdefault(key, each.info.status.lower())
            figures[key] = each.data.metrics | figures[key]
    say = plain_console().print
    for key, state in reversed(states.items()):
        words = [*key, state]
        for heading, (metric, write) in _FIGURES.items():
            if metric in figures[key]:
                words.append(f"{heading} {write(figures[key][metric])}")
        say("  ".join(words))
    if not states:
        say("no run")
    say(f"MLflow at {hide_credentials(uri)}")
