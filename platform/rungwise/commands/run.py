"""What `rungwise run` and `python WORKFLOW CONFIG` do: load, run, say what came out.

A workflow is a Python file with a function `stages(recipe) -> list[Stage]`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from rungwise.cluster.session import set_environment
from rungwise.core.exit_codes import OK, USER_ERROR, guarded
from rungwise.core.stage import plan
from rungwise.core.tracking import Tracker, without_password
from rungwise.pipeline.runner import Outcome, run
from rungwise.pipeline.workflow import prepare, spool_folder, tracking_uri
from rungwise.report.page import REPORT, ReportSummary
from rungwise.serving.registry import REGISTER, RegisterSummary


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
    kept = recipe.resolved(root.uri)
    outcome = run(stages, root, recipe.name, recipe.compute, tracker, console, kept)
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
        if artifact.stage == REPORT.name:
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
