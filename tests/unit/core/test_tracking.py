"""Tracking against a real MLflow store: one run a key, nothing lost, nothing doubled."""

import contextlib
import io
import json
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from rich.console import Console

from rungwise.__main__ import main
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.exit_codes import FAILED, USER_ERROR
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking import sender as sending
from rungwise.core.tracking import tracker as tracking
from rungwise.core.tracking.sender import KEY_TAG, NOTE_TAG, PARENT_TAG, RUN_ID
from rungwise.core.tracking.store import default_uri, find_database, hide_credentials, open_store
from rungwise.core.tracking.tracker import Tracker, sync
from rungwise.pipeline import runner
from tests.conftest import Cli
from tests.waiting import wait_until


def runs(uri: str, experiment_name: str = "test") -> dict[str, Run]:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(experiment_name)
    assert experiment is not None
    stored = client.search_runs([experiment.experiment_id])
    keys = [run.data.tags[KEY_TAG] for run in stored]
    assert len(keys) == len(set(keys)), "a run is doubled"
    return dict(zip(keys, stored, strict=True))


def points(uri: str, run: Run, name: str) -> list[tuple[int, float]]:
    history = MlflowClient(uri).get_metric_history(run.info.run_id, name)
    return sorted((point.step, point.value) for point in history)


def test_runs_are_nested_and_hold_what_was_reported(uri: str, tmp_path: Path) -> None:
    tracker = Tracker(uri, "test", tmp_path / "spool")
    tracker.open("run", "parent", tags={"a": "b"})
    tracker.open("stage", "child", parent="run", params={"rate": 0.1, "long": "x" * 10_000})
    for step in range(3):
        tracker.metrics("stage", {"loss": 3.0 - step}, step)
    (tmp_path / "page.html").write_text("hello")
    tracker.artifact("stage", str(tmp_path / "page.html"))
    for _ in range(2):  # as by a run that is taken up again
        tracker.datasets("stage", {"corpus": ("0123456789abcdef" * 4, "/root/corpus/x")})
    tracker.params("stage", {"rate": 0.2, "parameters": 5})  # the first value stays
    tracker.tags("run", {NOTE_TAG: f"**above** ![loss](get-artifact?run_uuid={RUN_ID})"})
    tracker.close("stage", "FINISHED")
    assert tracker.finish(60) == 0
    by_key = runs(uri)
    child, parent = by_key["stage"], by_key["run"]
    assert child.inputs is not None
    [entry] = child.inputs.dataset_inputs
    assert (entry.dataset.name, entry.dataset.digest) == ("corpus", ("0123456789abcdef" * 4)[:36])
    assert child.data.tags[PARENT_TAG] == parent.info.run_id
    assert child.info.status == "FINISHED"
    assert parent.info.status == "RUNNING"
    assert child.data.params["rate"] == "0.1"
    assert child.data.params["parameters"] == "5"
    assert parent.data.tags[NOTE_TAG].endswith(f"(get-artifact?run_uuid={parent.info.run_id})")
    experiment = MlflowClient(uri).get_experiment_by_name("test")
    assert experiment is not None
    views = re.findall(
        rf"#/experiments/{experiment.experiment_id}/runs\?viewStateShareKey=(\w+)",
        experiment.tags[NOTE_TAG],
    )
    assert len(views) == 2
    for view in views:
        saved = json.loads(experiment.tags[f"mlflow.sharedViewState.{view}"])
        MlflowClient(uri).search_runs(
            [experiment.experiment_id], json.loads(saved["state"])["searchFilter"]
        )
    assert len(child.data.params["long"]) == 6000
    assert points(uri, child, "loss") == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert [f.path for f in MlflowClient(uri).list_artifacts(child.info.run_id)] == ["page.html"]
    assert not list((tmp_path / "spool").glob("*.jsonl"))


def test_a_server_that_is_away_costs_nothing_and_gets_everything_later(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{probe.getsockname()[1]}"
    tracker = Tracker(away, "test", tmp_path / "spool")
    tracker.open("run", "parent")
    tracker.open("stage", "child", parent="run")
    for step in range(10):
        tracker.metrics("stage", {"loss": float(step)}, step)
    tracker.close("stage", "FINISHED")
    assert tracker.finish(0.5) > 0
    tracker._file.close()  # as the end of the process does
    assert sync(uri, tmp_path / "spool") == 0  # they were not meant for it
    command = ["gc", "pretrain", "quickstart", f"root={tmp_path}", f"tracking.uri={uri}"]
    (tmp_path / "spool").rename(tmp_path / "tracking")
    refused = cli(*command[:-1], f"tracking.uri={away}", status=USER_ERROR)
    assert f"{away} does not take 13 events" in refused
    assert "13 events sent to sqlite:" in cli(*command, "--instead-of", away)
    assert "sent" not in cli(*command)
    stage = runs(uri)["stage"]
    assert points(uri, stage, "loss") == [(step, float(step)) for step in range(10)]
    assert stage.info.status == "FINISHED"


def test_what_a_killed_process_left_is_sent_by_the_next_one(uri: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    events = [
        {"op": "to", "uri": uri, "experiment": "test"},
        {"op": "open", "key": "old", "name": "n", "parent": None, "time": 1}
        | {"tags": {}, "params": {}},
        {"op": "metrics", "key": "old", "values": {"loss": 1.0}, "step": 0, "time": 2},
    ]
    text = "".join(json.dumps(event) + "\n" for event in events)
    text = text.replace("\n", "\nspoilt by a full disk\n", 1)
    (spool / "1.jsonl").write_text(text + '{"op": "metrics", "key": "ol')  # torn by the kill
    elsewhere = text.replace(uri, "http://127.0.0.1:9")
    (spool / "2.jsonl").write_text(elsewhere)  # another recipe's
    tracker = Tracker(uri, "test", spool)
    tracker.open("new", "n")
    assert tracker.finish(60) == 0
    assert runs(uri).keys() == {"old", "new"}
    assert points(uri, runs(uri)["old"], "loss") == [(0, 1.0)]
    assert [path.read_text() for path in spool.iterdir()] == [elsewhere]


def test_events_of_a_run_at_work_are_its_own_to_send(uri: str, tmp_path: Path) -> None:
    busy = Tracker("http://127.0.0.1:9", "test", tmp_path)
    busy.open("run", "parent")
    assert sync(uri, tmp_path) == 0
    busy.finish(0.1)


Failure = Literal["before its effect", "after its effect", "answered by another server"]


class Unreliable:
    """A client that fails once at each line of the sender that calls it, for each run and value:
    with an error before or after the call's effect, or because a server that is not MLflow's says
    that all is well. Given a kind of call, it fails at the first of this kind alone."""

    def __init__(self, client: MlflowClient, failure: Failure, only: str | None) -> None:
        self._client, self._failure, self._only = client, failure, only
        self.failed: dict[str, str] = {}  # the kinds of calls, by where they are made

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            kind = " ".join((name, *named))
            place = self._only or f"{sys._getframe(1).f_lineno} {arguments} {named}"
            reads = name.startswith(("get_", "search_", "list_"))
            can_fail = self._failure == "before its effect" or not reads  # which has no other
            fails = can_fail and self._only in (None, kind) and place not in self.failed
            if not fails:
                return getattr(self._client, name)(*arguments, **named)
            self.failed[place] = kind
            if self._failure == "answered by another server":
                # As MLflow's client reads a body without what it looks for.
                return "" if name == "create_experiment" else Mock(info=Mock(run_id=""))
            if self._failure == "after its effect":
                getattr(self._client, name)(*arguments, **named)
            raise ConnectionError(name)

        return call


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(tracking, "_LAST_RETRY_SECONDS", 0.0)


def test_a_client_that_fails_at_any_one_call_loses_and_doubles_nothing(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    """Of each of two drivers, the second of which goes on from step 1.

    An answer of another server stands alone: another loss would have everything sent again.
    """
    store = open_store(uri)
    (tmp_path / "page.html").write_text("hello")
    monkeypatch.setattr(tracking, "_LAST_TRIES", 100)

    def attempt(failure: Failure, *only: str | None) -> list[list[str]]:
        """The kinds of calls at which the client of each driver failed."""
        experiment, clients = f"test {failure} {only}", list[Unreliable]()
        for kind, steps in zip(only, (range(2), range(1, 3)), strict=True):
            client = Unreliable(store, failure, kind)
            clients.append(client)
            monkeypatch.setattr(sending, "open_store", lambda _, client=client: client)
            tracker = Tracker(uri, experiment, tmp_path / "spool", f"driver{steps[0]}")
            tracker.open("run", "parent", tags={"a": "b"})
            tracker.open("stage", "child", parent="run", params={"rate": 0.1})
            tracker.datasets("stage", {"corpus": ("0123", "/root/corpus/x")})
            for step in steps:
                tracker.metrics("stage", {"loss": float(step), "accuracy": 0.5}, step)
            tracker.tags("stage", {"note": "x"})
            tracker.artifact("stage", str(tmp_path / "page.html"))
            tracker.close("stage", "FINISHED")
            tracker.close("run", "FINISHED")
            assert tracker.finish(60) == 0, client.failed
        by_key, case = runs(uri, experiment), (failure, only)
        child, parent = by_key["stage"], by_key["run"]
        assert len(by_key) == 2
        assert points(uri, child, "loss") == [(step, float(step)) for step in range(3)], case
        assert points(uri, child, "accuracy") == [(step, 0.5) for step in range(3)], case
        assert (child.info.status, parent.info.status) == ("FINISHED", "FINISHED"), case
        assert child.data.tags.items() >= {PARENT_TAG: parent.info.run_id, "note": "x"}.items()
        assert child.data.params == {"rate": "0.1"}, case
        assert child.inputs is not None
        assert len(child.inputs.dataset_inputs) == 1, case
        assert [file.path for file in store.list_artifacts(child.info.run_id)] == ["page.html"]
        return [list(dict.fromkeys(client.failed.values())) for client in clients]

    attempt("before its effect", None, None)
    kinds, _ = attempt("after its effect", None, None)
    assert len(kinds) == 10
    for kind in kinds:  # of both, since the second would make up for what the first lost
        attempt("answered by another server", kind, kind)
    assert not list((tmp_path / "spool").glob("*.jsonl"))


def record(tracker: Tracker, steps: Iterable[int]) -> None:
    for step in steps:
        tracker.metrics("stage", {"loss": float(step)}, step)


@pytest.mark.parametrize(
    ("new", "moments"),
    # It makes a difference for a run that is opened.
    [("empty", [1]), ("with another experiment under its number", [0, 1, 2])],
)
def test_a_server_that_comes_back_empty_gets_everything_again(
    empty_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_once: None,
    new: str,
    moments: list[int],
) -> None:
    stores = [f"sqlite:///{shutil.copy(empty_store, tmp_path / name)}" for name in ("old", "new")]
    clients: list[Any] = [open_store(uri) for uri in stores]
    if new != "empty":
        clients[1].create_experiment("of somebody else")
    current = [clients[0]]

    class Server:
        def __getattr__(self, name: str) -> Any:
            return getattr(current[0], name)

    monkeypatch.setattr(sending, "open_store", lambda _: Server())
    for moment in moments:
        current[0] = clients[0]
        experiment = f"test {moment}"
        spool = tmp_path / f"spool {moment}"
        tracker = Tracker(stores[0], experiment, spool)
        tracker.open("run", "parent")
        tracker.open("stage", "child", parent="run", params={"rate": 0.1})
        record(tracker, range(5))
        wait_until("the last event", lambda tracker=tracker: tracker.waiting == 0)
        current[0] = clients[1]
        if moment == 0:
            record(tracker, range(5, 9))
        elif moment == 1:
            tracker.open("more", "child", parent="run")
            record(tracker, range(5, 9))
        else:  # what is left in the spool is sent by another process
            monkeypatch.setattr(tracker._sender, "_send", lambda *_: 1 / 0)
            record(tracker, range(5, 9))
        tracker.close("stage", "FINISHED")
        tracker.close("run", "FINISHED")
        if moment == 2:
            assert tracker.finish(30) == 6
            assert sync(stores[0], spool) == 13
        else:
            assert tracker.finish(30) == 0
        by_key = runs(stores[1], experiment)
        assert points(stores[1], by_key["stage"], "loss") == [(n, float(n)) for n in range(9)]
        assert by_key["stage"].data.tags[PARENT_TAG] == by_key["run"].info.run_id
        assert by_key["stage"].data.params == {"rate": "0.1"}
        assert {run.info.status for key, run in by_key.items() if key != "more"} == {"FINISHED"}


def test_a_database_that_is_removed_under_a_run_is_made_and_filled_again(
    uri: str, tmp_path: Path, at_once: None
) -> None:
    tracker = Tracker(uri, "test", tmp_path / "spool")
    tracker.open("stage", "child")
    record(tracker, range(5))
    wait_until("the last event", lambda: tracker.waiting == 0)
    (tmp_path / "mlflow.db").unlink()
    record(tracker, range(5, 9))
    assert tracker.finish(60) == 0
    assert points(uri, runs(uri)["stage"], "loss") == [(n, float(n)) for n in range(9)]


def test_what_another_server_took_for_mlflow_is_counted_and_sent_again(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    """Points go nowhere until MLflow is back; while it is not, nothing counts as sent."""
    client = open_store(uri)
    away = Mock(wraps=client, **{"log_batch.side_effect": None, "log_batch.return_value": None})
    current = [away]
    monkeypatch.setattr(sending, "open_store", lambda _: current[0])
    tracker = Tracker(uri, "test", tmp_path / "spool")
    tracker.open("stage", "child")
    record(tracker, range(80))
    assert tracker.finish(60) == 81
    assert "it has 2 of 82 values that it was sent" in tracker.fault  # two of them tags
    current[0] = client
    assert sync(uri, tmp_path / "spool") == 81
    assert points(uri, runs(uri)["stage"], "loss") == [(n, float(n)) for n in range(80)]
    assert not list((tmp_path / "spool").iterdir())


def test_a_run_that_a_user_deletes_is_said_once_and_holds_up_no_other(
    uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Tracker(uri, "test", tmp_path / "spool")
    for key in ("other", "stage"):
        tracker.open(key, key)
    wait_until("the last event", lambda: tracker.waiting == 0)
    deleted = runs(uri)["stage"].info.run_id
    open_store(uri).delete_run(deleted)
    record(tracker, range(3))
    tracker.close("stage", "FINISHED")
    tracker.metrics("other", {"loss": 1.0}, 0)
    assert tracker.finish(60) == 0
    assert points(uri, runs(uri)["other"], "loss") == [(0, 1.0)]
    [said] = [row.getMessage() for row in caplog.records if row.name == sending.__name__]
    assert f"the MLflow run {deleted} of stage was deleted" in said
    again = Tracker(uri, "test", tmp_path / "spool")
    again.open("stage", "child")
    assert again.finish(60) == 0
    assert runs(uri)["stage"].info.run_id != deleted
    assert caplog.messages[-1] == "the MLflow run of stage was deleted; a new one is made"


def test_names_and_values_that_mlflow_refuses_are_mended_one_by_one(
    uri: str, tmp_path: Path
) -> None:
    names = ["wiki (en)", "C++", "C#", "C--", "R&D (misc)", "../up", "/top//x/", "a" * 300]
    names += ["", "tab\tline\n", "snö/ä b:c.d-e_f", "50 %", ".", "a/../b"]
    values = dict(zip(names, range(len(names)), strict=True))
    tracker = Tracker(uri, "test", tmp_path / "spool")
    tracker.open("it's/a run (1)", "x" * 300, tags=dict.fromkeys(names, "t\0\ud800"), params=values)
    tracker.metrics("it's/a run (1)", values, 0)
    tracker.datasets("it's/a run (1)", {"n" * 600: ("0" * 50, "s" * 70_000)})
    assert tracker.finish(60) == 0
    (run,) = runs(uri).values()
    assert len(run.data.metrics) == len(run.data.params) == len(names)
    assert sorted(run.data.metrics.values()) == sorted(map(float, values.values()))
    assert (run.data.metrics["C--"], run.data.metrics["snö/ä b:c.d-e_f"]) == (3.0, 10.0)
    assert len(run.data.tags.keys() & run.data.params.keys()) == len(names)
    assert run.inputs is not None
    assert len(run.inputs.dataset_inputs) == 1


def test_of_a_batch_only_what_is_refused_is_lost(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sending, "acceptable_name", lambda name: name)
    tracker = Tracker(uri, "test", tmp_path / "spool")
    tracker.open("stage", "child", params={"rate": 1, "no\tname": 2, "more": 3})
    tracker.metrics("stage", {"a": 1.0, "b(": 2.0, "c": 3.0, "d": 4.0}, 0)
    assert tracker.finish(60) == 0
    run = runs(uri)["stage"]
    assert run.data.params == {"rate": "1", "more": "3"}
    assert run.data.metrics == {"a": 1.0, "c": 3.0, "d": 4.0}
    names = [record.args[0] for record in caplog.records if isinstance(record.args, tuple)]
    assert names == ["no\tname", "b("]


def test_a_deleted_experiment_keeps_the_events_and_is_named(
    uri: str, tmp_path: Path, at_once: None
) -> None:
    client = open_store(uri)
    number = client.create_experiment("test")
    client.delete_experiment(number)
    tracker = Tracker(uri, "test", tmp_path / "spool")
    tracker.open("stage", "child")
    assert tracker.finish(60) == 1
    assert "the experiment test is deleted" in tracker.fault
    client.restore_experiment(number)
    assert sync(uri, tmp_path / "spool") == 1
    assert runs(uri).keys() == {"stage"}


def test_runs_of_a_driver_that_was_killed_are_ended_and_no_others(uri: str, tmp_path: Path) -> None:
    """A run that a later driver has opened is that driver's."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    killed = Tracker(uri, "test", here, "1")
    for key in ("run", "old", "done"):
        killed.open(key, key)
    killed.close("done", "FINISHED")
    wait_until("the last event", lambda: killed.waiting == 0)
    killed._file.close()  # as the end of the process does
    later = Tracker(uri, "test", elsewhere, "2")
    later.open("run", "run")
    wait_until("the last event", lambda: later.waiting == 0)
    assert sync(uri, here) == 5
    assert {key: run.info.status for key, run in runs(uri).items()} == {
        "run": "RUNNING",
        "old": "KILLED",
        "done": "FINISHED",
    }
    finder = Tracker(uri, "test", here, "3")
    finder.end_abandoned("2")
    assert finder.finish(60) == 0
    later.close("run", "FINISHED")
    assert later.finish(60) == 0
    latest = Tracker(uri, "test", here, "4")
    latest.open("run", "run")
    assert latest.finish(60) == 0
    late = Tracker(uri, "test", elsewhere, "3")
    late.close("run", "FAILED")
    assert late.finish(60) == 0
    assert runs(uri)["run"].info.status == "RUNNING"


def test_an_idle_run_ends_the_runs_of_a_killed_driver(uri: str, tmp_path: Path) -> None:
    code = """
import os, sys
from rungwise.core.stages.lease import register_driver
from rungwise.core.storage.folder import Folder
with register_driver(Folder.at(sys.argv[1])) as driver:
    print(driver.id, flush=True)
    os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    tracker = Tracker(uri, "test", tmp_path / "killed", ended.stdout.strip())
    tracker.open("run", "run")
    assert tracker.finish(60) == 0
    assert runs(uri)["run"].info.status == "RUNNING"
    [_] = tmp_path.glob(".*.lease")
    outcome = runner.run(
        [],
        Folder.at(tmp_path),
        "toy",
        ComputeConfig(),
        lambda driver: Tracker(uri, "test", tmp_path / "spool", driver),
        Console(file=io.StringIO()),
    )
    assert outcome.untracked_events == 0
    assert runs(uri)["run"].info.status == "KILLED"
    assert not list(tmp_path.glob(".*.lease"))


def test_a_kill_while_the_store_is_made_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    code = """
import os, signal, sqlite3, sys
from pathlib import Path
from mlflow.store.tracking import sqlalchemy_store
from rungwise.core.tracking import sender
statements = 0
class Connection(sqlite3.Connection):
    def cursor(self, factory=sqlite3.Cursor):
        return super().cursor(Cursor)
class Cursor(sqlite3.Cursor):
    def execute(self, *arguments):
        global statements
        statements += 1
        if statements == last:
            os.kill(os.getpid(), 9)
        return super().execute(*arguments)
connect = sqlite3.connect
sqlite3.connect = sqlite3.dbapi2.connect = (
    lambda *arguments, **named: connect(*arguments, **{**named, "factory": Connection})
)
database = Path(sys.argv[1])
for last in (1, 120):
    if (child := os.fork()) == 0:
        sender.make_store(f"sqlite:///{database}")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert not database.exists()
"""
    database = tmp_path / "mlflow.db"
    subprocess.run([sys.executable, "-c", code, str(database)], check=True)


def test_a_database_that_never_opens_is_named(
    empty_store: Path,
    tmp_path: Path,
    cli: Cli,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    at_once: None,
) -> None:
    database = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("create table experiments (half made)")
        connection.execute("create table alembic_version (version_num varchar(32))")
        connection.execute("insert into alembic_version values ('of no version')")
        connection.commit()
    tracker = Tracker(f"sqlite:///{database}", "test", tmp_path / "tracking")
    tracker.open("run", "run")
    assert tracker.finish(60) == 1
    assert f"cannot open its database {database}" in tracker.fault
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["doctor", "quickstart", f"root={tmp_path}"]) == FAILED
    [finding] = [line for line in capsys.readouterr().out.splitlines() if " MLflow " in line]
    assert str(database) in finding
    assert "move it away" in finding
    message = cli("gc", "pretrain", "quickstart", f"root={tmp_path}", status=USER_ERROR)
    assert f"cannot open its database {database}" in message
    assert "password" not in message
    shutil.copy(empty_store, database)
    said = cli("gc", "pretrain", "quickstart", f"root={tmp_path}")
    assert f"1 event sent to sqlite:///{database}" in said


def test_the_store_is_below_the_root_whatever_its_name(tmp_path: Path) -> None:
    name = "a%2Fb snö?b=c#d 50%"
    root = tmp_path / name
    uri = default_uri(Folder.at(root), None)
    tracker = Tracker(uri, "test", root / "tracking")
    tracker.open("run", "run")
    (tmp_path / "page.html").write_text("hello")
    tracker.artifact("run", str(tmp_path / "page.html"))
    assert tracker.finish(60) == 0
    assert find_database(uri) == root / "mlflow.db"
    assert {path.name for path in tmp_path.iterdir()} == {name, "page.html"}
    [run] = runs(uri).values()
    [page] = (root / "mlartifacts").rglob("page.html")
    assert page.is_relative_to(root / "mlartifacts" / run.info.run_id)


def test_a_server_is_known_without_its_password_and_a_file_by_its_whole_path() -> None:
    assert hide_credentials("http://me:secret@host:1/x") == "http://host:1/x"
    assert hide_credentials("postgresql://me:a/b?c@d@db/mlflow") == "postgresql://db/mlflow"
    file = "sqlite:////runs/password=one/mlflow.db"
    assert hide_credentials(file) == file
