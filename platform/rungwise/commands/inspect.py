"""`rungwise inspect INSTANCES`: print instances as readable text."""

import argparse

from rich.console import Console

from rungwise.commands.arguments import Commands, add_verb


def add(commands: Commands) -> None:
    parser = add_verb(commands, inspect, "print instances as readable text, masks in colour")
    parser.add_argument(
        "instances", metavar="INSTANCES", help="artifacts/instances (the newest), or a folder in it"
    )
    parser.add_argument("--index", type=int, help="which instance; default: a few at random")
    parser.add_argument("--split", default="train", choices=("train", "validation"))
    parser.add_argument("--epoch", type=int, default=0, help="each has new masks and windows")
    parser.add_argument("--seed", type=int, default=0, help="seed of the masks and the choice")


def inspect(options: argparse.Namespace) -> None:
    from rungwise.instances import inspection

    instances = inspection.find_instances(options.instances)
    inspection.show_instances(
        instances, options.split, options.index, options.epoch, options.seed, Console()
    )
