"""`rungwise export MODEL --to FOLDER`: write a pretrained model as transformers loads it.

MODEL is a recipe, whose finished pretrain stage is meant, or the folder of a pretrain artifact, on
this machine or an object store. The other way round there is no command, because no stage starts
from weights of others: `rungwise.serving.hugging_face.load` gives them to Python code.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rungwise.commands.arguments import Commands, add_overrides, add_verb
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import OK

if TYPE_CHECKING:
    from rungwise.core.artifact import Artifact
    from rungwise.core.storage import Folder


def add(commands: Commands) -> None:
    help_text = "write a pretrained model in the format of Hugging Face transformers"
    parser = add_verb(commands, "export", export, help_text)
    parser.add_argument(
        "model", metavar="MODEL", help="a recipe, or artifacts/pretrain, or one in it; s3:// too"
    )
    parser.add_argument("--to", required=True, metavar="FOLDER", help="where to; s3:// too")
    add_overrides(parser)


def export(options: argparse.Namespace) -> int:
    """Write the four files to a folder or s3:// URL, and say how they are loaded."""
    from rungwise.core.storage import Folder
    from rungwise.pipeline.loading import find_pretrain
    from rungwise.serving.hugging_face.names import FILES

    console = Console(soft_wrap=True)
    pretrain = find_pretrain(options.model, options.overrides)
    folder = Folder.at(options.to)
    auto = write(pretrain, folder)
    console.print(f"{pretrain.folder.uri}", highlight=False, markup=False)
    for name in FILES:
        console.print(f"  {folder.path(name)}  {folder.size(name):,} bytes", highlight=False)
    console.print(
        f"load it with {auto}.from_pretrained and AutoTokenizer.from_pretrained of transformers",
        highlight=False,
    )
    return OK


def write(pretrain: Artifact, to: Folder) -> str:
    """Export the model of an artifact and its tokenizer; the auto class that has its heads.

    Raises UserError if there is a model in `to` already, ConfigError if transformers has no such
    model, DataError if what the model was made of is gone.
    """
    from rungwise import tokenizer as tokenizers
    from rungwise.pretraining.pretrained import config_of, load_module, tokenizer_of
    from rungwise.serving import hugging_face
    from rungwise.serving.hugging_face.names import AUTO_CLASSES, CONFIG, FILES

    there = [name for name in FILES if to.exists(name)]
    if there:
        raise UserError(
            f"--to {to.uri}: holds {', '.join(there)} already; give another folder, or empty it"
        )
    tokenizer = tokenizer_of(pretrain)
    trained = load_module(pretrain)
    with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
        architecture = hugging_face.export(
            trained,
            config_of(pretrain).model,
            tokenizer.folder.local(tokenizers.FILE),
            Path(scratch),
        )
        # A folder with a config is taken for a model: it comes last.
        for name in sorted(FILES, key=lambda name: name == CONFIG):
            to.copy_in(Path(scratch) / name, name)
    return AUTO_CLASSES[architecture]
