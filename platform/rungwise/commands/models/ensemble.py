"""`rungwise ensemble EVALUATE`: score an evaluation's seeds as an ensemble, without training."""

import argparse

from rungwise.commands.arguments import Commands, add_verb


def add(commands: Commands) -> None:
    help_text = "score an evaluation's seeds as an ensemble, without training"
    parser = add_verb(commands, ensemble, help_text)
    parser.add_argument(
        "evaluate", metavar="EVALUATE", help="artifacts/evaluate (the newest), or a folder in it"
    )


def ensemble(options: argparse.Namespace) -> None:
    """Print a line per variant and way to combine seeds. Raises UserError for other artifacts."""
    from rungwise.core.errors import UserError
    from rungwise.core.stages.artifact import find_input
    from rungwise.evaluation.comparison.ensemble import score_ensembles
    from rungwise.pipeline.loading import find_built

    evaluate = find_built(options.evaluate, "artifacts")
    if evaluate.stage != "evaluate":
        raise UserError(f"{evaluate.folder.uri} holds a {evaluate.stage} artifact, not evaluate")
    for variant, how, score, gain in score_ensembles(evaluate, find_input(evaluate, "task")):
        interval = f"{gain.difference:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]"
        print(f"{variant}, {how}: {score:.4f}, {interval} over one seed")  # noqa: T201
