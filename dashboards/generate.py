"""Write what is made from boards.py and the catalogue of metrics; `make dashboards`.

grafana/boards/*.json            for Grafana 11.6, by its Foundation SDK
prometheus/consoles/rungwise.html  the same queries as a page that Prometheus itself serves
metrics.md                       the catalogue
"""

import json
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as board_models

from dashboards.boards import BOARDS, Board, Chart
from rungwise.monitoring import METRICS, PREFIX

FOLDER = Path(__file__).resolve().parent
_WIDTH, _HEIGHT = 8, 8  # of a panel; Grafana's grid has 24 columns
_SOURCE = board_models.DataSourceRef(type_val="prometheus", uid="${datasource}")


def files() -> dict[str, str]:
    """The text of each generated file by its path below dashboards/."""
    boards = {f"grafana/boards/{board.uid}.json": grafana_json(board) for board in BOARDS}
    return {**boards, "prometheus/consoles/rungwise.html": page(), "metrics.md": catalogue()}


def grafana_json(board: Board) -> str:
    """A board as Grafana reads it. Panels have ids by their place, so that a diff shows changes."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .tags(["rungwise"])
        .time("now-3h", "now")
        .refresh("30s")
        .readonly()
        .tooltip(board_models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("Boards")
            .type(board_models.DashboardLinkType.DASHBOARDS)
            .tags(["rungwise"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("run")
            .query("label_values(ray_rungwise_heartbeat_timestamp_seconds, run)")
            .datasource(_SOURCE)
            .refresh(board_models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )
    number, top = 0, 0
    for title, charts in board.rows.items():
        number += 1
        row = dashboard.Row(title).id(number)
        made = made.with_row(row.grid_pos(board_models.GridPos(h=1, w=24, x=0, y=top)))
        top += 1
        for place, chart in enumerate(charts):
            number += 1
            down, across = divmod(place, 24 // _WIDTH)
            position = board_models.GridPos(
                h=_HEIGHT, w=_WIDTH, x=across * _WIDTH, y=top + down * _HEIGHT
            )
            made = made.with_panel(_panel(chart).id(number).grid_pos(position))
        top += -(-len(charts) // (24 // _WIDTH)) * _HEIGHT
    return json.dumps(made.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _panel(chart: Chart) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(chart.title)
        .description(chart.about)
        .unit(chart.unit)
        .datasource(_SOURCE)
        .line_width(1)
        .show_points(models.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .placement(models.LegendPlacement.BOTTOM)
            .display_mode(models.LegendDisplayMode.LIST)
        )
    )
    for number, (query, legend) in enumerate(chart.queries):
        target = prometheus.Dataquery().expr(query).legend_format(legend).range()
        panel = panel.with_target(target.ref_id(chr(ord("A") + number)).datasource(_SOURCE))
    return panel


def page() -> str:
    """The page with the boards' charts in it. Prometheus reads `{{` as its own templates'."""
    boards = [
        {
            "title": board.title,
            "rows": [
                {
                    "title": title,
                    "charts": [
                        {
                            "title": chart.title,
                            "unit": chart.unit,
                            "about": chart.about,
                            "gpu": chart.gpu,
                            "queries": [
                                [query, legend.replace("{{", "[[").replace("}}", "]]")]
                                for query, legend in chart.queries
                            ],
                        }
                        for chart in charts
                    ],
                }
                for title, charts in board.rows.items()
            ],
        }
        for board in BOARDS
    ]
    template = (FOLDER / "page.html").read_text("utf-8")
    return template.replace("__BOARDS__", json.dumps(boards, indent=1))


def catalogue() -> str:
    """metrics.md: every metric, its labels, what sets it."""
    lines = [
        "# Metrics",
        "",
        "Made by `make dashboards` from `platform/rungwise/monitoring.py`. Ray exports each as",
        f"`ray_{PREFIX}NAME` on the node of a run's driver, with labels of its own (NodeAddress,",
        "SessionName, WorkerId and others). All are gauges; `_total` marks those that only grow",
        "while a driver lives. Units are in names; a ratio is 0 to 1. Values vanish with the",
        "driver, those of the moment with their stage.",
        "",
        "| metric | labels | tells | set from |",
        "|---|---|---|---|",
    ]
    for metric in METRICS:
        reported = metric.reported.replace("|", "\\|")
        source = f"`{reported}`" if reported else "the driver"
        labels = ", ".join(metric.labels)
        lines.append(f"| `{PREFIX}{metric.name}` | {labels} | {metric.meaning} | {source} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    for name, text in files().items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
