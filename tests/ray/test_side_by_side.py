"""Stages of a run at once, drivers that want the same artifacts, and processes that are killed."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from rich.console import Console

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import StageFailed
from rungwise.core.stages import lease as leases
from rungwise.core.stages.lease import Lease
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.tracker import Tracker
from rungwise.pipeline import runner
from rungwise.training.ray.resume_proof import kill_with_children
from tests.faults.raylets import raylets
from tests.killed_stage import KILLED, KilledConfig
from tests.ray.side_by_side_job import STEPS, Calls, rows, run, stages
from tests.waiting import wait_until

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
TITLES = ["first", "left", "right", "last", "alone"]


def started(folder: Path) -> list[str]:
    return [row["stage"] for row in rows(folder / "log", "start")]


def overlap(folder: Path, one: str, other: str) -> float:
    """For how many seconds two stages ran at once."""
    begins = [row["time"] for row in rows(folder / "log", "start") if row["stage"] in (one, other)]
    ends = [row["time"] for row in rows(folder / "log", "end") if row["stage"] in (one, other)]
    return min(ends) - max(begins)


@pytest.fixture
def shown() -> Console:
    return Console(file=io.StringIO(), width=300)


def lines(console: Console) -> list[list[str]]:
    assert isinstance(console.file, io.StringIO)
    rows = [line.split(maxsplit=2) for line in console.file.getvalue().splitlines()]
    return [words for words in rows if words[0] in TITLES]


@pytest.mark.slow
def test_two_independent_stages_overlap(ray_session: None, tmp_path: Path, shown: Console) -> None:
    calls = Calls()
    # Each waits for the other's start, which on a busy machine is long after its own.
    meeting = {"left": {"meets": "right"}, "right": {"meets": "left"}}
    made = stages(tmp_path, seconds=2.0, **meeting)[:4]
    outcome = run(tmp_path, made, "x", 2, calls, shown)
    print(f"overlap of two stages of 2 s: {overlap(tmp_path, 'left', 'right'):.2f} s")
    assert overlap(tmp_path, "left", "right") > 0
    titles = TITLES[:4]
    assert list(outcome.artifacts) == titles
    assert outcome.built == tuple(titles)
    states = [(words[0], words[1]) for words in lines(shown)]
    assert set(states) == {(title, state) for title in titles for state in ("running", "done")}
    assert set(calls.opened) == set(calls.closed)
    assert set(calls.closed.values()) == {"FINISHED"}
    assert not [name for name in Folder.at(tmp_path / "root").names() if "lease" in name]
    # One at a time, and nothing anew.
    assert run(tmp_path, made, "y", 1, Calls(), shown).built == ()
    assert sorted(started(tmp_path)) == sorted(titles)


def test_a_failure_ends_what_needs_it(ray_session: None, tmp_path: Path, shown: Console) -> None:
    calls = Calls()
    made = stages(tmp_path, seconds=0.5, left={"error": "it broke"}, alone={"error": "it tore"})
    with pytest.raises(StageFailed) as failure:
        run(tmp_path, made, "x", 3, calls, shown)
    # `alone` is free to fail first.
    message = str(failure.value)
    assert message.startswith("the stage alone failed: ")
    assert message.endswith("failed: it tore; failed as well: left; not built: last")
    assert [row["stage"] for row in rows(tmp_path / "log", "end")] == ["first", "right"]
    last = [words for words in lines(shown) if words[0] == "last"]
    assert last == [["last", "not", "built 0:00 it needs left, which failed"]]
    told = [words[2] for words in lines(shown) if words[:2] == ["left", "failed"]]
    assert len(told) == 1
    assert told[0].endswith("it broke")
    assert "Error" not in told[0]
    by_title = {stage.display_name: f"{stage.name}-{stage.fingerprint}" for stage in made}
    closed = {title: calls.closed.get(key) for title, key in by_title.items()}
    assert closed == {
        "first": "FINISHED",
        "left": "FAILED",
        "right": "FINISHED",
        "last": None,
        "alone": "FAILED",
    }
    mended = run(tmp_path, stages(tmp_path, seconds=0.1), "x", 2, Calls(), shown)
    assert mended.built == ("left", "last", "alone")
    assert started(tmp_path).count("right") == 1


def test_an_interrupt_ends_all_that_runs(ray_session: None, tmp_path: Path, shown: Console) -> None:
    made = stages(tmp_path, 1.0, left={"meets": "right"}, right={"meets": "left"})

    class Interrupted(Calls):
        def metrics(self, key: str, values: Any, step: int) -> None:
            if {"left", "right"} <= set(started(tmp_path)):
                raise KeyboardInterrupt

    calls = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, made, "x", 3, calls, shown)
    assert sorted(calls.closed.values())[-3:] == ["KILLED"] * 3  # left, right and the parent
    assert set(calls.opened) == set(calls.closed)
    assert not [name for name in Folder.at(tmp_path / "root").names() if "lease" in name]


def test_a_driver_waits_for_another_and_takes_over_when_it_is_gone(
    ray_session: None, tmp_path: Path, shown: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other, far away, is not heard of again."""
    monkeypatch.setattr(leases, "EXPIRY_SECONDS", 2.0)
    monkeypatch.setattr(leases, "BEAT_SECONDS", 3600.0)
    monkeypatch.setattr(runner, "_RETRY_SECONDS", 0.3)
    made = stages(tmp_path, seconds=0.1)
    lease = Lease(Folder.at(tmp_path / "root" / "toy"), made[0].fingerprint)
    assert lease.take()
    (name,) = (tmp_path / "root" / "toy").glob(".*.lease")
    holder = json.loads(name.read_text())
    name.write_text(json.dumps(holder | {"machine": "another", "host": "far"}))
    began = time.monotonic()
    outcome = run(tmp_path, made, "x", 1, Calls(), shown)
    assert outcome.built == tuple(TITLES)
    assert time.monotonic() - began > 2.0
    waited = [words for words in lines(shown) if words[:2] == ["first", "waiting"]]
    assert waited == [["first", "waiting", f"0:00 for process {os.getpid()} on far to build it"]]
    # What does not wait goes on meanwhile.
    assert started(tmp_path)[0] == "alone"
    lease.release()


def command(
    folder: Path, label: str, concurrent: int, seconds: float, number: int = len(TITLES)
) -> list[str]:
    job = str(Path(__file__).with_name("side_by_side_job.py"))
    return [sys.executable, job, str(folder), label, str(concurrent), str(seconds), str(number)]


@contextmanager
def driver(arguments: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        arguments,
        env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        kill_with_children(process.pid)
        process.wait()


def output(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    text = process.stdout.read()
    assert process.wait(200) == 0, text
    return text


def test_of_two_drivers_one_builds_each_stage(
    ray_session: None, tmp_path: Path, shown: Console
) -> None:
    """One of them here; with labels of their own, which would name folders of their own."""
    environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    with driver(command(tmp_path, "two", 2, 0.3), environment) as other:
        assert other.stdout
        assert other.stdout.readline() == "joined\n"
        outcome = run(tmp_path, stages(tmp_path, 0.3), "one", 1, Calls(), shown)
        told = output(other)
    assert sorted(started(tmp_path)) == sorted(TITLES), told
    assert len(list((tmp_path / "root" / "toy").glob("*/artifact.json"))) == len(TITLES)
    assert len(list((tmp_path / "root" / "toy").iterdir())) == len(TITLES)
    built = [title for title in told.splitlines()[-1].split()[2:] if title != "nothing"]
    assert sorted([*outcome.built, *built]) == sorted(TITLES)


@pytest.mark.slow
def test_a_node_and_the_driver_are_killed_while_two_stages_run(tmp_path: Path) -> None:
    with raylets(HEAD, OTHER) as cluster:
        arguments = command(tmp_path, "x", 2, 8.0, 4)  # all but `alone`
        with driver(arguments, cluster.environment) as process:
            wait_until(
                "both stages",
                lambda: {"left", "right"} <= set(started(tmp_path)),
                code=process.poll,
            )
            running = rows(tmp_path / "log", "start")[-2:]
            assert len({row["node"] for row in running}) == 2
            time.sleep(2)
            cluster.kill(OTHER)
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert [row["stage"] for row in rows(tmp_path / "log", "end")] == ["first"]
        with driver(arguments, cluster.environment) as process:
            text = output(process)
    assert text.splitlines()[-1].split()[2:] == ["left", "right", "last"]
    resumed = {row["stage"]: row["steps"] for row in rows(tmp_path / "log", "start")}
    assert 0 < resumed["left"] < STEPS
    assert 0 < resumed["right"] < STEPS
    ended = [row["stage"] for row in rows(tmp_path / "log", "end")]
    assert sorted(ended) == sorted(TITLES[:4])


@pytest.mark.parametrize(
    ("what", "message", "notes"),
    [
        ("board", "the last reports are lost: the process that carries them was killed", 4),
        ("board for good", "no more reports come: the process that carries them was killed", 1),
        ("stage", "its process was killed, also when it was started again", 3),
        # It trains itself, so that it is started again as often as a worker would be.
        ("stage once", "done", 5),
    ],
)
def test_a_killed_process_is_said_once_and_costs_no_more_than_it_must(
    uri: str, tmp_path: Path, ray_session: None, what: str, message: str, notes: int
) -> None:
    stage = KILLED.stage(KilledConfig.model_validate({"what": what}))
    out = io.StringIO()

    def tracker(driver: str) -> Tracker:
        return Tracker(uri, "test", tmp_path / "spool", driver)

    def run() -> runner.Outcome:
        console = Console(file=out, width=200)
        return runner.run([stage], Folder.at(tmp_path), "toy", ComputeConfig(), tracker, console)

    if what == "stage":
        with pytest.raises(StageFailed, match=message):
            run()
    else:
        assert run().built == ("killed",)
    text = out.getvalue()
    assert text.count(message) == 1
    assert text.count("note     before") + text.count("note     after") == notes
    assert "Traceback" not in text
