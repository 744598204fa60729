"""Arguments shared by several verbs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Command: TypeAlias = Callable[[argparse.Namespace], int | None]


def add_verb(
    commands: Commands, command: Command, description: str, name: str = ""
) -> argparse.ArgumentParser:
    """Add a verb that calls `command`, which returns an exit status, None for success."""
    name = name or command.__name__.replace("_", "-")
    parser = commands.add_parser(name, help=description, description=description)
    parser.set_defaults(command=command)
    return parser


def add_workflow(parser: argparse.ArgumentParser) -> None:
    help_text = "finetune, or workflows/finetune.py"
    parser.add_argument("workflow", metavar="WORKFLOW", help=help_text)
    add_recipe(parser)


def add_recipe(parser: argparse.ArgumentParser, **more: Any) -> None:
    """Add a recipe and its overrides; `more` goes to `add_argument`."""
    more.setdefault("help", "a recipe: quickstart, or workflows/configs/quickstart.yaml")
    parser.add_argument("config", metavar="CONFIG", **more)
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    help_text = "override keys of the recipe, such as root=/data/artifacts"
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", default=[], help=help_text)


def add_served_model(parser: argparse.ArgumentParser) -> None:
    """Add a model for `predict` and `try`."""
    help_text = "models:/NAME@champion, artifacts/evaluate or artifacts/pretrain (the newest), a "
    help_text += "folder in one of them, a recipe, or one of its variants: ladder.yaml@gpt"
    parser.add_argument("model", metavar="MODEL", help=help_text)
    add_registry(parser)


def add_registry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", default="artifacts", help="root with the registry for models:/")


def positive_integer(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, found {text}")
    return int(text)


def positive_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text}")
    return number
