"""`rungwise status`: figures of Prometheus as a table, with what fires; unreachable is one line."""

import json
import urllib.parse
from typing import Any

import pytest

from rungwise.__main__ import main
from rungwise.commands import status
from rungwise.core.errors import UserError

STAGES = {("bert", "corpus"): 100.0, ("bert", "pretrain"): 200.0, ("gpt", "pretrain"): 300.0}
FIGURES = {
    "ray_rungwise_stage_started_timestamp_seconds": STAGES,
    "ray_rungwise_tokens_per_second": {("bert", "pretrain"): 4321.0},
    "ray_rungwise_stage_seconds": {("bert", "corpus"): 75.0},
    "rungwise:stage_active": {("bert", "pretrain"): 1.0},
}
ALERTS = [
    {
        "state": "firing",
        "labels": {"alertname": "DataWait", "run": "bert"},
        "annotations": {"summary": "waits"},
    },
    {
        "state": "pending",
        "labels": {"alertname": "LowMfu", "run": "bert"},
        "annotations": {"summary": "slow"},
    },
    {
        "state": "firing",
        "labels": {"alertname": "NoTokens", "run": "gpt"},
        "annotations": {"summary": "stands"},
    },
]


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(url: str) -> str:
        if url.endswith("/alerts?"):
            return json.dumps({"data": {"alerts": ALERTS}})
        (query,) = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)["query"]
        values: dict[Any, float] = next((FIGURES[name] for name in FIGURES if name in query), {})
        result = [
            {"metric": {"run": run, "stage": stage}, "value": [0, str(value)]}
            for (run, stage), value in values.items()
        ]
        return json.dumps({"data": {"result": result}})

    monkeypatch.setattr("rungwise.cluster.local.processes.request", ask)


@pytest.mark.usefixtures("prometheus")
def test_a_run_has_its_stages_in_order_and_what_fires(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "bert", "--prometheus", "http://127.0.0.1:9"]) == 0
    heading, corpus, pretrain, alert, _ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["run", "stage", "state", "tokens/s", "time"]
    assert corpus.split() == ["bert", "corpus", "ended", "0:01:15"]
    assert pretrain.split()[:4] == ["bert", "pretrain", "running", "4,321"]
    assert alert == "DataWait: waits"


@pytest.mark.usefixtures("prometheus")
def test_an_unknown_run_has_no_rows() -> None:
    rows, alerts = status.query_prometheus("http://127.0.0.1:9", "elmo")
    assert (rows, alerts) == ({}, [])


@pytest.mark.usefixtures("prometheus")
def test_a_password_in_an_address_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["status", "elmo", "--prometheus", "http://me:secret@127.0.0.1:9"]) == 0
    monkeypatch.setattr("rungwise.cluster.registry.find", lambda: None)
    monkeypatch.setattr(status, "query_mlflow", lambda *_: {})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@mlflow.example")
    assert main(["status"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "no run found by Prometheus at http://127.0.0.1:9, last hour"
    assert second == "no run found by MLflow at https://mlflow.example"


def test_a_prometheus_that_is_not_there_is_one_line(unused_port: int) -> None:
    with pytest.raises(UserError, match="does not answer at http"):
        status.query_prometheus(f"http://127.0.0.1:{unused_port}", None)


def test_figures_that_do_not_fit_into_80_columns_stand_below_their_stage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {figure.heading: 12345.0 for figure in status.FIGURES}
    rows = {("a-recipe-of-a-long-name", "pretrain"): status.StageRow("running", values)}
    monkeypatch.setattr("rungwise.cluster.registry.find", lambda: None)
    monkeypatch.setattr(status, "query_mlflow", lambda *_: rows)
    for width, heading in ((80, "a-recipe-of-a-long-name  pretrain  running"), (200, "run  ")):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["status"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(heading)
        assert "…" not in "".join(lines)
        text = " ".join(" ".join(lines).split())
        assert all(figure.heading in text for figure in status.FIGURES)
