"""`rungwise try MODEL [TEXT...]`: type a text and see what the model makes of it.

With TEXT it prints one line and ends, for scripts; without, it asks until the input ends.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rungwise.commands.arguments import Commands, add_served_model, add_verb, positive_integer
from rungwise.core.configuration.secrecy import redact
from rungwise.core.errors import DataError, UserError

if TYPE_CHECKING:
    from rungwise.serving.predictor import Trial


def add(commands: Commands) -> None:
    help_text = "type a text and see a model fill its gap, continue it or label it"
    parser = add_verb(commands, try_model, help_text, "try")
    add_served_model(parser)
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="default: ask for it")
    parser.add_argument(
        "--nearest",
        type=positive_integer,
        metavar="N",
        help="answer a word with the N words nearest to it, by the vectors of any pretrained "
        "model's tokens",
    )


def try_model(options: argparse.Namespace) -> None:
    """Answer the texts of the command line, or ask for texts. Raises UserError for a wrong number
    of texts."""
    from rungwise.pipeline.loading import find_served
    from rungwise.serving.predictor import load_predictor, make_trial, try_nearest

    model = load_predictor(find_served(options.model, options.root))
    trial = try_nearest(model, options.nearest) if options.nearest else make_trial(model)
    if options.texts:
        if len(options.texts) < len(trial.fields):
            raise UserError(
                f"expected {len(trial.fields)} texts ({', '.join(trial.fields)}), found "
                f"{len(options.texts)}; this model answers {trial.hint}"
            )
        print(trial.answer(*options.texts))  # noqa: T201
    else:
        _ask(trial)


def _ask(trial: Trial) -> None:
    """Ask for texts and answer them until the input ends; a mistake is said, and asked again."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print(f"{trial.hint}   (ends with Ctrl-D)")  # noqa: T201
    try:
        while True:
            texts = [input(f"{name}: " if is_terminal else "") for name in trial.fields]
            try:
                print(trial.answer(*texts), flush=True)  # noqa: T201
            except DataError as error:
                print(redact(str(error)), file=sys.stderr, flush=True)  # noqa: T201
    except EOFError:
        if is_terminal:
            print()  # noqa: T201
