"""`rungwise run WORKFLOW CONFIG`, and `python WORKFLOW CONFIG`: build what is missing."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from rungwise.cluster.environment import set_environment
from rungwise.commands.arguments import Commands, add_verb, add_workflow
from rungwise.core.exit_codes import OK, USER_ERROR, guarded

if TYPE_CHECKING:
    from rungwise.pipeline.runner import Outcome


def add(commands: Commands) -> None:
    add_workflow(add_verb(commands, "run", run, "build what is missing"))


def run_workflow(workflow: str, arguments: Sequence[str]) -> int:
    """Run a workflow file with `CONFIG [key=value ...]`; the process's exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        Console(stderr=True).print(f"usage: {workflow} CONFIG [key.path=value ...]", markup=False)
        return OK if arguments else USER_ERROR
    set_environment()
    options = argparse.Namespace(
        workflow=workflow, config=arguments[0], overrides=list(arguments[1:])
    )
    return guarded(lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Build what is missing, then print what there is."""
    from rungwise.pipeline import workflow

    recipe = workflow.load_recipe(options.config, options.overrides)
    console = Console()
    outcome = workflow.run(options.workflow, recipe, console)
    uri = workflow.tracking_uri(recipe, workflow.root_folder(recipe.root))
    _print_outcome(outcome, uri, shlex.join([options.config, *options.overrides]), console)
    return OK


def _print_outcome(outcome: Outcome, uri: str, recipe: str, console: Console) -> None:
    from rungwise.core.tracking import without_password
    from rungwise.report.ladder.page import LADDER
    from rungwise.report.page import REPORT, ReportSummary
    from rungwise.serving.registry import REGISTER, RegisterSummary

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
        if artifact.stage in (REPORT.name, LADDER.name):
            _say(console, "report", artifact.folder.path(ReportSummary.of(artifact).page))
        if artifact.stage == REGISTER.name:
            _say(console, "model", RegisterSummary.of(artifact).model_uri)
    shown = without_password(uri)
    hint = f"  (look at it with: rungwise ui {recipe})" if uri.startswith("sqlite:") else ""
    _say(console, "MLflow", shown + hint)
    if outcome.untracked_events:
        _say(console, "kept", f"{outcome.untracked_events} events that did not reach {shown}")
        _say(console, "", f"send them with: rungwise sync {recipe}")


def _say(console: Console, what: str, where: str) -> None:
    console.print(f"{what:<8}{where}", markup=False, highlight=False, soft_wrap=True)
