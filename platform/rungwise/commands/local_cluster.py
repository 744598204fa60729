"""`rungwise up|down`: a Ray cluster of several nodes on this machine (cluster/local/)."""

import argparse

from rungwise.commands.arguments import Commands, add_verb
from rungwise.core.console import plain_console
from rungwise.core.exit_codes import INTERRUPTED, OK


def add(commands: Commands) -> None:
    parser = add_verb(commands, up, "start a Ray cluster of several nodes on this machine")
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="default: 2")
    parser.add_argument("--root", default="artifacts", help="root of recipes and MLflow's store")
    add_verb(commands, down, "stop the cluster that `up` started, nothing else")


def up(options: argparse.Namespace) -> int:
    """Start the cluster, or say that it runs already."""
    from rungwise.cluster.local.up import describe_cluster, start_cluster

    console = plain_console()
    try:
        console.print(describe_cluster(start_cluster(options.nodes, options.root, console)))
    except KeyboardInterrupt:
        console.print("interrupted; everything that had started was stopped")
        return INTERRUPTED
    return OK


def down(options: argparse.Namespace) -> None:
    from rungwise.cluster.local.down import stop_cluster

    stop_cluster(plain_console())
