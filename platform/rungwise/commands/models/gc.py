"""`rungwise gc WORKFLOW CONFIG`: list what the recipe has built and no longer needs."""

import argparse
import re

from rungwise.commands.arguments import Commands, add_verb, add_workflow

_FINGERPRINT = re.compile("[0-9a-f]{12}")


def add(commands: Commands) -> None:
    parser = add_verb(commands, gc, "list what the recipe has built and no longer needs")
    add_workflow(parser)
    parser.add_argument("--delete", action="store_true", help="delete what is listed")


def gc(options: argparse.Namespace) -> None:
    """List the recipe's artifacts, finished or abandoned, that nothing depends on: not its current
    plan, no run that would continue it, no registered model, no artifact of another recipe, no run
    in progress."""
    from rich.filesize import decimal

    from rungwise.core.console import plain_console
    from rungwise.core.stages import artifact as artifacts
    from rungwise.core.stages.lease import Drivers, Lease
    from rungwise.pipeline import workflow
    from rungwise.pipeline.places import root_folder
    from rungwise.serving.stage import REGISTER

    say = plain_console().print
    recipe = workflow.load_recipe(options.config, options.overrides)
    root = root_folder(recipe.root)
    rows = workflow.plan(options.workflow, recipe)
    current = {row.stage.fingerprint for row in rows}
    continued = {row.earlier.fingerprint for row in rows if row.earlier}
    existing = artifacts.below(root)
    others = {
        each.fingerprint
        for each in existing
        if each.label != recipe.name or each.stage == REGISTER.name
    }
    needed = artifacts.needed(current | continued | others, existing)
    drivers = Drivers(root)
    total = 0
    for stage in root.subfolders():
        for name in (root / stage).subfolders():
            label, _, fingerprint = name.rpartition("-")
            # Below a root that holds more than artifacts, a folder of the user may be named so.
            if (
                label != recipe.name
                or not _FINGERPRINT.fullmatch(fingerprint)
                or fingerprint in needed
            ):
                continue
            folder = root / stage / name
            lease = Lease(root / stage, fingerprint)
            if not lease.claim():
                say(f"kept      {folder.uri}: {lease.holder} builds it")
                continue
            try:
                if holder := drivers.describe_user(fingerprint):
                    say(f"kept      {folder.uri}: {holder} needs it")
                    continue
                size = sum(folder.sizes().values())
                state = "finished" if folder.exists(artifacts.RECORD) else "abandoned"
                if options.delete:
                    artifacts.delete(folder)
            finally:
                lease.release()
            total += size
            say(f"{state:<9} {decimal(size):>9}  {folder.uri}")
    if options.delete:
        say(f"{decimal(total)} deleted")
    elif total:
        say(f"{decimal(total)} can be deleted; add --delete to the same command")
    else:
        say(f"{root.uri}: nothing to delete of {recipe.name}")
