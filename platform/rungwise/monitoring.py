"""Metrics for Prometheus: what stages report, as the driver reads it from the board.

The driver sets gauges of `ray.util.metrics`, which Ray exports as `ray_rungwise_...`. Even those
that only grow (`_total`) are gauges: a resumed run continues from the totals in its checkpoint.
Labels are names whose number a recipe bounds; files, steps and trials are never labels.
"""

import functools
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rungwise.core.configuration.overrides import ComputeConfig

logger = logging.getLogger(__name__)

PREFIX = "rungwise_"
_BEAT_SECONDS = 5.0
_STAGE_STATES = ("waiting", "running", "done", "cached", "failed", "not built")
# `DeathReason` in Ray's list of nodes (gcs.proto, NodeDeathInfo.Reason).
_DEATHS = {0: "unknown", 1: "ended", 2: "failed", 3: "preempted", 4: "idle"}


@dataclass(frozen=True)
class MonitoredMetric:
    """One metric of metrics.yaml. `reported` matches the names of reported values that set it, and
    its groups are labels; if it is empty, the driver computes the value itself."""

    name: str
    meaning: str
    reported: str = ""
    more_labels: Sequence[str] = ()
    of_stage: bool = True  # else of the whole run
    passing: bool = False  # a momentary value, exported only while its stage runs
    scale: float = 1.0  # from the reported unit to the base unit

    @property
    def labels(self) -> tuple[str, ...]:
        stage = ("stage",) if self.of_stage else ()
        return ("run", *stage, *re.compile(self.reported).groupindex, *self.more_labels)


_ROWS = yaml.safe_load(Path(__file__).with_name("metrics.yaml").read_text())
_BY_NAME = {name: MonitoredMetric(name, **row) for name, row in _ROWS.items()}
METRICS = tuple(_BY_NAME.values())


@functools.lru_cache(maxsize=4096)
def find_metrics(reported: str) -> tuple[tuple[MonitoredMetric, tuple[tuple[str, str], ...]], ...]:
    """The metrics that a reported value sets, each with the labels from the value's name."""
    metrics = []
    for metric in METRICS:
        if metric.reported and (match := re.fullmatch(metric.reported, reported)):
            labels = ((name, value or "total") for name, value in match.groupdict().items())
            metrics.append((metric, tuple(labels)))
    return tuple(metrics)


def _never_raises(method: Callable[..., None]) -> Callable[..., None]:
    """Log the first exception of `method` instead of raising it into the run."""

    def guarded(monitor: "Monitor", *arguments: Any, **named: Any) -> None:
        try:
            method(monitor, *arguments, **named)
        except Exception as error:
            if not monitor.failed:
                logger.warning("metrics for Prometheus are not complete: %s", error)
            monitor.failed = True

    return guarded


@dataclass
class Monitor:
    """The metrics of one driver. Every method returns at once and never raises."""

    run: str
    compute: ComputeConfig
    failed: bool = False
    _gauges: dict[str, Any] = field(default_factory=dict)
    _values: dict[tuple[str, ...], float] = field(default_factory=dict)
    _running: set[str] = field(default_factory=set)
    _initial_deaths: set[str] | None = None
    _start: float = field(default_factory=lambda: time.monotonic())
    _beat_at: float = 0.0

    @_never_raises
    def handle(self, stage: str, event: Mapping[str, Any]) -> None:
        if event["kind"] == "progress":
            share = event["done"] / max(event["total"], 1.0)
            self._set("stage_progress_ratio", share, stage=stage)
        if event["kind"] == "metrics" and event["run"] is None:
            if any(name.startswith("train/") for name in event["values"]):
                self._set("steps_total", event["step"], stage=stage)
            self._set_all(stage, event["values"])

    @_never_raises
    def finished(self, stage: str, seconds: float, summary: Mapping[str, float]) -> None:
        """Export the numbers of a finished stage's summary, as `{"final.loss": ...}`."""
        self._set_all(stage, {"system/stage_seconds": seconds, **summary})

    @_never_raises
    def beat(self, states: Mapping[str, str], events_waiting: int, last: bool = False) -> None:
        """Export every few seconds what the driver knows without reports; always if `last`."""
        now = time.monotonic()
        if now < self._beat_at and not last:
            return
        self._beat_at = now + _BEAT_SECONDS
        self._set("heartbeat_timestamp_seconds", time.time())
        counts = Counter(states.values())
        for state in _STAGE_STATES:
            self._set("stages", counts[state], state=state)
        running = {name for name, state in states.items() if state == "running"}
        for stage in running - self._running:
            self._set("stage_started_timestamp_seconds", time.time(), stage=stage)
        for stage in running | self._running:
            self._set("stage_running", float(stage in running), stage=stage)
        self._running |= running
        self._set("tracking_events_waiting", events_waiting)
        if self.compute.price_per_hour is not None:
            self._set("cost_so_far", (now - self._start) / 3600 * self.compute.price_per_hour)
            if self.compute.budget is not None:
                self._set("budget", self.compute.budget)
        self._refresh(running)
        self._count_nodes()

    def _set_all(self, stage: str, values: Mapping[str, float]) -> None:
        for reported, value in values.items():
            for metric, labels in find_metrics(reported):
                self._set(metric.name, value * metric.scale, stage=stage, **dict(labels))
        if step_seconds := values.get("system/step_seconds"):
            interval = step_seconds * self.compute.checkpoint_every_steps
            self._set("checkpoint_interval_seconds", interval, stage=stage)
        if (valid := values.get("system/checkpoint_valid")) is not None:
            for result, more in (("valid", valid), ("failed", 1.0 - valid)):
                key = ("checkpoints_total", self.run, stage, result)
                count = self._values.get(key, 0.0) + more
                self._set("checkpoints_total", count, stage=stage, result=result)
            if valid:
                self._set("checkpoint_timestamp_seconds", time.time(), stage=stage)

    def _refresh(self, running: set[str]) -> None:
        # Ray exports only gauges that were set since its last export, which runs every ten seconds.
        for (name, *values), value in list(self._values.items()):
            metric = _BY_NAME[name]
            labels = dict(zip(metric.labels, values, strict=True))
            if not metric.passing or labels["stage"] in running:
                self._gauges[name].set(value, labels)

    def _count_nodes(self) -> None:
        import ray

        nodes = ray.nodes()
        deaths = {node["NodeID"]: node["DeathReason"] for node in nodes if not node["Alive"]}
        if self._initial_deaths is None:
            self._initial_deaths = set(deaths)
        new = deaths.keys() - self._initial_deaths
        reasons = Counter(_DEATHS.get(deaths[node], "unknown") for node in new)
        self._set("nodes", len(nodes) - len(deaths))
        for reason in _DEATHS.values():
            self._set("nodes_lost_total", reasons[reason], reason=reason)

    def _set(self, name: str, value: float, **labels: str) -> None:
        from ray.util.metrics import Gauge

        metric = _BY_NAME[name]
        tags = {"run": self.run, **labels}
        key = (name, *(tags[label] for label in metric.labels))
        if name.endswith("_total"):
            # Steps repeated after a crash are counted once.
            value = max(value, self._values.get(key, 0.0))
        self._values[key] = value
        if name not in self._gauges:
            self._gauges[name] = Gauge(PREFIX + name, metric.meaning, metric.labels)
        self._gauges[name].set(value, tags)
