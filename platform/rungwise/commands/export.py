"""`rungwise export MODEL --to FOLDER`: write a pretrained model as transformers loads it, or its
vectors of tokens as word2vec.c writes them.

MODEL is a recipe, whose finished pretrain stage is meant, or the folder of a pretrain artifact, on
this machine or an object store. The other way round there is no command, because no stage starts
from weights of others: `rungwise.serving.hugging_face.load` gives them to Python code.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
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
    help_text = "write a pretrained model for Hugging Face transformers, or vectors of words"
    parser = add_verb(commands, "export", export, help_text)
    parser.add_argument(
        "model", metavar="MODEL", help="a recipe, or artifacts/pretrain, or one in it; s3:// too"
    )
    parser.add_argument("--to", required=True, metavar="FOLDER", help="where to; s3:// too")
    parser.add_argument(
        "--vectors",
        action="store_true",
        help="one vector a token, in the formats of word2vec; always so for what is nothing else",
    )
    add_overrides(parser)


def export(options: argparse.Namespace) -> int:
    """Write the files to a folder or s3:// URL, and say how they are loaded."""
    from rungwise.core.storage import Folder
    from rungwise.pipeline.loading import find_pretrain
    from rungwise.pretraining.initial import config_of
    from rungwise.serving import word_vectors
    from rungwise.serving.hugging_face.names import FILES

    console = Console(soft_wrap=True)
    pretrain = find_pretrain(options.model, options.overrides)
    folder, files = Folder.at(options.to), FILES
    if options.vectors or not config_of(pretrain).objective.predicts_text:
        write_vectors(pretrain, folder)
        files = word_vectors.FILES
        how = "KeyedVectors.load_word2vec_format of gensim, binary=True for the second"
    else:
        auto = write(pretrain, folder)
        how = f"{auto}.from_pretrained and AutoTokenizer.from_pretrained of transformers"
    console.print(f"{pretrain.folder.uri}", highlight=False, markup=False)
    for name in files:
        console.print(f"  {folder.path(name)}  {folder.size(name):,} bytes", highlight=False)
    console.print(f"load it with {how}", highlight=False)
    return OK


def write_vectors(pretrain: Artifact, to: Folder) -> None:
    """Export the vectors of an artifact.

    Raises UserError if there are some in `to` already, ConfigError if the model has none.
    """
    from rungwise import tokenizer as tokenizers
    from rungwise.pretraining.pretrained import tokenizer_of, word_vectors
    from rungwise.serving import word_vectors as formats

    _refuse_old(to, formats.FILES)
    tokenizer = tokenizers.load(tokenizer_of(pretrain).folder)
    with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
        formats.export(word_vectors(pretrain), tokenizer, Path(scratch))
        for name in formats.FILES:
            to.copy_in(Path(scratch) / name, name)


def write(pretrain: Artifact, to: Folder) -> str:
    """Export the model of an artifact and its tokenizer; the auto class that has its heads.

    Raises UserError if there is a model in `to` already, ConfigError if transformers has no such
    model, DataError if what the model was made of is gone.
    """
    from rungwise import tokenizer as tokenizers
    from rungwise.pretraining.pretrained import config_of, load_module, tokenizer_of
    from rungwise.serving import hugging_face
    from rungwise.serving.hugging_face.names import AUTO_CLASSES, CONFIG, FILES

    _refuse_old(to, FILES)
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


def _refuse_old(to: Folder, files: Sequence[str]) -> None:
    if there := [name for name in files if to.exists(name)]:
        raise UserError(
            f"--to {to.uri}: holds {', '.join(there)} already; give another folder, or empty it"
        )
