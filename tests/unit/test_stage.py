"""Fingerprints, records and plans: what enters, what does not, and what is said about a rebuild."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rungwise.core import artifact as artifacts
from rungwise.core.config import Config
from rungwise.core.errors import DataError
from rungwise.core.stage import Stage, plan
from rungwise.core.storage import Folder


class Settings(Config):
    value: int = 1
    place: str = "here"


def nothing(*_: Any) -> dict[str, Any]:
    return {}


def chain(first: int = 1, second: int = 1, third: int = 1, version: int = 1) -> list[Stage]:
    """a -> b -> c, and d that depends on a alone."""
    a = Stage("a", version, nothing, Settings(value=first))
    b = Stage("b", 1, nothing, Settings(value=second), inputs={"a": a})
    c = Stage("c", 1, nothing, Settings(value=third), inputs={"b": b})
    d = Stage("d", 1, nothing, Settings(), inputs={"a": a})
    return [a, b, c, d]


def build(stages: list[Stage], root: Folder, label: str = "x") -> None:
    for row in plan(stages, root, label):
        if row.artifact is None:
            row.folder.write_bytes("data", row.stage.name.encode())
            record = {
                "stage": row.stage.name,
                "label": label,
                "fingerprint": row.stage.fingerprint,
                "facts": row.stage.facts,
                "summary": {},
                "finished": "2026-01-01",
            }
            artifacts.finish(row.folder, record, {})


def to_build(stages: list[Stage], root: Folder, label: str = "x") -> dict[str, str]:
    return {r.stage.name: r.reason for r in plan(stages, root, label) if r.artifact is None}


def test_one_changed_value_rebuilds_what_depends_on_it_and_says_which(tmp_path: Path) -> None:
    root = Folder.at(tmp_path)
    assert to_build(chain(), root) == dict.fromkeys("abcd", "never built")
    build(chain(), root)
    assert to_build(chain(), root) == {}
    assert to_build(chain(second=7), root) == {
        "b": "value 1 -> 7",
        "c": "its input b is rebuilt",
    }
    assert to_build(chain(first=7), root).keys() == set("abcd")
    assert to_build(chain(third=7), root) == {"c": "value 1 -> 7"}
    assert to_build(chain(version=2), root)["a"] == "version 1 -> 2"


def test_a_label_names_folders_but_rebuilds_nothing(tmp_path: Path) -> None:
    root = Folder.at(tmp_path)
    build(chain(), root, label="x")
    assert to_build(chain(), root, label="y") == {}
    assert plan(chain(), root, "y")[0].folder.uri.endswith(f"x-{chain()[0].fingerprint}")


def test_identity_and_outside_enter_and_what_they_leave_out_does_not() -> None:
    def stage(place: str, digest: str) -> Stage:
        settings = Settings(place=place)
        return Stage("a", 1, nothing, settings, identity={"value": 1}, outside={"text": digest})

    assert stage("here", "1").fingerprint == stage("there", "1").fingerprint
    assert stage("here", "1").fingerprint != stage("here", "2").fingerprint


def test_no_record_means_not_done_and_leftovers_of_a_killed_run_do_not_count(
    tmp_path: Path,
) -> None:
    root = Folder.at(tmp_path)
    row = plan(chain(), root, "x")[0]
    row.folder.write_bytes("data", b"half")
    assert "a" in to_build(chain(), root)


def test_a_stage_that_resumes_says_so(tmp_path: Path) -> None:
    root = Folder.at(tmp_path)
    stage = Stage("a", 1, nothing, Settings(), resumes=True)
    plan([stage], root, "x")[0].folder.write_bytes("checkpoints/1", b"x")
    assert to_build([stage], root) == {"a": "goes on where it was stopped"}


def test_a_changed_or_missing_file_is_found_by_verify(tmp_path: Path) -> None:
    root = Folder.at(tmp_path)
    build(chain(), root)
    found = artifacts.all_of(root, "a")[0]
    found.verify()
    found.folder.write_bytes("data", b"other")
    with pytest.raises(DataError, match="data has changed since it was written"):
        found.verify()
    found.folder.remove("data")
    with pytest.raises(DataError, match="is missing"):
        found.verify()


def test_a_torn_record_is_an_error_and_not_a_rebuild_in_silence(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path)
    folder.write_bytes(artifacts.RECORD, json.dumps({"stage": "a"}).encode()[:-4])
    with pytest.raises(DataError, match="is not a record"):
        artifacts.load(folder)


def test_digests_known_from_elsewhere_are_not_computed_again(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path)
    folder.write_bytes("x", b"1")
    record = {"stage": "a", "fingerprint": "f"}
    done = artifacts.finish(folder, record, {"x": "known elsewhere"})
    assert done.record["files"]["x"] == {"bytes": 1, "sha256": "known elsewhere"}
