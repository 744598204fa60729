"""`rungwise sync CONFIG`: send MLflow what it missed while it was down."""

import argparse

from rungwise.commands.arguments import Commands, add_recipe, add_verb
from rungwise.core.console import plain_console
from rungwise.core.errors import UserError


def add(commands: Commands) -> None:
    parser = add_verb(commands, sync, "send MLflow what it missed while it was down")
    add_recipe(parser)
    parser.add_argument("--instead-of", metavar="URI", help="former address of the recipe's server")


def sync(options: argparse.Namespace) -> None:
    """Send every event spooled below the recipe's root to its server. Raises UserError if a server
    does not accept them."""
    from rungwise.core.plural import counted
    from rungwise.core.tracking import tracker
    from rungwise.pipeline.places import root_folder, spool_folder, tracking_uri
    from rungwise.pipeline.workflow import load_recipe

    recipe = load_recipe(options.config, options.overrides)
    root = root_folder(recipe.root)
    uri = tracking_uri(recipe, root)
    spool = spool_folder(root)
    try:
        synced = tracker.sync(uri, spool, options.instead_of)
    except ConnectionError as error:
        hint = ""
        if "http" in str(error):
            hint = (
                ". If the server needs a password, give it in tracking.uri=https://USER:PASSWORD"
                "@HOST, or in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        raise UserError(f"{error}; they stay in {spool}{hint}") from error
    say = plain_console().print
    for server, events in synced.sent.items():
        say(f"{counted(events, 'event')} sent to {server}")
    if synced.live:
        say(f"{counted(synced.live, 'event')} of unfinished runs, which will send them")
    if not synced.sent and not synced.live:
        say(f"nothing to send in {spool}; a job's events are on the machine that ran its driver")
