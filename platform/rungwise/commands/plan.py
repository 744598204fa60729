"""`rungwise plan WORKFLOW CONFIG`: print what would be built and why, or the whole recipe."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from rungwise.commands.arguments import Commands, add_verb, add_workflow
from rungwise.core.exit_codes import OK


def add(commands: Commands) -> None:
    parser = add_verb(commands, "plan", plan, "print what would be built, and why")
    add_workflow(parser)
    parser.add_argument(
        "--resolved",
        action="store_true",
        help="print the recipe with every key instead, defaults and overrides included",
    )


def plan(options: argparse.Namespace) -> int:
    """Print it; nothing is run or written."""
    from rungwise.pipeline import workflow
    from rungwise.pipeline.reference import resolved

    console = Console()
    recipe = workflow.load_recipe(options.config, options.overrides)
    if options.resolved:
        console.print(resolved(recipe), end="", markup=False, highlight=False, soft_wrap=True)
        return OK
    rows = workflow.plan(options.workflow, recipe)
    table = Table(box=None, pad_edge=False)
    for heading in ("stage", "fingerprint", "state", "because"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        state = "[blue]cached[/]" if row.artifact else "[bold cyan]build[/]"
        table.add_row(row.stage.shown, row.stage.fingerprint, state, row.reason)
    console.print(table)
    missing = sum(row.artifact is None for row in rows)
    root = workflow.root_folder(recipe.root)
    console.print(f"{missing} of {len(rows)} stages to build below {root.uri}", highlight=False)
    return OK
