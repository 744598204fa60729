"""Fingerprints, records and plans: what enters, what does not, and what is said about a rebuild."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from rungwise.__main__ import main
from rungwise.core.configuration.config import Config, validate
from rungwise.core.errors import DataError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages import provenance
from rungwise.core.stages.artifact import (
    Artifact,
    Summary,
    read_note,
    read_record,
    seal,
    write_note,
)
from rungwise.core.stages.stage import Stage, StageType, Title, plan
from rungwise.core.storage.folder import Folder
from rungwise.corpus.config import CorpusConfig
from rungwise.corpus.summary import CORPUS
from rungwise.pipeline import loading
from tests.conftest import Cli


class Settings(Config):
    value: int = 1
    place: str = "here"


class Nothing(Summary):
    numbers: dict[str, int | float] = Field(default_factory=dict)


def nothing(*_: Any) -> Nothing:
    return Nothing(headline="nothing")


def stage_type(name: str, version: int = 1, **changes: Any) -> StageType[Settings, Nothing]:
    return StageType(name, version, nothing, Nothing, **changes)


def chain(first: int = 1, second: int = 1, third: int = 1, version: int = 1) -> list[Stage]:
    """a -> b -> c, and d that depends on a alone."""
    a = stage_type("a", version).stage(Settings(value=first))
    b = stage_type("b").stage(Settings(value=second), {"a": a})
    c = stage_type("c").stage(Settings(value=third), {"b": b})
    d = stage_type("d").stage(Settings(), {"a": a})
    return [a, b, c, d]


def build(stages: list[Stage], root: Folder, label: str = "x") -> None:
    made: dict[str, Artifact] = {}
    for row in plan(stages, root, label):
        if row.artifact is not None:
            made[row.stage.fingerprint] = row.artifact
        else:
            inputs = {name: made[each.fingerprint] for name, each in row.stage.inputs.items()}
            row.folder.write_bytes("data", row.stage.name.encode())
            record = {
                "stage": row.stage.name,
                "title": row.stage.display_name,
                "label": label,
                "fingerprint": row.stage.fingerprint,
                "facts": row.stage.facts,
                "config": row.stage.config.model_dump(mode="json"),
                "recipe": {"compute": {}},
                "inputs": artifacts.describe_inputs(inputs),
                "summary": {"headline": "nothing"},
                "seconds": 1.0,
                "finished": "2026-01-01",
            }
            made[row.stage.fingerprint] = artifacts.finish(row.folder, record, {})


@pytest.fixture
def root(tmp_path: Path) -> Folder:
    """A root that holds the artifacts of `chain`."""
    build(chain(), Folder.at(tmp_path))
    return Folder.at(tmp_path)


def only(root: Folder, stage: str) -> Artifact:
    """The artifact of a stage."""
    [artifact] = artifacts.list_artifacts(root, stage)
    return artifact


def to_build(stages: list[Stage], root: Folder, label: str = "x") -> dict[str, str]:
    return {r.stage.display_name: r.reason for r in plan(stages, root, label) if r.artifact is None}


def test_one_changed_value_rebuilds_what_depends_on_it_and_says_which(tmp_path: Path) -> None:
    root = Folder.at(tmp_path)
    assert to_build(chain(), root) == dict.fromkeys("abcd", "first run")
    build(chain(), root)
    assert to_build(chain(), root) == {}
    assert to_build(chain(second=7), root) == {"b": "value 1 -> 7", "c": "other inputs: b"}
    assert to_build(chain(first=7), root).keys() == set("abcd")
    assert to_build(chain(third=7), root) == {"c": "value 1 -> 7"}
    assert to_build(chain(version=2), root)["a"] == "version 1 -> 2"


def test_a_stage_is_compared_with_an_earlier_build_of_its_own_title(tmp_path: Path) -> None:
    """And not with the build of another task, which may be closer."""

    def task(name: str, value: int, place: str) -> Stage:
        return stage_type("task").stage(
            Settings(value=value, place=place), title=Title("task", task=name)
        )

    root, squad = Folder.at(tmp_path), task("squad", 2, "there")
    build([task("sts-b", 1, "here")], root)
    assert to_build([squad], root) == {"task/squad": "first run"}
    assert to_build([task("squad", 3, "there")], root, "y") == {"task/squad": "first run"}
    build([squad], root)
    changed = [task("sts-b", 3, "there"), squad]
    assert to_build(changed, root) == {"task/sts-b": "place here -> there; value 1 -> 3"}


def test_a_label_names_folders_but_rebuilds_nothing(root: Folder) -> None:
    assert to_build(chain(), root, label="y") == {}
    assert plan(chain(), root, "y")[0].folder.uri.endswith(f"x-{chain()[0].fingerprint}")


def test_identity_and_outside_enter_and_what_they_leave_out_does_not() -> None:
    def stage(place: str, digest: str) -> Stage:
        reads: dict[str, Any] = {"identity": lambda config: {"value": config.value}}
        reads["outside"] = lambda config: {"text": digest}
        return stage_type("a", **reads).stage(Settings(place=place))

    assert stage("here", "1").fingerprint == stage("there", "1").fingerprint
    assert stage("here", "1").fingerprint != stage("here", "2").fingerprint


@pytest.mark.parametrize(
    ("resumes", "reason"), [(False, "first run"), (True, "goes on where it was stopped")]
)
def test_leftovers_of_a_run_are_no_artifact(tmp_path: Path, resumes: bool, reason: str) -> None:
    root = Folder.at(tmp_path)
    stage = stage_type("a", resumes=resumes).stage(Settings())
    plan([stage], root, "x")[0].folder.write_bytes("checkpoints/1", b"x")
    assert to_build([stage], root) == {"a": reason}


def test_what_was_changed_put_in_or_removed_is_found_by_verify_and_not_read(
    tmp_path: Path, root: Folder
) -> None:
    artifact = only(root, "a")
    artifact.verify()
    place = Path(artifact.folder.uri)
    (place / "more.pkl").write_bytes(b"x")
    with pytest.raises(DataError, match=r"more.pkl is not in the record"):
        artifact.verify()
    with pytest.raises(DataError, match=r"more.pkl is not in the record"):
        artifact.folder.read_bytes("more.pkl")
    (place / "more.pkl").unlink()
    (tmp_path / "same").write_bytes((place / "data").read_bytes())
    (place / "data").unlink()
    (place / "data").symlink_to(tmp_path / "same")
    for refused in (artifact.verify, lambda: artifact.folder.local("data")):
        with pytest.raises(DataError, match="data is a link"):
            refused()
    (place / "data").unlink()
    with pytest.raises(DataError, match="is missing"):
        artifact.verify()


def test_one_flipped_bit_is_refused_when_the_file_is_read(folder: Folder) -> None:
    """Also in a process that has only the folder, and in a store."""
    build(chain(), folder)
    folder = artifacts.list_artifacts(folder, "a")[0].folder
    with folder.open("data") as stream:
        assert folder.read_bytes("data") == stream.read() == folder.local("data").read_bytes()
    if folder.remote:  # a copy on this machine that was damaged says nothing of the object
        folder.local("data").write_bytes(b"b")
        assert folder.local("data").read_bytes() == b"a"
    Folder.at(folder.uri).write_bytes("data", bytes([b"a"[0] ^ 1 << 3]))
    code = "import pickle, sys; pickle.loads(sys.stdin.buffer.read()).local('data')"
    other = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(folder), capture_output=True, check=False
    )
    assert b"data has changed since it was written" in other.stderr
    for read in (folder.read_bytes, folder.open, folder.local):
        with pytest.raises(DataError, match="data has changed since it was written"):
            read("data")


def _edited(record: dict[str, Any], key: str) -> dict[str, Any]:
    match key:
        case "fingerprint":
            return seal(record | {"fingerprint": "0" * 12})
        case "stage":
            return seal(record | {"stage": "a"})
        case "config":
            config = {"value": 8, "place": "here"}
            return seal(record | {"facts": record["facts"] | {"config": config}})
        case "inputs":
            other = record["inputs"]["a"] | {"fingerprint": "0" * 12}
            return seal(record | {"inputs": {"a": other}})
        case "seal":
            return record
    raise AssertionError(key)


@pytest.mark.parametrize("key", ["fingerprint", "stage", "config", "inputs", "seal"])
def test_a_record_that_was_edited_is_refused(root: Folder, key: str) -> None:
    folder = only(root, "b").folder
    record = _edited(read_record(folder), key)
    folder.write_bytes(artifacts.RECORD, json.dumps(record).encode())
    with pytest.raises(DataError, match="is not a record"):
        artifacts.load(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("link", r"artifact\.json is a link, where a file was written"),
        ("later", r"artifact\.json: expected format 3 or before, found 4, of a later rungwise"),
        ("nested", r"artifact\.json is not a record \(it is nested too deeply\)"),
        *((damage, r"artifact\.json is not a record \(") for damage in ('{"a":', "{}", "3", "")),
    ],
)
def test_verify_names_a_record_that_cannot_be_trusted(
    tmp_path: Path, root: Folder, cli: Cli, damage: str, message: str
) -> None:
    """That of an input, at the path that the command prints."""
    only(root, "c")
    path = Path(only(root, "b").folder.uri) / artifacts.RECORD
    text = path.read_text()
    match damage:
        case "link":
            path.rename(tmp_path / "elsewhere.json")
            path.symlink_to(tmp_path / "elsewhere.json")
        case "later":
            record = json.loads(text) | {"format": 4}
            path.write_text(json.dumps(record))
        case "nested":
            path.write_text("[" * 100_000)
        case _:
            path.write_text(damage)
    assert re.search(message, cli("verify", f"{tmp_path}/c", status=2).replace("\n", " "))


def test_one_flipped_bit_of_a_record_is_refused_wherever_it_is(root: Folder) -> None:
    path = Path(only(root, "b").folder.uri) / artifacts.RECORD
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with pytest.raises(DataError):
            artifacts.load(Folder.at(path.parent))


def test_one_flipped_bit_of_a_note_or_its_file_makes_it_count_as_missing(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path)
    folder.write_bytes("done", b"all of it")
    write_note(folder, ".note", {"sum": 3}, {"done": folder.sha256("done")})
    for path in (tmp_path / ".note", tmp_path / "done"):
        data = path.read_bytes()
        for place in range(len(data)):
            changed = bytes([data[place] ^ 1 << place % 8])
            path.write_bytes(data[:place] + changed + data[place + 1 :])
            assert read_note(folder, ".note") is None
            path.write_bytes(data[:place])
            assert read_note(folder, ".note") is None
        path.write_bytes(data)
        assert read_note(folder, ".note") == {"sum": 3}
    (tmp_path / "done").unlink()
    assert read_note(folder, ".note") is None


def test_a_folder_that_was_renamed_is_refused(root: Folder) -> None:
    place = Path(only(root, "a").folder.uri)
    place.rename(place.parent / "mine-0123456789ab")
    with pytest.raises(DataError, match="it is of a folder whose name ends with"):
        artifacts.load(Folder.at(place.parent / "mine-0123456789ab"))


def test_a_model_answers_for_every_byte_below_it(root: Folder) -> None:
    last = only(root, "c")
    assert [each.stage for each in artifacts.chain(last)] == ["a", "b", "c"]
    # Built again, with the same bytes at another time: the same. With other bytes or scores, which
    # a seal of their own makes sound by themselves: refused.
    first = only(root, "a")
    for data, headline, sound in (
        (b"a", "nothing", True),
        (b"other", "nothing", False),
        (b"a", "99 %", False),
    ):
        first.folder.write_bytes("data", data)
        record = {**first.record, "finished": "2027-01-01", "summary": {"headline": headline}}
        artifacts.finish(first.folder, record, {}).verify()
        if sound:
            assert len(artifacts.chain(last)) == 3
        else:
            with pytest.raises(DataError, match="its files or summary are others"):
                artifacts.chain(last)


def test_verify_and_why_go_down_to_the_sources(
    tmp_path: Path, root: Folder, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = [row for row in plan(chain(), root, "x") if row.stage.name != "d"]
    lines = cli("verify", f"{tmp_path}/c").splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [
        [row.stage.name, row.stage.fingerprint] for row in stages
    ]
    assert all(line.endswith("unchanged") for line in lines[:-1])
    told = cli("why", f"{tmp_path}/c")
    places = [told.index(f"{row.stage.name} {row.stage.fingerprint}") for row in stages]
    assert places == sorted(places, reverse=True)
    bad = [f"{row.folder.uri}/data" for row in stages[:2]]
    for path in bad:
        Path(path).write_bytes(b"?")
    assert main(["verify", f"{tmp_path}/c"]) != 0
    said = capsys.readouterr()
    assert said.out.count("CHANGED") == 2
    assert all(f"{path} has changed since it was written" in said.err for path in bad)


def test_a_patch_of_bytes_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "module.py"))
    notes = tmp_path / "notes"
    notes.write_bytes(b"caf\xe9\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "notes"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *command], check=True)
    assert provenance.read_patch() is None
    notes.write_bytes(b"th\xe9\n")
    assert "+th\ufffd" in str(provenance.read_patch())


def test_no_rebuild_goes_into_its_root(tmp_path: Path, cli: Cli) -> None:
    settings = {"sources": [{"kind": "text", "paths": [str(tmp_path / "text.txt")]}]}
    (tmp_path / "text.txt").write_text("text")
    root = Folder.at(tmp_path / "root")
    build([CORPUS.stage(validate(CorpusConfig, settings))], root)
    (tmp_path / "link").symlink_to(tmp_path / "root")
    for into in ("link", "root/../root"):
        command = ["rebuild", f"{root.uri}/corpus", "--into", str(tmp_path / into)]
        assert "holds the model itself" in cli(*command, status=2)


def test_what_changed_since_stands_in_the_way_of_a_rebuild_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Some text.")
    source = {"kind": "text", "paths": [str(tmp_path / "a.txt")]}
    stage = CORPUS.stage(validate(CorpusConfig, {"sources": [source]}))
    record = {"facts": stage.facts, "config": stage.config.model_dump(mode="json"), "inputs": {}}
    made = Artifact("corpus", stage.fingerprint, Folder.at(tmp_path / "corpus"), record)
    assert loading.restore_stages([made])[0].fingerprint == stage.fingerprint
    (tmp_path / "a.txt").write_text("Some texd.")
    with pytest.raises(DataError, match=r"cannot be built again, because outside\.sources\.0"):
        loading.restore_stages([made])


def test_a_record_that_cannot_be_read_is_one_line(tmp_path: Path, root: Folder, cli: Cli) -> None:
    artifact = only(root, "c")
    place = Path(artifact.folder.uri) / artifacts.RECORD
    place.unlink()
    place.mkdir()
    for command in (["verify", f"{tmp_path}/c"], ["why", "--source", "text"]):
        refused = cli(*command, "--root", str(tmp_path), status=2)
        assert f"{place} cannot be read (Is a directory)" in refused


def test_an_artifact_without_a_file_that_its_stage_wrote_is_not_finished(tmp_path: Path) -> None:
    """As after a deletion that was killed: a stage that resumes believes its own summary."""
    folder = Folder.at(tmp_path / "a-f")
    folder.write_bytes("x", b"1")
    record = {"stage": "a", "fingerprint": "f"}
    with pytest.raises(DataError, match=r"a-f/y was written but is missing; delete the folder"):
        artifacts.finish(folder, record, {"x": "1", "y": "2"})
    assert artifacts.load(folder) is None


def test_half_of_an_artifact_does_not_count(root: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = only(root, "a")

    def killed(self: Folder, name: str = "") -> None:
        if not name:
            raise KeyboardInterrupt
        (Path(self.uri) / name).unlink()

    monkeypatch.setattr(Folder, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        artifacts.delete(artifact.folder)
    assert artifact.folder.names() == ["data"]
    assert artifacts.list_artifacts(root, "a") == []


def test_a_summary_of_another_form_names_the_record_and_says_to_rebuild(tmp_path: Path) -> None:
    record = {"summary": {"headline": "x", "numbers": {"a": "many"}}}
    artifact = Artifact("a", "f", Folder.at(tmp_path), record)
    with pytest.raises(
        DataError, match=r"artifact\.json holds no Nothing \(summary\.numbers\.a.*re"
    ):
        Nothing.of(artifact)


def test_the_copy_of_a_registered_model_is_no_artifact_of_a_stage(tmp_path: Path) -> None:
    copy = Folder.at(tmp_path / "models" / "copy")
    artifacts.finish(copy, {"stage": "evaluate", "fingerprint": "abc"}, {})
    assert artifacts.load(copy) is not None
    assert artifacts.at_or_below(Folder.at(tmp_path / "models")) is None


@pytest.mark.parametrize(
    ("started", "expected"),
    [(["-m", "asks"], "python -m asks 'a b' --c"), (["asks.py"], "asks.py 'a b' --c")],
)
def test_a_module_is_named_as_started(tmp_path: Path, started: list[str], expected: str) -> None:
    place = "rungwise.core.stages.provenance"
    asks = f"from {place} import provenance\nprint(provenance()['command'])\n"
    (tmp_path / "asks.py").write_text(asks)
    command = [sys.executable, *started, "a b", "--c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
