"""`rungwise export MODEL --to FOLDER`: a pretrained model as Hugging Face transformers loads it.

MODEL is a recipe, whose finished pretrain stage is meant, or the folder of a pretrain artifact, on
this machine or an object store. The other way round there is no command, because no stage starts
from weights of others: `rungwise.hugging_face.load` gives them to Python code.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from rungwise import tokenizer as tokenizers
from rungwise.core import artifact as artifacts
from rungwise.core.artifact import Artifact, find_input
from rungwise.core.config import load
from rungwise.core.errors import ConfigError, UserError
from rungwise.core.exit_codes import OK
from rungwise.core.stage import plan
from rungwise.core.storage import Folder
from rungwise.pipeline.recipe import Recipe, pretrain_stages
from rungwise.pipeline.workflow import root_folder
from rungwise.pretraining.pretrained import config_of, load_module
from rungwise.serving.hugging_face import export
from rungwise.serving.hugging_face.names import AUTO_CLASSES, CONFIG, FILES

_RECIPES = (".yaml", ".yml")


def export_command(model: str, overrides: Sequence[str], to: str) -> int:
    """Write the four files to `to`, a folder or s3:// URL without a model in it, and say how they
    are loaded."""
    console = Console(soft_wrap=True)
    pretrain = find_pretrain(model, overrides)
    folder = Folder.at(to)
    auto = write(pretrain, folder)
    console.print(f"{pretrain.folder.uri}", highlight=False, markup=False)
    for name in FILES:
        console.print(f"  {folder.path(name)}  {folder.size(name):,} bytes", highlight=False)
    console.print(
        f"load it with {auto}.from_pretrained and AutoTokenizer.from_pretrained of transformers",
        highlight=False,
    )
    return OK


def find_pretrain(model: str, overrides: Sequence[str] = ()) -> Artifact:
    """The finished pretrain artifact of a recipe with `overrides`, or in a folder, or the newest
    one directly below a folder.

    Raises UserError if there is none.
    """
    if model.endswith(_RECIPES):
        return _of_recipe(model, overrides)
    if overrides:
        raise UserError(
            f"{shlex.join(overrides)}: keys can be changed of a recipe, and {model} is a folder; "
            "leave them out, or give the recipe"
        )
    found = artifacts.at_or_below(Folder.at(model))
    if found is None:
        raise UserError(
            f"{model}: no artifact here; expected a recipe (.yaml), the folder of a finished "
            "pretraining, such as artifacts/pretrain/NAME-FINGERPRINT, or artifacts/pretrain "
            "for the newest"
        )
    if found.stage != "pretrain":
        raise UserError(
            f"{found.folder.uri} holds a {found.stage} artifact, expected that of pretrain"
        )
    return found


def write(pretrain: Artifact, to: Folder) -> str:
    """Export the model of an artifact and its tokenizer; the auto class that has its heads.

    Raises UserError if there is a model in `to` already, ConfigError if transformers has no such
    model, DataError if what the model was made of is gone.
    """
    there = [name for name in FILES if to.exists(name)]
    if there:
        raise UserError(
            f"--to {to.uri}: holds {', '.join(there)} already; give another folder, or empty it"
        )
    tokenizer = find_input(find_input(pretrain, "instances"), "tokenizer")
    trained = load_module(pretrain)
    with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
        architecture = export(
            trained,
            config_of(pretrain).model,
            tokenizer.folder.local(tokenizers.FILE),
            Path(scratch),
        )
        # A folder with a config is taken for a model: it comes last.
        for name in sorted(FILES, key=lambda name: name == CONFIG):
            to.copy_in(Path(scratch) / name, name)
    return AUTO_CLASSES[architecture]


def _of_recipe(path: str, overrides: Sequence[str]) -> Artifact:
    recipe = load(Recipe, path, overrides)
    root = root_folder(recipe.root)
    found = plan(list(pretrain_stages(recipe).values()), root, recipe.name)[-1]
    if found.artifact is None:
        command = shlex.join(["rungwise", "run", "pretrain", path, *overrides])
        raise ConfigError(
            f"{path}: its pretrain stage is not finished below {root.uri} ({found.reason}); "
            f"build it first: {command}"
        )
    return found.artifact
