"""Where recipes, workflows, artifacts and the tracking store are. Apart from workflow.py, since
`rungwise status` and `doctor` need no recipe, whose blocks import PyTorch."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from rungwise.cluster.environment import ROOT_VARIABLE
from rungwise.core.errors import ConfigError
from rungwise.core.storage.folder import Folder, is_remote, local_path
from rungwise.core.tracking.store import default_uri

if TYPE_CHECKING:
    from rungwise.pipeline.recipe import Recipe

PACKAGE = Path(__file__).resolve().parents[1]


def data_parent(name: str) -> Path:
    """The folder that holds the folder `name`: the package of a wheel, else the checkout."""
    return PACKAGE if (PACKAGE / name).is_dir() else PACKAGE.parents[1]


# Where to look for workflows/: in this folder, then in the package of a wheel or the checkout.
PLACES = (Path(), data_parent("workflows"))

_ABOUT_CHARACTERS = 90
_TIME = re.compile(
    r"(?:(?:some|about|half|a quarter of|three quarters of) )*(?:\d+|an?|two|three) "
    r"(?:second|minute|hour|day)s?\b|minutes|hours"
)
_BLOCK = re.compile(r"^(corpus|tokenizer|pretrain)\s*:", re.MULTILINE)  # of any recipe


def recipe_file(name: str | Path) -> Path:
    """Find a recipe's file; a name without a suffix is one in workflows/configs. Raises ConfigError
    naming the nearest recipes if there is none."""
    file = find_place("workflows/configs", name, ".yaml")
    if file.exists():
        return file
    recipes = list_recipes(file.parent)
    stems = {Path(name).stem: name for name in recipes}
    near = [stems[stem] for stem in difflib.get_close_matches(file.stem, stems, n=2, cutoff=0.6)]
    where = "" if file.is_absolute() else f" in {Path.cwd()}"
    if near:
        raise ConfigError(f"there is no recipe {file}{where}; did you mean {' or '.join(near)}?")
    lines = "".join(f"\n  {describe_recipe(name, path)}" for name, path in recipes.items())
    raise ConfigError(f"there is no recipe {file}{where}; these are there:{lines}")


def list_recipes(folder: Path = PLACES[0]) -> dict[str, Path]:
    """Return the files of recipes, by the names to type: of a folder, and of workflows/configs. A
    folder may hold YAML of other programs too."""
    places = (folder, Path(), *(place / "workflows/configs" for place in PLACES))
    files = dict.fromkeys(file for place in places for file in sorted(place.glob("*.yaml")))
    recipes = [file for file in files if _BLOCK.search(file.read_text(errors="replace"))]
    short = ("workflows", "configs")
    return {file.stem if file.parts[-3:-1] == short else str(file): file for file in recipes}


def describe_recipe(name: str, path: Path) -> str:
    """Return a line: the name of a recipe, how long it takes where its first lines say so, and
    what it is about."""
    head = itertools.takewhile(
        lambda line: line.startswith("#"), path.read_text(errors="replace").splitlines()
    )
    text = " ".join(line.strip("# ") for line in head)
    time = _TIME.search(text)
    return f"{name:<27}{time[0] if time else '-':<27}{textwrap.shorten(text, _ABOUT_CHARACTERS)}"


def list_workflows() -> list[str]:
    """Return the names of the workflows."""
    files = {file.stem for place in PLACES for file in place.glob("workflows/*.py")}
    return sorted(files)


def root_folder(root: str) -> Folder:
    """Find the folder of artifacts. A Ray job runs in a temporary copy of the working folder, so a
    relative root is placed below the folder or bucket that the cluster gives (RUNGWISE_ROOT), or
    else in the home directory of the user who runs the cluster."""
    path = local_path(root)
    if is_remote(root) or path.is_absolute() or "working_dir_files" not in Path.cwd().parts:
        return Folder.at(root)
    if base := os.environ.get(ROOT_VARIABLE):
        return Folder.at(base) / root
    return Folder.at(Path.home() / "rungwise" / path)


def default_places() -> tuple[Folder, str]:
    """The root and tracking URI where no recipe names others."""
    root = Folder.at("artifacts")
    return root, default_uri(root, os.environ.get("MLFLOW_TRACKING_URI"))


def tracking_uri(recipe: Recipe, root: Folder) -> str:
    """The recipe's own URI, else MLFLOW_TRACKING_URI, else SQLite below the root."""
    return recipe.tracking.uri or default_uri(root, os.environ.get("MLFLOW_TRACKING_URI"))


def spool_folder(root: Folder) -> Path:
    """The local folder for events that wait for the tracking server."""
    if root.remote:
        return Path.home() / ".cache" / "rungwise" / "tracking"
    return Path(root.uri) / "tracking"


def find_place(folder: str, name: str | Path, suffix: str) -> Path:
    """The file with a short name, in this folder, else in the package or its checkout."""
    if Path(name).suffix:
        return Path(name)
    files = [place / folder / f"{name}{suffix}" for place in PLACES]
    return next((file for file in files if file.is_file()), files[0])
