"""`rungwise export MODEL --to FOLDER`: write a model in a format that other software reads.

MODEL is a recipe (its finished pretrain stage), the folder of a pretrain or evaluate artifact,
local or in an object store, or a registered model. To import, set `pretrain.initial`.
"""

import argparse
import shlex

from rungwise.commands.arguments import Commands, add_overrides, add_registry, add_verb
from rungwise.core.console import plain_console
from rungwise.core.errors import UserError


def add(commands: Commands) -> None:
    parser = add_verb(commands, export, "export for transformers or as ONNX, an n-gram as ARPA")
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a recipe, artifacts/pretrain or artifacts/evaluate (the newest), a folder in one of "
        "them (local or s3://), or models:/NAME@ALIAS",
    )
    parser.add_argument("--to", required=True, metavar="FOLDER", help="a folder, local or s3://")
    parser.add_argument(
        "--format",
        choices=("onnx", "vectors"),
        help="vectors: one per token, in word2vec's formats; the default for word vector models",
    )
    add_registry(parser)
    add_overrides(parser)


def export(options: argparse.Namespace) -> None:
    """Write the files to a folder or s3:// URL, and print how to load them."""
    from rungwise.core.stages.artifact import Artifact
    from rungwise.core.storage.folder import Folder
    from rungwise.pipeline.loading import REGISTERED, download_served, find_model
    from rungwise.serving.card import NAME as CARD
    from rungwise.serving.export import write_onnx, write_pretrained, write_task_model
    from rungwise.serving.hugging_face.writing import HUB_CARD

    say, folder = plain_console().print, Folder.at(options.to)
    model = find_model(options.model, options.root, options.overrides)
    if options.format == "onnx":
        result = write_onnx(model, folder)
    elif isinstance(model, Artifact):
        say(model.folder.uri)
        result = write_pretrained(model, folder, vectors=options.format == "vectors")
    elif options.format is None:
        card = ""
        if options.model.startswith(REGISTERED):
            card = download_served(options.model, options.root).read_bytes(CARD).decode("utf-8")
        result = write_task_model(model, folder, card)
    else:
        raise UserError(f"{options.model} is fine-tuned; --format vectors takes a pretrained model")
    for name in result.files:
        say(f"  {folder.path(name)}  {folder.size(name):,} bytes")
    say(f"load it with {result.loader}")
    if HUB_CARD in result.files and not folder.remote:
        say(f"publish it with hf upload USER/NAME {shlex.quote(options.to)}")
