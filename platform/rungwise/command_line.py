"""What `rungwise run` and `python WORKFLOW CONFIG` do: load, run, say what came out.

A workflow is a Python file with a function `stages(recipe) -> list[Stage]`.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rungwise.cluster.ray_start import ROOT_VARIABLE
from rungwise.cluster.session import set_environment
from rungwise.config import load
from rungwise.errors import ConfigError
from rungwise.exits import OK, USER_ERROR, guarded
from rungwise.recipe import Recipe
from rungwise.runner import Outcome, run
from rungwise.stage import Stage, plan
from rungwise.storage import Folder, is_remote
from rungwise.tracking import Tracker, default_uri, without_password


def run_workflow(workflow: str, arguments: Sequence[str]) -> int:
    """Run a workflow file with `CONFIG [key=value ...]`; the process's exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        Console(stderr=True).print(f"usage: {workflow} CONFIG [key.path=value ...]", markup=False)
        return OK if arguments else USER_ERROR
    return guarded(lambda: run_command(workflow, arguments[0], arguments[1:]))


def run_command(workflow: str, config: str, overrides: Sequence[str]) -> int:
    """Build what is missing, then print what there is."""
    set_environment()
    recipe, stages, root = prepare(workflow, config, overrides)
    uri = tracking_uri(recipe, root)

    def tracker() -> Tracker:
        return Tracker(uri, recipe.tracking.experiment, spool_folder(root))

    console = Console()
    outcome = run(stages, root, recipe.name, recipe.compute, tracker, console)
    _print_outcome(outcome, uri, shlex.join([config, *overrides]), console)
    return OK


def plan_command(workflow: str, config: str, overrides: Sequence[str]) -> int:
    """Print what would be built and why; nothing is run or written."""
    recipe, stages, root = prepare(workflow, config, overrides)
    table = Table(box=None, pad_edge=False)
    for heading in ("stage", "fingerprint", "state", "because"):
        table.add_column(heading, overflow="fold")
    rows = plan(stages, root, recipe.name)
    for row in rows:
        state = "[blue]cached[/]" if row.artifact else "[bold cyan]build[/]"
        table.add_row(row.stage.shown, row.stage.fingerprint, state, row.reason)
    console = Console()
    console.print(table)
    missing = sum(row.artifact is None for row in rows)
    console.print(f"{missing} of {len(rows)} stages to build below {root.uri}", highlight=False)
    return OK


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
        there = ", ".join(sorted(str(found) for found in Path("workflows").glob("*.py")))
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


def _print_outcome(outcome: Outcome, uri: str, recipe: str, console: Console) -> None:
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("stage")
    table.add_column("built in", justify="right")
    table.add_column("artifact", overflow="fold")
    for name, artifact in outcome.artifacts.items():
        seconds = f"{artifact.record['seconds']:.1f} s"
        table.add_row(
            name, seconds if name in outcome.built else f"({seconds})", artifact.folder.uri
        )
    console.print(table)
    built = f"{len(outcome.built)} of {len(outcome.artifacts)} stages built"
    console.print(f"\n{built} in {outcome.seconds:.0f} s", highlight=False)
    for artifact in outcome.artifacts.values():
        if "page" in artifact.summary:
            _say(console, "report", artifact.folder.path(artifact.summary["page"]))
        if "model_uri" in artifact.summary:
            _say(console, "model", artifact.summary["model_uri"])
    shown = without_password(uri)
    hint = f"  (look at it with: rungwise ui {recipe})" if uri.startswith("sqlite:") else ""
    _say(console, "MLflow", shown + hint)
    if outcome.untracked_events:
        _say(console, "kept", f"{outcome.untracked_events} events that did not reach {shown}")
        _say(console, "", f"send them with: rungwise sync {recipe}")


def _say(console: Console, what: str, where: str) -> None:
    console.print(f"{what:<8}{where}", markup=False, highlight=False, soft_wrap=True)
