"""`rungwise export|promote MODEL`: write a model for other software, or give it an alias.

MODEL is a recipe (its finished pretrain stage), the folder of a pretrain or evaluate artifact,
local or in an object store, or a registered model.
"""

import argparse
import shlex

from rungwise.commands.arguments import Commands, add_overrides, add_registry, add_verb
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import plain_console


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
    text = "give a version the alias champion if it passes the checks"
    parser = add_verb(commands, promote, text)
    parser.epilog = "checks: unchanged files, a score that is no worse"
    parser.add_argument("model", metavar="MODEL", help="models:/NAME/VERSION")
    parser.add_argument("--to", default="champion", metavar="ALIAS", help="give another alias")
    add_registry(parser)


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


def promote(options: argparse.Namespace) -> None:
    """Print which version has the alias. Raises UserError that lists the failed checks; then
    nothing has changed."""
    from rungwise.core.tracking.sender import store_client
    from rungwise.pipeline import loading
    from rungwise.serving import registry
    from rungwise.serving.card import serve_command

    say = plain_console().print
    name, number = loading.name_and_version(options.model)
    if not options.model.startswith(loading.REGISTERED) or not number.isdecimal():
        raise UserError(
            f"{options.model}: expected models:/NAME/VERSION, such as models:/rungwise-sst-2/3"
        )
    alias = options.to
    with store_client(loading.registry_uri(options.root)) as client:
        model = loading.find_built(options.model, options.root)
        faults = registry.find_faults(model, loading.download_served(options.model, options.root))
        tags = client.get_model_version(name, number).tags
        if holder := registry.find_better_holder(client, name, alias, tags):
            faults.append(
                f"it scores {tags[registry.SCORE]} in validation, and version {holder.version}, "
                f"which has the alias, {holder.tags[registry.SCORE]}"
            )
        if faults:
            title = f"{options.model} does not become {alias}, and nothing has changed:"
            raise UserError("\n".join([title, *faults]))
        client.set_registered_model_alias(name, alias, number)
        say(f"{alias} is {options.model}; over HTTP: {serve_command(f'models:/{name}@{alias}')}")
