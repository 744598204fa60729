"""The parser of the command line, and arguments of several verbs; the other files define these."""

from __future__ import annotations

import argparse
import difflib
import importlib
import math
import pkgutil
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NoReturn, TypeAlias

import rungwise.commands

# The verbs, in the groups that the help shows.
VERBS = {
    "from text to a page": (
        *("init", "recipes", "data", "tasks", "plan", "dry_run", "run", "forecast", "doctor"),
    ),
    "what was built": (
        *("try", "inspect", "predict", "export", "promote", "why", "verify", "rebuild"),
        *("prove_resume", "gc"),
    ),
    "jobs on a cluster": ("submit", "status"),
    "clusters": ("up", "down"),
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of one command, which `command` of the result runs. Exits, with a line,
    for help and for what is no command."""
    parser, verbs = make_parser()
    if not arguments or arguments[0] == "help":
        arguments = [*arguments[1:2], "--help"]
    if arguments and not arguments[0].startswith("-") and arguments[0] not in verbs:
        near = difflib.get_close_matches(arguments[0], verbs, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "rungwise help lists the commands"
        parser.error(f"there is no command {arguments[0]!r}; {hint}")
    return parse_overrides(parser, arguments)


class _Parser(argparse.ArgumentParser):
    """Shows a mistake without the secrets of what was typed."""

    def error(self, message: str) -> NoReturn:
        from rungwise.core.configuration.secrecy import redact

        super().error(redact(message))


def make_parser() -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser, and the names of the verbs."""
    parser = _Parser(
        prog="rungwise",
        usage="rungwise COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rungwise {version('rungwise')}")
    commands = parser.add_subparsers(
        required=True, prog="rungwise", metavar="COMMAND", help=argparse.SUPPRESS
    )
    for module in pkgutil.iter_modules(rungwise.commands.__path__, "rungwise.commands."):
        if hasattr(verb := importlib.import_module(module.name), "add"):
            verb.add(commands)
    lines = ["Pretrain language models on Ray, and say with evidence what each is worth."]
    for title, group in VERBS.items():
        names = [verb.replace("_", "-") for verb in group]
        lines += ["", f"{title}:"]
        lines += [f"  {name:<14}{commands.choices[name].description}" for name in names]
    parser.description = "\n".join(lines)
    parser.epilog = "rungwise help COMMAND describes a command."
    return parser, list(commands.choices)


def parse_overrides(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> argparse.Namespace:
    """Parse, and also accept overrides after an option, where argparse does not expect them."""
    options, rest = parser.parse_known_args(arguments)
    if strange := [item for item in rest if item.startswith("-") or "=" not in item]:
        hint = "; keys of a recipe are set by KEY=VALUE, such as pretrain.steps=200"
        hint = hint if hasattr(options, "overrides") else ""
        parser.error(f"unrecognized arguments: {' '.join(strange)}{hint}")
    if rest and not hasattr(options, "overrides"):
        parser.error(f"this command takes no overrides: {' '.join(rest)}")
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


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
