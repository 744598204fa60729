"""`rungwise up|down`: a Ray cluster of several nodes on this machine (cluster/local.py)."""

import argparse

from rungwise.commands.arguments import Commands, add_verb
from rungwise.core.console import plain_console
from rungwise.core.exit_codes import INTERRUPTED


def add(commands: Commands) -> None:
    parser = add_verb(commands, up, "start a Ray cluster of several nodes on this machine")
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="default: 2")
    parser.add_argument("--root", default="artifacts", help="root of recipes and MLflow's store")
    add_verb(commands, down, "stop the cluster that `up` started, nothing else")


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
    from rungwise.cluster.local import end_cluster, find_cluster, find_process

    say = plain_console().print
    if (cluster := find_cluster()) is None:
        say("no cluster was started here")
        return
    missing = [each.what for each in cluster.processes if find_process(each) is None]
    count = end_cluster(cluster)
    if missing:
        say(f"had ended by itself: {', '.join(missing)}")
    say(f"ended {count} processes of the cluster; submit a job that ran again, and it goes on")
