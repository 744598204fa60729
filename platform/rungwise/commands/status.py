"""`rungwise status [RUN]`: show the dashboards' figures, from Prometheus or MLflow."""

import argparse
import contextlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from rich.console import Console, Group
from rich.live import Live
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rungwise.commands.arguments import Commands, add_verb
from rungwise.core.errors import UserError

_WATCH_SECONDS = 5.0
_MOST_RUNS = 200  # read from MLflow, newest first
_ANY_WIDTH = 10_000
_AGO = "1h"  # stages that ended earlier are only on the dashboards


_PERCENT, _COUNT, _NUMBER = "{:.1%}".format, "{:,.0f}".format, "{:.4g}".format


def _clock(value: float) -> str:
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


@dataclass(frozen=True)
class StatusFigure:
    """A column: our Prometheus metric with a selector, MLflow's name for it, and its format."""

    heading: str
    metric: str
    tracked: str
    write: Callable[[float], str]


FIGURES = (
    StatusFigure("done", "stage_progress_ratio", "", _PERCENT),
    StatusFigure("tokens", "tokens_total", "train/tokens", _COUNT),
    StatusFigure("tokens/s", "tokens_per_second", "system/tokens_per_second", _COUNT),
    StatusFigure("MFU", "mfu_ratio", "system/mfu", _PERCENT),
    StatusFigure("loss", 'loss_nats{split="train",part="total"}', "train/loss", _NUMBER),
    StatusFigure(
        "validation", 'loss_nats{split="validation",part="total"}', "validation/loss", _NUMBER
    ),
    StatusFigure("data wait", "data_wait_ratio", "system/data_wait_share", _PERCENT),
    StatusFigure("skipped", "skipped_steps_total", "train/skipped_steps", _COUNT),
    StatusFigure("best score", "best_objective", "", _NUMBER),
    StatusFigure("starting", "", "system/starting_seconds", _clock),
    StatusFigure("time", "stage_seconds", "system/stage_seconds", _clock),
)


@dataclass
class StageRow:
    """One stage of a run: its state, and its figures by column heading."""

    state: str
    values: dict[str, float] = field(default_factory=dict)


StageRows = dict[tuple[str, str], StageRow]


def add(commands: Commands) -> None:
    help_text = "show how runs are doing: tokens/s, MFU, loss, scores, alerts"
    parser = add_verb(commands, status, help_text)
    parser.add_argument("run", metavar="RUN", nargs="?", help="name of a recipe; default: all")
    parser.add_argument("--watch", action="store_true", help="refresh every few seconds")
    parser.add_argument("--prometheus", metavar="URL", help="such as http://127.0.0.1:9090")
    parser.add_argument("--experiment", default="rungwise", help="in MLflow, instead of Prometheus")


def status(options: argparse.Namespace) -> None:
    """Print the table, with --watch until Ctrl-C. Raises UserError if Prometheus does not answer or
    MLflow has no such experiment."""
    render, console = _choose_source(options), Console()
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


def _choose_source(options: argparse.Namespace) -> Callable[[], Group]:
    from rungwise.cluster import registry
    from rungwise.core.configuration.secrecy import redact
    from rungwise.core.tracking.sender import hide_credentials
    from rungwise.pipeline.places import default_places

    cluster = registry.find()
    uri = options.prometheus or (cluster.prometheus_uri if cluster else None)
    tracking = cluster.tracking_uri if cluster else default_places()[1]

    def render() -> Group:
        if uri:
            rows, alerts = query_prometheus(uri.rstrip("/"), options.run)
            return _tabulate(rows, alerts, f"Prometheus at {redact(uri)}, last hour")
        rows = query_mlflow(tracking, options.experiment, options.run)
        return _tabulate(rows, [], f"MLflow at {hide_credentials(tracking)}")

    return render


def query_prometheus(uri: str, run: str | None) -> tuple[StageRows, list[str]]:
    """The stages of the last hour, and one line per firing alert."""
    from rungwise.cluster.local.processes import request

    def get(path: str, **values: str) -> Any:
        try:
            return json.loads(request(f"{uri}/api/v1/{path}?{urlencode(values)}"))["data"]
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"Prometheus does not answer at {uri} ({error}); install it and "
                "start a cluster with `rungwise up`, forward its port, or leave --prometheus out"
            ) from error

    def query(metric: str) -> dict[tuple[str, str], float]:
        # The last value, also after a run has ended; of runs with one name, the latest.
        expression = f"last_over_time((max by (run, stage) ({metric}))[{_AGO}:15s])"
        return {
            (each["metric"].get("run", ""), each["metric"].get("stage", "")): float(
                each["value"][1]
            )
            for each in get("query", query=expression)["result"]
        }

    active = get("query", query="rungwise:stage_active")["result"]
    running = {(each["metric"]["run"], each["metric"]["stage"]) for each in active}
    starts = query("ray_rungwise_stage_started_timestamp_seconds")
    rows = {
        key: StageRow("running" if key in running else "ended")
        for key in sorted(starts, key=lambda key: starts[key])
        if run in (None, key[0])
    }
    for figure in (each for each in FIGURES if each.metric):
        values = query(f"ray_rungwise_{figure.metric}")
        for key in rows.keys() & values.keys():
            rows[key].values[figure.heading] = values[key]
    for key in rows.keys() & running:
        rows[key].values["time"] = time.time() - starts[key]
    alerts = [
        f"{alert['labels']['alertname']}: {alert['annotations']['summary']}"
        for alert in get("alerts")["alerts"]
        if alert["state"] == "firing" and run in (None, alert["labels"].get("run", run))
    ]
    return rows, alerts


def query_mlflow(uri: str, experiment: str, run: str | None) -> StageRows:
    """The latest figures of the newest stages in MLflow."""
    from rungwise.core.tracking.sender import PARENT_TAG, hide_credentials, store_client

    with store_client(uri) as client:
        record = client.get_experiment_by_name(experiment)
        if record is None:
            raise UserError(
                f"MLflow at {hide_credentials(uri)} has no experiment {experiment}; start a run, "
                "or give another --experiment or the cluster's --prometheus"
            )
        runs = client.search_runs([record.experiment_id], max_results=_MOST_RUNS)
    names = {each.info.run_id: each.info.run_name or "" for each in runs}
    rows: StageRows = {}
    for each in runs:
        parent = names.get(each.data.tags.get(PARENT_TAG, ""), "")
        if "rungwise.stage" not in each.data.tags or run not in (None, parent):
            continue
        row = rows.setdefault(
            (parent, each.info.run_name or ""), StageRow(each.info.status.lower())
        )
        for figure in FIGURES:
            if (value := each.data.metrics.get(figure.tracked)) is not None:
                row.values.setdefault(figure.heading, value)
    return dict(reversed(rows.items()))


def _tabulate(rows: StageRows, alerts: list[str], source: str) -> Group:
    """The table without empty columns, or where the console is too narrow for it, a line for each
    stage and its figures below; then the alerts and the source."""
    if not rows:
        return Group(f"no run found by {source}")
    headings = {heading for row in rows.values() for heading in row.values}
    figures = [figure for figure in FIGURES if figure.heading in headings]
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "stage", "state"):
        table.add_column(heading, no_wrap=True)
    for figure in figures:
        table.add_column(figure.heading, justify="right", no_wrap=True)
    lines: list[Text | Padding] = []
    for (run, stage), row in rows.items():
        values = [row.values.get(figure.heading, math.nan) for figure in figures]
        cells = [
            "" if math.isnan(value) else figure.write(value)
            for figure, value in zip(figures, values, strict=True)
        ]
        table.add_row(run, stage, row.state, *cells)
        lines.append(Text(f"{run}  {stage}  {row.state}"))
        columns = zip(figures, cells, strict=True)
        pairs = [f"{figure.heading} {cell}" for figure, cell in columns if cell]
        lines.append(Padding(", ".join(pairs), (0, 0, 0, 2)))
    console = Console()
    whole = Measurement.get(console, console.options.update(max_width=_ANY_WIDTH), table)
    is_wide = whole.maximum > console.width
    return Group(
        *(lines if is_wide else [table]),
        *(f"[bold red]{line}[/]" for line in alerts),
        f"[dim]{source}[/]",
    )
