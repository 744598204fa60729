"""`rungwise down`: stop the cluster that `rungwise up` started (cluster/local/down.py)."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_verb
from rungwise.core.console import plain_console


def add(commands: Commands) -> None:
    parser = add_verb(commands, down, "stop the cluster that `up` started, nothing else")
    parser.add_argument("--name", help="which cluster, if there are several")


def down(options: argparse.Namespace) -> None:
    from rungwise.cluster.local.down import stop_cluster

    stop_cluster(options.name, plain_console())
