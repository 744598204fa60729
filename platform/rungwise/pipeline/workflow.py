"""Load a workflow, a Python file with `stages(recipe) -> list[Stage]`, and find its folders."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rungwise.cluster.ray_start import ROOT_VARIABLE
from rungwise.core.config import load
from rungwise.core.errors import ConfigError
from rungwise.core.stage import Stage
from rungwise.core.storage import Folder, is_remote
from rungwise.core.tracking import default_uri
from rungwise.pipeline.recipe import Recipe


def prepare(
    workflow: str, config: str, overrides: Sequence[str]
) -> tuple[Recipe, list[Stage], Folder]:
    """The recipe, its stages, and the root: everything that is checked before anything runs."""
    make_stages = _load_workflow(workflow)
    recipe = load(Recipe, config, overrides)
    return recipe, make_stages(recipe), root_folder(recipe.root)


def root_folder(root: str) -> Folder:
    """Where artifacts are. A Ray job runs in a temporary copy of the working folder, so there a
    relative root lies below the place that the cluster names (RUNGWISE_ROOT, a folder or bucket),
    or else in the home of the user who runs the cluster."""
    path = Path(root).expanduser()
    if is_remote(root) or path.is_absolute() or "working_dir_files" not in Path.cwd().parts:
        return Folder.at(root)
    if base := os.environ.get(ROOT_VARIABLE):
        return Folder.at(base) / root
    return Folder.at(Path.home() / "rungwise" / path)


def tracking_uri(recipe: Recipe, root: Folder) -> str:
    """The recipe's own, else MLFLOW_TRACKING_URI, else SQLite below the root."""
    return recipe.tracking.uri or default_uri(root, os.environ.get("MLFLOW_TRACKING_URI"))


def spool_folder(root: Folder) -> Path:
    """Where events wait for the tracking server: on this machine, whatever the root."""
    if root.remote:
        return Path.home() / ".cache" / "rungwise" / "tracking"
    return Path(root.uri) / "tracking"


def _load_workflow(workflow: str) -> Callable[[Recipe], list[Stage]]:
    path = Path(workflow)
    if not path.suffix:
        path = Path("workflows") / f"{workflow}.py"
    if not path.is_file():
        there = ", ".join(sorted(str(other) for other in Path("workflows").glob("*.py")))
        raise ConfigError(
            f"there is no workflow {path}; found: {there or 'no workflows/*.py in this folder'}"
        )
    spec = importlib.util.spec_from_file_location(f"workflow_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "stages"):
        raise ConfigError(f"{path} is no workflow: it has no function stages(recipe)")
    return module.stages
