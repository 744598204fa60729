"""`rungwise down`: end the cluster that `rungwise up` started (cluster/local/down.py)."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_verb


def add(commands: Commands) -> None:
    parser = add_verb(commands, "down", down, "end the cluster that `up` started, and nothing else")
    parser.add_argument("--name", help="which, if there are several")


def down(options: argparse.Namespace) -> int:
    from rungwise.cluster.local.down import down_command

    return down_command(options.name)
