"""Read a recipe, plan and run its workflow, and find its folders.

A workflow is a function `stages(recipe) -> list[Stage]`, or a Python file with that function.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rungwise.cluster.environment import set_environment
from rungwise.cluster.ray_start import ROOT_VARIABLE
from rungwise.core.configuration.yaml_file import load
from rungwise.core.errors import ConfigError, UserError, as_overrides
from rungwise.core.package_data import data_parent
from rungwise.core.stages import stage
from rungwise.core.stages.stage import Planned, Stage
from rungwise.core.storage.folder import Folder, local_path
from rungwise.core.storage.object_store import is_remote
from rungwise.core.tracking.store import default_uri
from rungwise.core.tracking.tracker import Tracker
from rungwise.pipeline import runner
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.runner import Outcome
from rungwise.pipeline.variants import resolve_variants

Workflow = str | Path | Callable[[Recipe], list[Stage]]
# Where to look for workflows/: in this folder, then in the package of a wheel or the checkout.
_PLACES = (Path(), data_parent("workflows"))


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe's YAML file and apply `key.path=value` overrides.

    A name without a suffix, such as `bert-mini`, is a file in workflows/configs. Keys dropped
    because an override changed their `kind` are named on standard error. Raises ConfigError naming
    the override or the file, what was expected and the nearest known key.
    """
    note = Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print
    file = recipe_file(path)
    try:
        return load(Recipe, file, overrides, note)
    except ConfigError as error:

        def attempt(changes: dict[str, Any]) -> None:
            recipe = load(Recipe, file, [*overrides, *as_overrides(changes)])
            if recipe.model and recipe.pretrain:
                resolve_variants(recipe)

        raise error.completed(attempt) from None


def recipe_file(name: str | Path) -> Path:
    """Find a recipe's file; a name without a suffix is one in workflows/configs. Raises ConfigError
    naming the nearest recipes if there is none."""
    file = _place("workflows/configs", name, ".yaml")
    if file.exists():
        return file
    places = (file.parent, Path(), *(place / "workflows/configs" for place in _PLACES))
    there = dict.fromkeys(each for place in places for each in place.glob("*.yaml"))
    short = ("workflows", "configs")
    stems = {each.stem: each.stem if each.parts[-3:-1] == short else str(each) for each in there}
    near = difflib.get_close_matches(file.stem, stems, n=2, cutoff=0.6)
    guess = f"; did you mean {' or '.join(stems[stem] for stem in near)}?" if near else ""
    raise ConfigError(f"there is no recipe {file}{guess}")


def make_stages(workflow: Workflow, recipe: Recipe) -> list[Stage]:
    """Make the stages of a workflow, inputs first. Raises UserError if the recipe does not fit."""
    make = workflow if callable(workflow) else _read(workflow)
    try:
        return make(recipe)
    except ConfigError as error:
        raise error.completed(
            lambda changes: make(recipe.with_changes(changes, recipe.name))
        ) from error


def plan(workflow: Workflow, recipe: Recipe) -> list[Planned]:
    """Say for each stage whether it is done below the recipe's root, or why not; build nothing."""
    return stage.plan(make_stages(workflow, recipe), root_folder(recipe.root), recipe.name)


def run(workflow: Workflow, recipe: Recipe, console: Console | None = None) -> Outcome:
    """Build what is missing below the recipe's root, show it on `console`, track it in MLflow.

    Raises UserError if the user can fix the problem, StageFailed if a stage raises anything else.
    """
    set_environment()
    root = root_folder(recipe.root)
    uri = tracking_uri(recipe, root)

    def tracker(driver: str) -> Tracker:
        return Tracker(uri, recipe.tracking.experiment, spool_folder(root), driver)

    stages = make_stages(workflow, recipe)
    record = recipe.to_record(root.uri)
    console = console or Console()
    return runner.run(stages, root, recipe.name, recipe.compute, tracker, console, record)


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


def places(config: str | None, overrides: Sequence[str]) -> tuple[Folder, str]:
    """The root and tracking URI of a recipe file, or the defaults if `config` is None."""
    if config is not None:
        recipe = load_recipe(config, overrides)
        root = root_folder(recipe.root)
        return root, tracking_uri(recipe, root)
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


def _place(folder: str, name: str | Path, suffix: str) -> Path:
    """The file with a short name, in this folder, else in the package or its checkout."""
    if Path(name).suffix:
        return Path(name)
    files = [place / folder / f"{name}{suffix}" for place in _PLACES]
    return next((file for file in files if file.is_file()), files[0])


def _read(workflow: str | Path) -> Callable[[Recipe], list[Stage]]:
    path = _place("workflows", workflow, ".py")
    if not path.is_file():
        there = ", ".join(
            sorted({file.stem for place in _PLACES for file in place.glob("workflows/*.py")})
        )
        raise ConfigError(
            f"there is no workflow {path}; found: {there or 'no workflows/*.py in this folder'}"
        )
    if path.suffix != ".py":
        raise ConfigError(f"{path} is no workflow: expected a Python file, such as pretrain.py")
    spec = importlib.util.spec_from_file_location(f"workflow_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(_import_error(error, path)) from error
    if not callable(getattr(module, "stages", None)):
        raise ConfigError(f"{path} is no workflow: it has no function stages(recipe)")
    return module.stages


def _import_error(error: Exception, path: Path) -> str:
    """FILE:LINE and the message: of bad syntax, else of the last line of the workflow that ran."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path.absolute()]
    place = f"{path}:{lines[-1]}" if lines else str(path)
    return f"{place}: {type(error).__name__}: {error}"
