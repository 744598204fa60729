"""`rungwise neighbours WORD`: print the words nearest to a word.

This works for any pretrained model with a vector per token. A word that the tokenizer splits gets
the mean of its pieces' vectors.
"""

import argparse

from rungwise.commands.arguments import Commands, add_overrides, add_verb, positive_integer


def add(commands: Commands) -> None:
    help_text = "print the words nearest to a word, by any rung's vectors"
    parser = add_verb(commands, neighbours, help_text)
    parser.add_argument("word", metavar="WORD")
    parser.add_argument(
        "--pretrain",
        default="artifacts/pretrain",
        metavar="MODEL",
        help="a recipe, artifacts/pretrain (the newest), or a folder in it, local or s3://",
    )
    parser.add_argument("--count", type=positive_integer, default=10, metavar="N", help="how many")
    add_overrides(parser)


def neighbours(options: argparse.Namespace) -> None:
    """Print one word and its cosine similarity per line, nearest first."""
    from rungwise import tokenizer as tokenizers
    from rungwise.core.console import plain_console
    from rungwise.evaluation.page.neighbours import Neighbourhood
    from rungwise.pipeline.loading import find_pretrain
    from rungwise.pretraining.pretrained import find_tokenizer, load_word_vectors

    pretrain = find_pretrain(options.pretrain, options.overrides)
    tokenizer = tokenizers.load_reader(find_tokenizer(pretrain).folder)
    neighbourhood = Neighbourhood(load_word_vectors(pretrain), tokenizer)
    neighbours = neighbourhood.nearest(options.word, options.count)
    if len(pieces := neighbourhood.pieces(options.word)) > 1:
        plain_console(stderr=True).print(
            f"{options.word!r} is unknown: the vocabulary has no such word; these are the "
            f"neighbours of the mean of its pieces {' '.join(pieces)}"
        )
    width = max(len(each.word) for each in neighbours.nearest)
    for each in neighbours.nearest:
        print(f"{each.word:<{width}}  {each.cosine:.3f}")  # noqa: T201
