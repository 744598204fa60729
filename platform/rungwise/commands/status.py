"""`rungwise status [RUN]`: show how runs are doing, by the last values in MLflow."""

import argparse
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from rungwise.commands.arguments import Commands, add_verb
from rungwise.core.errors import UserError

_WATCH_SECONDS = 5.0
_MOST_RUNS = 200  # read from MLflow, newest first
_PERCENT, _COUNT, _NUMBER = "{:.1%}".format, "{:,.0f}".format, "{:.4g}".format


def _clock(value: float) -> str:
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


# What is shown of a stage: MLflow's name, and how it is written.
FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "tokens": ("train/tokens", _COUNT),
    "tokens/s": ("system/tokens_per_second", _COUNT),
    "MFU": ("system/mfu", _PERCENT),
    "loss": ("train/loss", _NUMBER),
    "validation": ("validation/loss", _NUMBER),
    "data wait": ("system/data_wait_share", _PERCENT),
    "skipped": ("train/skipped_steps", _COUNT),
    "starting": ("system/starting_seconds", _clock),
    "time": ("system/stage_seconds", _clock),
}


@dataclass
class StageStatus:
    """One stage of a run: its state, and its figures by heading."""

    state: str
    values: dict[str, float] = field(default_factory=dict)


def add(commands: Commands) -> None:
    parser = add_verb(commands, status, "show how runs are doing: tokens/s, MFU, losses")
    parser.add_argument("run", metavar="RUN", nargs="?", help="name of a recipe; default: all")
    parser.add_argument("--watch", action="store_true", help="refresh every few seconds")
    parser.add_argument("--experiment", default="rungwise", help="in MLflow")


def status(options: argparse.Namespace) -> None:
    """Print each stage's figures, with --watch until Ctrl-C. Raises UserError if MLflow has no such
    experiment."""
    from rungwise.core.tracking.sender import hide_credentials
    from rungwise.pipeline.places import default_places

    uri, console = default_places()[1], Console()

    def render() -> Group:
        stages = query_mlflow(uri, options.experiment, options.run)
        return Group(*_describe(stages), f"[dim]MLflow at {hide_credentials(uri)}[/]")

    if not options.watch:
        console.print(render())
        return
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(render(), console=console, auto_refresh=False) as live,
    ):
        while True:
            time.sleep(_WATCH_SECONDS)
            live.update(render(), refresh=True)


def query_mlflow(uri: str, experiment: str, run: str | None) -> dict[tuple[str, str], StageStatus]:
    """The latest figures of the newest stages in MLflow, by run and stage."""
    from rungwise.core.tracking.sender import PARENT_TAG, hide_credentials, store_client

    with store_client(uri) as client:
        record = client.get_experiment_by_name(experiment)
        if record is None:
            raise UserError(
                f"MLflow at {hide_credentials(uri)} has no experiment {experiment}; start a run, "
                "or give another --experiment or MLFLOW_TRACKING_URI"
            )
        runs = client.search_runs([record.experiment_id], max_results=_MOST_RUNS)
    names = {each.info.run_id: each.info.run_name or "" for each in runs}
    stages: dict[tuple[str, str], StageStatus] = {}
    for each in runs:
        parent = names.get(each.data.tags.get(PARENT_TAG, ""), "")
        if "rungwise.stage" not in each.data.tags or run not in (None, parent):
            continue
        key = parent, each.info.run_name or ""
        stage = stages.setdefault(key, StageStatus(each.info.status.lower()))
        for heading, (metric, _) in FIGURES.items():
            if (value := each.data.metrics.get(metric)) is not None:
                stage.values.setdefault(heading, value)
    return dict(reversed(stages.items()))


def _describe(stages: dict[tuple[str, str], StageStatus]) -> list[Text | Padding]:
    """A line for each stage, and its figures below it."""
    lines: list[Text | Padding] = []
    for (run, name), stage in stages.items():
        lines.append(Text(f"{run}  {name}  {stage.state}"))
        figures = [
            f"{heading} {write(stage.values[heading])}"
            for heading, (_, write) in FIGURES.items()
            if heading in stage.values
        ]
        lines.append(Padding(", ".join(figures), (0, 0, 0, 2)))
    return lines or [Text("no run")]
