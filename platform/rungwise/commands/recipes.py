"""`rungwise recipes`: list the recipes that there are."""

import argparse

from rungwise.commands.arguments import Commands, add_verb


def add(commands: Commands) -> None:
    add_verb(commands, recipes, "list the recipes, how long they take and what they are about")


def recipes(options: argparse.Namespace) -> None:
    """Print a line for each recipe, of this folder and of the package."""
    from rungwise.core.console import plain_console
    from rungwise.pipeline.places import describe_recipe, list_recipes

    for name, path in list_recipes().items():
        plain_console().print(describe_recipe(name, path))
