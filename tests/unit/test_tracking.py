"""Tracking against a real MLflow store: one run a key, nothing lost, nothing doubled."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from rungwise.__main__ import main
from rungwise.core.configuration.secrecy import without_password
from rungwise.core.exit_codes import OK, USER_ERROR
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.sender import KEY_TAG, NOTE_TAG, PARENT_TAG, RUN_ID
from rungwise.core.tracking.store import default_uri
from rungwise.core.tracking.tracker import Synced, Tracker, sync


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mlflow.db"


def runs(uri: str) -> dict[str, Run]:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("test")
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
    assert "its verdict" in experiment.tags[NOTE_TAG]
    assert len(child.data.params["long"]) == 6000
    assert points(uri, child, "loss") == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert [f.path for f in MlflowClient(uri).list_artifacts(child.info.run_id)] == ["page.html"]
    assert not list((tmp_path / "spool").glob("*.jsonl"))


def test_a_run_that_is_taken_up_again_is_the_same_run_and_replayed_steps_appear_once(
    uri: str, tmp_path: Path
) -> None:
    for steps in (range(5), range(3, 8)):  # the second attempt goes on from step 3
        tracker = Tracker(uri, "test", tmp_path / "spool")
        # A key that is only watched has another value; MLflow never changes a parameter.
        tracker.open("stage", "child", params={"every": steps[0], f"from_{steps[0]}": 1})
        for step in steps:
            tracker.metrics("stage", {"loss": float(step)}, step)
        assert tracker.finish(60) == 0
    stored = runs(uri)["stage"]
    assert points(uri, stored, "loss") == [(step, float(step)) for step in range(8)]
    assert stored.data.params == {"every": "0", "from_0": "1", "from_3": "1"}


def test_a_server_that_is_away_costs_nothing_and_gets_everything_later(
    uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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
    with pytest.raises(ConnectionError):
        sync(uri, tmp_path / "spool")  # they were not meant for it
    command = ["sync", "quickstart", f"root={tmp_path}", f"tracking.uri={uri}"]
    (tmp_path / "spool").rename(tmp_path / "tracking")
    assert main(command) == USER_ERROR
    assert f"{away} does not take 13 events" in capsys.readouterr().err
    assert main([*command, "--instead-of", away]) == OK
    assert "13 events sent to sqlite:" in capsys.readouterr().out
    assert main(command) == OK
    assert f"nothing to send in {tmp_path}/tracking" in capsys.readouterr().out
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
    assert sync(uri, tmp_path) == Synced({}, live=1)
    busy.finish(0.1)


def test_an_event_the_server_refuses_does_not_block_those_behind_it(
    uri: str, tmp_path: Path
) -> None:
    tracker = Tracker(uri, "test", tmp_path / "spool")
    tracker.open("stage", "child", params={"rate": 1})
    tracker.open("stage", "child", params={"no\tname": 2})
    tracker.metrics("unknown", {"loss": 1.0}, 0)
    tracker.metrics("stage", {"loss": 1.0}, 0)
    assert tracker.finish(60) == 0
    assert points(uri, runs(uri)["stage"], "loss") == [(0, 1.0)]


def test_the_store_is_the_server_if_one_is_set_else_below_the_root(tmp_path: Path) -> None:
    assert default_uri(Folder.at(tmp_path), "http://x") == "http://x"
    assert default_uri(Folder.at(tmp_path), None) == f"sqlite:///{tmp_path}/mlflow.db"


def test_a_password_is_not_shown() -> None:
    for shown, uri in {
        "http://host:1/x": "http://me:secret@host:1/x",
        "postgresql://db/mlflow": "postgresql://me:a/b?c@d@db/mlflow",
        "s3://bucket/a@b/c": "s3://bucket/a@b/c",
        "https://b.s3/x?X-Amz-Signature=...&part=2": "https://b.s3/x?X-Amz-Signature=0f&part=2",
        "http://h/?a=1&access_token=...": "http://h/?a=1&access_token=xyz",
        "from http://h/x and s3://b/y": "from http://u:p@h/x and s3://b/y",
    }.items():
        assert without_password(uri) == shown
