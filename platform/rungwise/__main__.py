"""The command line: `rungwise VERB ...`, each verb a file of commands/."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

# The files of commands/, in the order of the help.
VERBS = (
    *("plan", "run", "doctor", "ui", "sync", "inspect", "dry_run", "prove_resume", "export"),
    *("predict", "neighbours", "up", "down", "submit", "jobs", "logs", "stop", "resume"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and run one command; the process's exit status (core/exit_codes.py)."""
    parser = argparse.ArgumentParser(
        prog="rungwise",
        description="Pretrain language models on Ray, and say with evidence what each is worth.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for verb in VERBS:
        importlib.import_module(f"rungwise.commands.{verb}").add(commands)
    options = _parsed(parser, arguments)
    from rungwise.cluster.environment import set_environment
    from rungwise.core.exit_codes import guarded

    set_environment()
    return guarded(lambda: options.command(options))


def _parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse, and take overrides that stand behind an option, where argparse looks for none."""
    options, rest = parser.parse_known_args(arguments)
    if strange := [item for item in rest if item.startswith("-") or "=" not in item]:
        parser.error(f"unrecognized arguments: {' '.join(strange)}")
    if rest and not hasattr(options, "overrides"):
        parser.error(f"this command takes no overrides: {' '.join(rest)}")
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


if __name__ == "__main__":
    sys.exit(main())
