"""`rungwise sync CONFIG`: send a tracking server what it missed while it was away."""

from __future__ import annotations

import argparse

from rich.console import Console

from rungwise.commands.arguments import Commands, add_recipe, add_verb
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import OK


def add(commands: Commands) -> None:
    help_text = "send what a tracking server missed while it was away"
    add_recipe(add_verb(commands, "sync", sync, help_text))


def sync(options: argparse.Namespace) -> int:
    """Send every spooled event of a recipe. Raises UserError if the server does not take them."""
    from rungwise.core import tracking
    from rungwise.pipeline.workflow import load_recipe, root_folder, spool_folder, tracking_uri

    recipe = load_recipe(options.config, options.overrides)
    root = root_folder(recipe.root)
    uri = tracking_uri(recipe, root)
    shown = tracking.without_password(uri)
    try:
        sent, left = tracking.sync(uri, recipe.tracking.experiment, spool_folder(root))
    except ConnectionError as error:
        raise UserError(f"{shown} does not take the events: {error}") from error
    Console().print(f"{sent} spool files sent to {shown}, {left} left")
    return OK
