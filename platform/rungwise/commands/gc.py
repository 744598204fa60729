"""`rungwise gc WORKFLOW CONFIG`: clean up below a recipe's root.

It sends MLflow what it missed while it was down, and lists what the recipe has built and no longer
needs.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rungwise.commands.arguments import Commands, add_verb, add_workflow
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import plain_console

if TYPE_CHECKING:
    from rungwise.core.storage.folder import Folder
    from rungwise.pipeline.recipe import Recipe

_ARTIFACT = re.compile("(.*)-([0-9a-f]{12})")


def add(commands: Commands) -> None:
    text = "list what a recipe has built and no longer needs, and send MLflow what it missed"
    parser = add_verb(commands, gc, text)
    add_workflow(parser)
    parser.add_argument("--delete", action="store_true", help="delete what is listed")
    parser.add_argument("--instead-of", metavar="URI", help="former address of the recipe's server")


def gc(options: argparse.Namespace) -> None:
    """List, or delete, what the recipe no longer needs, and send the events that MLflow missed.
    Raises UserError if the server does not accept them."""
    from rungwise.pipeline.places import root_folder, spool_folder, tracking_uri
    from rungwise.pipeline.workflow import load_recipe

    recipe = load_recipe(options.config, options.overrides)
    root = root_folder(recipe.root)
    _send_events(tracking_uri(recipe, root), spool_folder(root), options.instead_of)
    _collect_garbage(options.workflow, recipe, root, options.delete)


def _send_events(uri: str, spool: Path, instead_of: str | None) -> None:
    from rungwise.core.tracking.sender import hide_credentials
    from rungwise.core.tracking.tracker import sync
    from rungwise.core.wording import format_count

    try:
        count = sync(uri, spool, instead_of)
    except ConnectionError as error:
        hint = ""
        if uri.startswith("http"):
            hint = (
                ". If the server needs a password, give it in MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD"
            )
        raise UserError(f"{error}; they stay in {spool}{hint}") from error
    if count:
        plain_console().print(f"{format_count(count, 'event')} sent to {hide_credentials(uri)}")


def _collect_garbage(workflow_name: str, recipe: Recipe, root: Folder, delete: bool) -> None:
    """List the recipe's artifacts, finished or abandoned, that nothing depends on: not its current
    plan, no run that would continue it, no registered model, no artifact of another recipe. Raises
    UserError while a run is in progress."""
    from rich.filesize import decimal

    from rungwise.core.stages import artifact as artifacts
    from rungwise.core.stages.notes import SHARED, SharedResults
    from rungwise.pipeline import workflow
    from rungwise.serving.stage import REGISTER

    say = plain_console().print
    rows = workflow.plan(workflow_name, recipe)
    current = {row.stage.fingerprint for row in rows}
    continued = {row.earlier.fingerprint for row in rows if row.earlier}
    existing = artifacts.find_artifacts(root)
    others = {
        each.fingerprint
        for each in existing
        if each.label != recipe.name or each.stage == REGISTER.name
    }
    needed = artifacts.collect_inputs(current | continued | others, existing)
    unneeded = [
        root / stage / name
        for stage in root.subfolders()
        for name in (root / stage).subfolders()
        # Below a root that holds more than artifacts, a folder of the user may be named so.
        if (match := _ARTIFACT.fullmatch(name))
        and match[1] == recipe.name
        and match[2] not in needed
    ]
    total = 0
    for folder in unneeded:
        size = sum(folder.sizes().values())
        state = "finished" if folder.exists(artifacts.RECORD) else "abandoned"
        _check_idle(root)
        if delete:
            artifacts.delete(folder)
        total += size
        say(f"{state:<9} {decimal(size):>9}  {folder.uri}")
    for stage in root.subfolders():
        shared = SharedResults(root / stage / SHARED)
        keys = shared.find_unused()
        size = sum(sum(shared[key].sizes().values()) for key in keys)
        if keys:
            say(f"{'unused':<9} {decimal(size):>9}  {len(keys):,} of {shared.folder.uri}")
        _check_idle(root)
        for key in keys if delete else ():
            shared[key].remove()
        total += size
    if delete:
        say(f"{decimal(total)} deleted")
    elif total:
        say(f"{decimal(total)} can be deleted; add --delete to the same command")
    else:
        say(f"{root.uri}: nothing to delete of {recipe.name}")


def _check_idle(root: Folder) -> None:
    """Raise UserError while a run is at work below `root`, which may need anything there."""
    from rungwise.core.stages.lease import describe_live_driver

    if holder := describe_live_driver(root):
        raise UserError(f"{holder} is at work below {root.uri}; clean up when it has ended")
