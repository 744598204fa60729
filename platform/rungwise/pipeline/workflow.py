"""Read a recipe, plan and run its workflow: a function `stages(recipe) -> list[Stage]`, or a Python
file with that function."""

from __future__ import annotations

import functools
import importlib.util
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rungwise.cluster.environment import set_environment
from rungwise.core.configuration.overrides import load
from rungwise.core.errors import ConfigError, UserError
from rungwise.core.stages.stage import Planned, Stage
from rungwise.pipeline.estimate import Rates, RunForecast
from rungwise.pipeline.ladder import grow_past_gaps
from rungwise.pipeline.places import (
    find_place,
    list_workflows,
    recipe_file,
    root_folder,
    spool_folder,
    tracking_uri,
)
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.search import grow_stages
from rungwise.pipeline.stages import Grow, Growth

if TYPE_CHECKING:
    from rungwise.pipeline.runner import Outcome

Workflow = str | Path | Callable[[Recipe], list[Stage]]


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe's YAML file and apply `key.path=value` overrides. A name without a suffix, such
    as `bert-mini`, is a file in workflows/configs. Keys dropped because an override changed their
    `kind` are named on standard error. Raises ConfigError naming the override or the file, what was
    expected and the nearest known key."""
    note = Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print
    return load(Recipe, recipe_file(path), overrides, note)


def make_stages(workflow: Workflow, recipe: Recipe) -> list[Stage]:
    """Make the stages of a workflow that are known before anything is built, inputs first. Raises
    UserError if the recipe does not fit."""
    stages = _make(workflow, recipe)
    return list(stages({}, {}).stages) if callable(stages) else stages


def _make(workflow: Workflow, recipe: Recipe) -> list[Stage] | Grow:
    """The stages of a workflow, or how they grow where searches decide about the later ones."""
    make = workflow if callable(workflow) else _read(workflow)
    stages = make(recipe)
    if not stages:
        raise ConfigError(
            f"the workflow {workflow}: expected stages(recipe) to return some, found none"
        )
    return grow_stages(recipe, make, stages) or grow_past_gaps(recipe, make, stages) or stages


def plan(workflow: Workflow, recipe: Recipe) -> list[Planned]:
    """Say for each stage whether it is done below the recipe's root, or why not; build nothing."""
    return Growth(_make(workflow, recipe), root_folder(recipe.root), recipe.name).rows


def estimate(workflow: Workflow, recipe: Recipe) -> RunForecast:
    """Forecast what a run of a recipe takes on this machine. Raises as `make_stages` does."""
    return RunForecast(plan(workflow, recipe), recipe.compute, Rates.of(root_folder(recipe.root)))


def run(workflow: Workflow, recipe: Recipe, console: Console | None = None) -> Outcome:
    """Build what is missing below the recipe's root, show it on `console`, track it in MLflow.
    Raises UserError if the user can fix the problem, StageFailed if a stage raises anything else.
    """
    from rungwise.core.tracking.tracker import Tracker
    from rungwise.pipeline import runner

    set_environment()
    root = root_folder(recipe.root)
    uri = tracking_uri(recipe, root)

    tracker = functools.partial(Tracker, uri, recipe.tracking.experiment, spool_folder(root))
    stages = _make(workflow, recipe)
    record = recipe.to_record(root.uri)
    console = console or Console()
    return runner.run(stages, root, recipe.name, recipe.compute, tracker, console, record)


def _read(workflow: str | Path) -> Callable[[Recipe], list[Stage]]:
    path = find_place("workflows", workflow, ".py")
    if not path.is_file():
        there = ", ".join(list_workflows())
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
