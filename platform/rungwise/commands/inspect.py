"""`rungwise inspect INSTANCES`: print instances as readable text."""

from __future__ import annotations

import argparse

from rich.console import Console

from rungwise.commands.arguments import Commands, add_verb
from rungwise.core.exit_codes import OK


def add(commands: Commands) -> None:
    parser = add_verb(commands, "inspect", inspect, "print instances as a person reads them")
    parser.add_argument("instances", metavar="INSTANCES", help="artifacts/instances, or one in it")
    parser.add_argument("--index", type=int, help="which one; a few are drawn if left out")
    parser.add_argument("--split", default="train", choices=("train", "validation"))
    parser.add_argument("--epoch", type=int, default=0, help="masks and windows are drawn anew")
    parser.add_argument("--seed", type=int, default=0, help="of the masks and of the choice")


def inspect(options: argparse.Namespace) -> int:
    from rungwise.instances import inspection

    instances = inspection.find(options.instances)
    inspection.inspect(
        instances, options.split, options.index, options.epoch, options.seed, Console()
    )
    return OK
