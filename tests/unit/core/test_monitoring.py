"""Metrics of a run: what sets them, that labels are bounded, that nothing is raised."""

import logging
from typing import Any

import pytest

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.monitoring import Monitor


class Gauges:
    """In place of Ray: every value by name and labels."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self.nodes: list[dict[str, Any]] = []

    def gauge(self, name: str, description: str, tag_keys: tuple[str, ...]) -> Any:
        class Gauge:
            @staticmethod
            def set(value: float, tags: dict[str, str]) -> None:
                assert set(tags) == set(tag_keys)  # as Ray asks
                self.values[name.removeprefix("rungwise_"), frozenset(tags.items())] = value

        return Gauge

    def __call__(self, name: str, **labels: str) -> float:
        return self.values[name, frozenset({"run": "bert", **labels}.items())]


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> Gauges:
    found = Gauges()
    monkeypatch.setattr("ray.util.metrics.Gauge", found.gauge)
    monkeypatch.setattr("ray.nodes", lambda: found.nodes)
    return found


def metrics(step: int, run: str | None = None, **values: float) -> dict[str, Any]:
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return {"kind": "metrics", "values": named, "step": step, "run": run}


def test_what_a_training_reports_is_set_in_base_units(gauges: Gauges) -> None:
    monitor = Monitor("bert", ComputeConfig(checkpoint_every_steps=50))
    monitor.handle("pretrain", metrics(100, train__loss=5.0, train__mlm_loss=4.0, train__tokens=9))
    monitor.handle("pretrain", metrics(100, system__mfu=0.4, system__step_seconds=2.0))
    monitor.handle(
        "pretrain", metrics(100, system__checkpoint_valid=1.0, system__checkpoint_megabytes=2.5)
    )
    monitor.handle("pretrain", metrics(150, system__checkpoint_valid=0.0))
    assert gauges("loss_nats", stage="pretrain", split="train", part="total") == 5.0
    assert gauges("loss_nats", stage="pretrain", split="train", part="mlm") == 4.0
    assert gauges("steps_total", stage="pretrain") == 100
    assert gauges("mfu_ratio", stage="pretrain") == 0.4
    assert gauges("checkpoint_bytes", stage="pretrain") == 2_500_000
    assert gauges("checkpoint_interval_seconds", stage="pretrain") == 100
    assert gauges("checkpoints_total", stage="pretrain", result="valid") == 1
    assert gauges("checkpoints_total", stage="pretrain", result="failed") == 1
    assert not monitor.failed


def test_steps_done_again_after_a_crash_are_counted_once(gauges: Gauges) -> None:
    monitor = Monitor("bert", ComputeConfig())
    for tokens in (100, 200, 150, 190):
        monitor.handle("pretrain", metrics(1, train__tokens=tokens))
    assert gauges("tokens_total", stage="pretrain") == 200


def test_states_costs_and_lost_nodes_come_with_the_heartbeat(
    gauges: Gauges, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("rungwise.monitoring.time.monotonic", lambda: now[0])
    gauges.nodes = [
        {"NodeID": "a", "Alive": True, "DeathReason": 0},
        {"NodeID": "b", "Alive": True, "DeathReason": 0},
        {"NodeID": "old", "Alive": False, "DeathReason": 2},
    ]
    monitor = Monitor("bert", ComputeConfig(price_per_hour=36.0, budget=5.0))
    states = {"corpus": "done", "pretrain": "running", "report": "waiting"}
    monitor.beat(states, 3)
    now[0] += 100
    monitor.handle("pretrain", {"kind": "progress", "done": 20, "total": 40, "shown": {}})
    gauges.nodes[1] |= {"Alive": False, "DeathReason": 3}
    monitor.beat(states, 0)
    assert gauges("stages", state="waiting") == gauges("stage_running", stage="pretrain") == 1
    assert gauges("cost_so_far") == pytest.approx(1.0)  # 100 s at a cent a second
    assert gauges("stage_progress_ratio", stage="pretrain") == 0.5
    assert gauges("budget") == 5.0
    assert gauges("nodes") == 1
    assert gauges("nodes_lost_total", reason="preempted") == 1
    assert gauges("nodes_lost_total", reason="failed") == 0  # it was gone before
    monitor.beat(states | {"pretrain": "done"}, 0, last=True)
    assert gauges("stage_running", stage="pretrain") == 0
    assert not monitor.failed


def test_values_are_set_again_as_ray_exports_no_others_and_some_end(gauges: Gauges) -> None:
    monitor = Monitor("bert", ComputeConfig())
    monitor.handle("pretrain", metrics(1, train__tokens=100, system__mfu=0.4))
    for state, expected in (("running", {"tokens_total", "mfu_ratio"}), ("done", {"tokens_total"})):
        gauges.values.clear()
        monitor.beat({"pretrain": state}, 0, last=True)
        told = {name for name, _ in gauges.values}
        assert told & {"tokens_total", "mfu_ratio"} == expected


def test_no_series_grows_with_steps_files_or_trials(gauges: Gauges) -> None:
    monitor = Monitor("bert", ComputeConfig())

    def feed(number: int) -> None:
        monitor.handle("pretrain", metrics(number, train__loss=1.0, validation__mlm_accuracy=0.5))
        monitor.handle("corpus", metrics(number, read__documents=number, contract__mask_share=0.8))
        nested: dict[str, Any] = {
            "kind": "nested",
            "run": f"trial-{number}",
            "params": {},
            "status": "RUNNING",
        }
        monitor.handle("sweep", nested)
        monitor.handle("sweep", metrics(number, run=f"trial-{number}", validation__accuracy=0.5))
        shown = {"trial": f"trial-{number}", "accuracy": 0.1 * number}
        monitor.handle("sweep", {"kind": "progress", "done": number, "total": 999, "shown": shown})

    feed(1)
    series = len(gauges.values)
    for number in range(2, 500):
        feed(number)
    assert len(gauges.values) == series


def test_a_failure_of_ray_is_logged_once_and_reaches_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> Any:
        raise RuntimeError("no agent")

    monkeypatch.setattr("ray.util.metrics.Gauge", broken)
    monitor = Monitor("bert", ComputeConfig())
    with caplog.at_level(logging.WARNING):
        monitor.handle("pretrain", metrics(1, train__loss=1.0))
        monitor.beat({"pretrain": "running"}, 0)
        monitor.finished("pretrain", 1.0, {"final.loss": 1.0})
        monitor.handle("pretrain", {"kind": "broken"})
    assert [record.message for record in caplog.records] == [
        "metrics for Prometheus are not complete: no agent"
    ]
