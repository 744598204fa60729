"""`rungwise plan WORKFLOW CONFIG`: show what would be built and why, or the whole recipe."""

import argparse

from rich.table import Table
from rich.text import Text

from rungwise.commands.arguments import Commands, add_json, add_verb, add_workflow, print_json
from rungwise.core.console import plain_console

# The reason begins so if a stage continues a stopped one (core/stages/stage.py) or a shorter run
# (training/stage.py).
_GOES_ON = "goes on "


def add(commands: Commands) -> None:
    parser = add_verb(commands, plan, "show what would be built and why")
    add_workflow(parser)
    parser.add_argument("--stages", action="store_true", help="list the stages even if all are new")
    add_json(parser)
    parser.add_argument(
        "--resolved",
        action="store_true",
        help="print the whole recipe instead: every key, with defaults and overrides",
    )


def plan(options: argparse.Namespace) -> None:
    """Print the plan; run and write nothing."""
    from rungwise.core.configuration.secrecy import redact
    from rungwise.pipeline import workflow
    from rungwise.pipeline.places import root_folder
    from rungwise.pipeline.reference import write_resolved

    console = plain_console()
    recipe = workflow.load_recipe(options.config, options.overrides)
    if options.resolved:
        console.print(write_resolved(recipe), end="")
        return
    rows = workflow.plan(options.workflow, recipe)
    if options.json:
        print_json(
            [
                {
                    "stage": row.stage.display_name,
                    "fingerprint": row.stage.fingerprint,
                    "state": "cached" if row.artifact else "build",
                    "because": redact(row.reason),
                    "folder": row.folder.uri,
                }
                for row in rows
            ]
        )
        return
    root = root_folder(recipe.root)
    names = dict.fromkeys(row.stage.name for row in rows)
    folders = (name for stage in names for name in (root / stage).subfolders())
    labels = {name.rpartition("-")[0] for name in folders}
    all_new = all(row.artifact is None and not row.reason.startswith(_GOES_ON) for row in rows)
    if all_new and not options.stages and recipe.name not in labels:
        stages = f"{len(rows)} stages below {root.uri} ({', '.join(names)})"
        console.print(f"nothing is built yet: {stages}")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("stage", "fingerprint", "state"):
        table.add_column(heading, no_wrap=True)  # only the reason gives way on a narrow terminal
    table.add_column("because", overflow="fold")
    for row in rows:
        state = Text("cached", "cyan") if row.artifact else Text("build", "bold cyan")
        table.add_row(row.stage.display_name, row.stage.fingerprint, state, redact(row.reason))
    console.print(table, soft_wrap=False)
    missing = sum(row.artifact is None for row in rows)
    console.print(f"{missing} of {len(rows)} stages to build below {root.uri}")
