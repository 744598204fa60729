"""`rungwise sync CONFIG`: send a tracking server what it missed while it was away."""

from __future__ import annotations

import argparse

from rungwise.commands.arguments import Commands, add_overrides, add_verb


def add(commands: Commands) -> None:
    parser = add_verb(
        commands, "sync", sync, "send what a tracking server missed while it was away"
    )
    parser.add_argument("config", metavar="CONFIG")
    add_overrides(parser)


def sync(options: argparse.Namespace) -> int:
    """Send every spooled event of a recipe. Raises UserError if the server does not take them."""
    from rich.console import Console

    from rungwise.core import tracking
    from rungwise.core.errors import UserError
    from rungwise.core.exit_codes import OK
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
