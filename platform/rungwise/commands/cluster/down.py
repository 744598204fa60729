"""`rungwise down`: stop the cluster that `rungwise up` started (cluster/local/down.py)."""

from __future__ import annotations

import argparse

from rich.console import Console

from rungwise.commands.arguments import Commands, add_verb


def add(commands: Commands) -> None:
    parser = add_verb(commands, "down", down, "stop the cluster that `up` started, nothing else")
    parser.add_argument("--name", help="which cluster, if there are several")


def down(options: argparse.Namespace) -> None:
    from rungwise.cluster.local import down

    down.down(options.name, Console())
