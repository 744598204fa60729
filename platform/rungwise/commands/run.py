"""`rungwise run|gc|submit|status|up|down`: build what is missing, here, on a cluster, or on one of
processes of this machine; show how runs are doing; clean up below a recipe's root."""

from __future__ import annotations

import argparse
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from rungwise.cluster.environment import set_environment, spare_collections
from rungwise.commands.parser import Commands, add_verb, add_workflow
from rungwise.core import exit_codes
from rungwise.core.configuration.secrecy import redact
from rungwise.core.errors import UserError
from rungwise.core.exit_codes import plain_console

if TYPE_CHECKING:
    from rungwise.core.storage.folder import Folder
    from rungwise.pipeline.recipe import Recipe
    from rungwise.pipeline.runner import Outcome

_ARTIFACT = re.compile("(.*)-([0-9a-f]{12})")


def add(commands: Commands) -> None:
    add_workflow(add_verb(commands, run, "build what is missing"))
    text = "list what a recipe has built and no longer needs, and send MLflow what it missed"
    parser = add_verb(commands, gc, text)
    add_workflow(parser)
    parser.add_argument("--delete", action="store_true", help="delete what is listed")
    parser.add_argument("--instead-of", metavar="URI", help="former address of the recipe's server")
    parser = add_verb(commands, submit, "check a workflow, run it on a cluster, follow it")
    add_workflow(parser)
    parser.add_argument("--working-dir", default=".", metavar="FOLDER", help="folder to upload")
    parser.add_argument("--no-wait", action="store_true", help="return once the job is submitted")
    help_text = "default: RAY_API_SERVER_ADDRESS, else the cluster that `rungwise up` started"
    parser.add_argument("--address", metavar="URL", help=help_text)
    parser = add_verb(commands, status, "show how runs are doing: tokens/s, MFU, losses")
    parser.add_argument("run", metavar="RUN", nargs="?", help="name of a recipe; default: all")
    parser.add_argument("--experiment", default="rungwise", help="in MLflow")
    parser = add_verb(commands, up, "start a Ray cluster of several nodes on this machine")
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="default: 2")
    parser.add_argument("--root", default="artifacts", help="root of recipes and MLflow's store")
    add_verb(commands, down, "stop the cluster that `up` started, nothing else")


def run_workflow(workflow: str, arguments: Sequence[str]) -> int:
    """Run a workflow file with `CONFIG [key=value ...]`; return the process's exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        plain_console(stderr=True).print(f"usage: {workflow} CONFIG [key.path=value ...]")
        return exit_codes.OK if arguments else exit_codes.USER_ERROR
    spare_collections()
    set_environment()
    config, *overrides = arguments
    options = argparse.Namespace(workflow=workflow, config=config, overrides=overrides)
    return exit_codes.run_command(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Build what is missing, then print the artifacts and the next commands."""
    console = Console()
    from rungwise.pipeline.places import recipe_file, root_folder, tracking_uri

    with exit_codes.terminate_as_interrupt():
        with console.status(f"reading {escape(options.config)}"):  # PyTorch imports for seconds
            from rungwise.pipeline import workflow

            recipe = workflow.load_recipe(options.config, options.overrides)
        outcome = workflow.run(options.workflow, recipe, console)
    uri = tracking_uri(recipe, root_folder(recipe.root))
    file = str(recipe_file(options.config))
    command = redact(shlex.join([file, *options.overrides]))
    clean_up = shlex.join(["rungwise", "gc", options.workflow]) + f" {command}"
    _print_outcome(outcome, uri, command, clean_up, recipe.root, console)


def _print_outcome(
    outcome: Outcome, uri: str, recipe: str, clean_up: str, root: str, console: Console
) -> None:
    from rungwise.core.errors import format_count
    from rungwise.core.tracking.store import hide_credentials
    from rungwise.report.stage import LADDER, REPORT, ReportSummary
    from rungwise.serving.stage import REGISTER, RegisterSummary

    line = f"\n{len(outcome.built)} of {len(outcome.artifacts)} stages built"
    line += f" below {root} in {outcome.seconds:.0f} s"
    if outcome.built:
        line += f", {outcome.waiting_seconds:.0f} s of it starting and waiting"
    console.print(f"{line}\n", highlight=False)
    # The last of each stage, but for those at a share of a budget: `pretrain/gpt/0.25`.
    by_stage = {a.stage: a for name, a in outcome.artifacts.items() if name.count("/") < 2}
    commands: dict[str, str] = {}
    pretrain = by_stage.get("pretrain")
    for stage in (REPORT.name, LADDER.name):
        if page := by_stage.get(stage):
            summary = ReportSummary.of(page)
            models = (a for a in outcome.artifacts.values() if a.fingerprint == summary.recommended)
            pretrain = next(models, pretrain)
            _say(console, "result", summary.headline)
            _say(console, "page", page.folder.path(summary.page))
    if pretrain:
        commands["try"] = f"rungwise try {shlex.quote(pretrain.folder.uri)}"
        commands["export"] = f"rungwise export {recipe} --to FOLDER"
    if registered := by_stage.get(REGISTER.name):
        model = RegisterSummary.of(registered).model_uri
        option = "" if root == "artifacts" else f" --root {shlex.quote(root)}"
        commands["predict"] = f"rungwise predict {shlex.quote(model)}{option} --input FILE"
    server = hide_credentials(uri)
    _say(console, "MLflow", server)
    if uri.startswith("sqlite"):
        commands["runs"] = f"mlflow ui --backend-store-uri {shlex.quote(uri)}"
    if outcome.untracked_events:
        events = format_count(outcome.untracked_events, "event")
        fault = f": {outcome.tracking_fault}" if outcome.tracking_fault else ""
        _say(console, "unsent", f"{events} that did not reach {server}{fault}")
        commands["send"] = clean_up
    console.print()
    for purpose, command in commands.items():
        _say(console, purpose, command)


def _say(console: Console, what: str, text: str) -> None:
    """Print a line that can be pasted: a terminal does not break it between words."""
    console.print(f"{what:<8} {text}", markup=False, highlight=False, soft_wrap=True)


def gc(options: argparse.Namespace) -> None:
    """Send the events that MLflow missed, and list, or delete, what the recipe no longer needs."""
    from rungwise.core.errors import format_count
    from rungwise.core.tracking.store import hide_credentials
    from rungwise.core.tracking.tracker import sync
    from rungwise.pipeline.places import root_folder, spool_folder, tracking_uri
    from rungwise.pipeline.workflow import load_recipe

    recipe = load_recipe(options.config, options.overrides)
    root = root_folder(recipe.root)
    uri, spool = tracking_uri(recipe, root), spool_folder(root)
    try:
        count = sync(uri, spool, options.instead_of)
    except ConnectionError as error:
        variables = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        hint = f". If the server needs a password, give it in {variables}"
        raise UserError(f"{error}; they stay in {spool}{hint * uri.startswith('http')}") from error
    if count:
        plain_console().print(f"{format_count(count, 'event')} sent to {hide_credentials(uri)}")
    _collect_garbage(options.workflow, recipe, root, options.delete)


def _collect_garbage(workflow_name: str, recipe: Recipe, root: Folder, delete: bool) -> None:
    """List the recipe's artifacts that neither its plan, a run that would continue one, a model of
    the registry nor another recipe needs. Raises UserError while a run is in progress."""
    from rich.filesize import decimal

    from rungwise.core.stages import artifact as artifacts
    from rungwise.core.stages.artifact import SHARED, SharedResults
    from rungwise.pipeline import workflow
    from rungwise.serving.stage import REGISTER

    say = plain_console().print
    rows = workflow.plan(workflow_name, recipe)
    current = {row.stage.fingerprint for row in rows}
    continued = {row.earlier.artifact.fingerprint for row in rows if row.earlier}
    finished = artifacts.find_artifacts(root)
    rest = (each for each in finished if each.label != recipe.name or each.stage == REGISTER.name)
    others = {each.fingerprint for each in rest}
    needed = artifacts.collect_inputs(current | continued | others, finished)
    unneeded = [
        root / stage / name
        for stage in root.subfolders()
        for name in (root / stage).subfolders()
        # Below a root that holds more than artifacts, a folder of the user may be named so.
        if (match := _ARTIFACT.fullmatch(name))
        and match[1] == recipe.name
        and match[2] not in needed
    ]
    total = 0
    for folder in unneeded:
        size = sum(folder.sizes().values())
        state = "finished" if folder.exists(artifacts.RECORD) else "abandoned"
        _check_idle(root)
        if delete:
            artifacts.delete(folder)
        total += size
        say(f"{state:<9} {decimal(size):>9}  {folder.uri}")
    for stage in root.subfolders():
        shared = SharedResults(root / stage / SHARED)
        keys = shared.find_unused()
        size = sum(sum(shared[key].sizes().values()) for key in keys)
        if keys:
            say(f"{'unused':<9} {decimal(size):>9}  {len(keys):,} of {shared.folder.uri}")
        _check_idle(root)
        for key in keys if delete else ():
            shared[key].remove()
        total += size
    if delete:
        say(f"{decimal(total)} deleted")
    elif total:
        say(f"{decimal(total)} can be deleted; add --delete to the same command")
    else:
        say(f"{root.uri}: nothing to delete of {recipe.name}")


def _check_idle(root: Folder) -> None:
    """Raise UserError while a run is at work below `root`, which may need anything there."""
    from rungwise.core.stages.lease import describe_live_driver

    if holder := describe_live_driver(root):
        raise UserError(f"{holder} is at work below {root.uri}; clean up when it has ended")


_MOST_RUNS = 200  # read from MLflow, newest first
_PERCENT, _COUNT, _NUMBER = "{:.1%}".format, "{:,.0f}".format, "{:.4g}".format
_SECONDS = "{:,.0f} s".format


def submit(options: argparse.Namespace) -> int:
    """Submit the job; return its exit status. Raises UserError if it could not run."""
    # Importing recipes imports all training code.
    from rungwise.submission import find_server, load_job
    from rungwise.submission import submit as submit_job

    job = load_job(options.working_dir, options.workflow, options.config, options.overrides)
    return submit_job(job, find_server(options.address), wait=not options.no_wait)


def up(options: argparse.Namespace) -> int | None:
    """Start the cluster, or say that it runs already."""
    from rungwise.cluster.local import describe_cluster, start_cluster

    console = plain_console()
    try:
        console.print(describe_cluster(start_cluster(options.nodes, options.root, console)))
    except KeyboardInterrupt:
        console.print("interrupted; everything that had started was stopped")
        return exit_codes.INTERRUPTED
    return None


def down(options: argparse.Namespace) -> None:
    """End the cluster's processes and jobs, and remove its token and record."""
    from rungwise.cluster.local import end_cluster, find_cluster

    say = plain_console().print
    if (cluster := find_cluster()) is None:
        say("no cluster was started here")
        return
    count = end_cluster(cluster)
    say(f"ended {count} processes of the cluster; submit a job that ran again, and it goes on")


# What is shown of a stage: MLflow's name, and how it is written.
_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "tokens": ("train/tokens", _COUNT),
    "tokens/s": ("system/tokens_per_second", _COUNT),
    "MFU": ("system/mfu", _PERCENT),
    "loss": ("train/loss", _NUMBER),
    "validation": ("validation/loss", _NUMBER),
    "data wait": ("system/data_wait_share", _PERCENT),
    "starting": ("system/starting_seconds", _SECONDS),
    "time": ("system/stage_seconds", _SECONDS),
}


def status(options: argparse.Namespace) -> None:
    """Print the latest figures of each stage. Raises UserError if MLflow has no such experiment."""
    from rungwise.core.tracking.store import hide_credentials, store_client
    from rungwise.pipeline.places import default_places

    uri = default_places()[1]
    with store_client(uri) as client:
        experiment = client.get_experiment_by_name(options.experiment)
        if experiment is None:
            raise UserError(
                f"MLflow at {hide_credentials(uri)} has no experiment {options.experiment}; start "
                "a run, or give another --experiment or MLFLOW_TRACKING_URI"
            )
        # Whole recipes, trials and seeds are runs, too.
        only = "tags.`rungwise.stage` LIKE '%'"
        stages = client.search_runs([experiment.experiment_id], only, 1, _MOST_RUNS)
    states: dict[tuple[str, str], str] = {}  # of the newest run of each stage
    figures: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for each in stages:
        stage, _, label = (each.info.run_name or "").rpartition(" of ")
        key = label, stage
        if options.run in (None, label):
            states.setdefault(key, each.info.status.lower())
            figures[key] = each.data.metrics | figures[key]
    say = plain_console().print
    for key, state in reversed(states.items()):
        words = [*key, state]
        for heading, (metric, write) in _FIGURES.items():
            if metric in figures[key]:
                words.append(f"{heading} {write(figures[key][metric])}")
        say("  ".join(words))
    if not states:
        say("no run")
    say(f"MLflow at {hide_credentials(uri)}")
