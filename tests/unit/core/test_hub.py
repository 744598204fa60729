"""hf://: the same artifacts as from disk, pinned revisions, no token in a record, no network."""

import errno
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants as constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.core.stages.stage import Context, Stage
from rungwise.core.storage.folder import Folder
from rungwise.core.storage.hub import local_copy, pin, pin_all
from rungwise.core.storage.source_files import digest_matching_files, find_files
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import pretrain_stages
from rungwise.tasks.config import TASK, FilesTaskConfig
from tests.conftest import REPOSITORY, small_recipe, write_corpus
from tests.hub_server import Hub, go_to, hub
from tests.unit.training.test_initial_weights import folder_of

NOWHERE = "http://127.0.0.1:9"
ROWS = [{"text": f"row {n} of a table", "label": "ab"[n % 2]} for n in range(40)]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub(tmp_path / "hub", monkeypatch) as running:
        yield running


def write_files(folder: Path) -> Path:
    """One table in each layout that labelled sets and corpora have in common, in nested folders."""
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, folder / "train.parquet")
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (folder / "train.jsonl").write_text(lines)
    (folder / "train.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    (folder / "train.txt").write_text("".join(f"{row['text']}\n\n" for row in ROWS))
    (folder / "more").mkdir()
    (folder / "more" / "train [1].jsonl").write_text(lines)
    (folder / "saved").mkdir()
    saved = str(folder / "saved" / "data-00000-of-00001.arrow")
    with pa.OSFile(saved, "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    (folder / "saved" / "cache-1.arrow").write_bytes(b"what map() left")
    (folder / "saved" / "state.json").write_text("{}")
    (folder / "saved" / "dataset_info.json").write_text("{}")
    return folder


def task_config(train: str, **form: Any) -> FilesTaskConfig:
    block = {
        "kind": "files",
        "format": {"kind": "table", "columns": {"text": "text", "label": "label"}, **form},
        "train": train,
        "validation_fraction": 0.2,
        "test_fraction": 0.2,
    }
    return validate(FilesTaskConfig, block)


def files_of(stage: Stage, folder: Path) -> dict[str, bytes]:
    output = Folder.at(folder)
    stage.type.run(stage.config, {}, output, Context())
    return {name: output.read_bytes(name) for name in output.names()}


PATTERNS = [
    ("train.parquet", {"layout": "parquet"}),
    ("train.jsonl", {"layout": "json_lines"}),
    ("train.jsonl.gz", {"layout": "json_lines"}),
    ("*.jsonl", {"layout": "json_lines"}),
    ("more", {"layout": "json_lines"}),
    ("more/train [1].jsonl", {"layout": "json_lines"}),
    ("**/*.jsonl", {"layout": "json_lines"}),
    ("saved", {"layout": "parquet"}),
    ("saved/data-*.arrow", {"layout": "parquet"}),
]


@pytest.mark.parametrize(("pattern", "form"), PATTERNS, ids=[name for name, _ in PATTERNS])
def test_a_labelled_set_is_the_same_artifact_from_the_hub_and_from_disk(
    server: Hub, tmp_path: Path, pattern: str, form: dict[str, Any]
) -> None:
    files = write_files(tmp_path / "files")
    server.push_folder("datasets/org/name", files)
    stages = [
        TASK.stage(task_config(f"{place}/{pattern}", **form))
        for place in ("hf://datasets/org/name", str(files))
    ]
    assert stages[0].fingerprint == stages[1].fingerprint
    made = [files_of(stage, tmp_path / str(n)) for n, stage in enumerate(stages)]
    assert made[0] == made[1]
    assert len(made[0]) == 3


def test_a_moved_revision_changes_the_fingerprint_if_its_text(server: Hub) -> None:
    pattern = "hf://datasets/org/name/train.jsonl"
    lines = [json.dumps(row) + "\n" for row in ROWS]
    first = server.push("datasets/org/name", {"train.jsonl": "".join(lines).encode()})

    def fingerprint(path: str = pattern) -> str:
        return TASK.stage(task_config(path, layout="json_lines")).fingerprint

    before = fingerprint()
    assert fingerprint() == before
    # Another commit, the same bytes.
    server.push("datasets/org/name", {"train.jsonl": "".join(lines).encode(), "README.md": b"new"})
    assert pin(pattern) != f"hf://datasets/org/name@{first}/train.jsonl"
    assert fingerprint() == before
    server.push("datasets/org/name", {"train.jsonl": "".join(lines[::-1]).encode()})
    assert fingerprint() != before
    assert fingerprint(f"hf://datasets/org/name@{first}/train.jsonl") == before


def test_cached_text_is_read(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.push_folder("datasets/org/name", write_files(tmp_path / "files"))
    server.push("datasets/org/other", {"x.txt": b"x"})
    online = digest_matching_files(["hf://datasets/org/name/*.jsonl"], "data.train")
    pinned = pin("hf://datasets/org/name/*.jsonl")
    asked = len(server.requests)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between attempts
    for url, offline in ((NOWHERE, False), (server.url, True)):
        go_to(url, tmp_path / "hub", monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        assert pin("hf://datasets/org/name/*.jsonl") == pinned
        assert digest_matching_files(["hf://datasets/org/name/*.jsonl"], "data.train") == online
        # Listed, but never read; and never listed.
        for path in ("hf://datasets/org/name/train.txt", "hf://datasets/org/other/x.txt"):
            with pytest.raises(UserError, match="the hub cannot be reached, and the cache"):
                digest_matching_files([path], "data.train")
    assert len(server.requests) == asked


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("hf://datasets/org/none/x.txt", "no such repository, or it is private"),
        ("hf://datasets/org/secret/x.txt", "no such repository, or it is private"),
        ("hf://datasets/org/asked/x.txt", "no such repository, or it is private"),
        ("hf://datasets/org/name@dev/x.txt", "no such revision"),
        ("hf://datasets/org/name/none.txt", "no file matches"),
        ("hf://datasets/name", "expected hf://datasets/ORG/NAME/FILES"),
        ("hf://spaces/org/name/x.txt", "expected hf://datasets/ORG/NAME/FILES"),
    ],
)
def test_what_the_hub_refuses_is_one_line(server: Hub, uri: str, message: str) -> None:
    for name in ("name", "secret", "asked"):
        server.push(f"datasets/org/{name}", {"x.txt": b"text"})
    server.private.add("datasets/org/secret")
    server.gated.add("datasets/org/asked")
    with pytest.raises(UserError, match=message) as error:
        digest_matching_files([uri], "data.train")
    assert "\n" not in str(error.value)


def test_the_token_is_that_of_the_environment(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = server.push("datasets/org/secret", {"x.txt": b"text"})
    server.private.add("datasets/org/secret")
    server.token = "hf_secretsecretsecret"
    monkeypatch.setenv("HF_TOKEN", server.token)
    [file] = find_files("hf://datasets/org/secret/x.txt")
    assert file.uri == f"hf://datasets/org/secret@{commit}/x.txt"
    assert file.open().read() == b"text"


def test_a_download_breaks_or_finds_no_room(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 400
    server.push("datasets/org/name", {"x.bin": data, "y.bin": data[1:]})
    [broken, roomless] = find_files("hf://datasets/org/name")
    server.cuts = [50_000]
    assert broken.open().read() == data
    assert not server.cuts

    def fill(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", fill)
    with pytest.raises(UserError, match="no room left for the hub's cache"):
        roomless.open()


Lie = Callable[[Any], Any]


def of_listing(**changes: Any) -> Lie:
    return lambda entries: [each | changes for each in entries]


@pytest.mark.parametrize(
    ("method", "lie", "message"),
    [
        ("_about", lambda about: about | {"sha": "../../x"}, "40 hexadecimal digits"),
        ("_tree", of_listing(path="../../../x"), "paths below the repository"),
        ("_tree", of_listing(path="/tmp/x"), "paths below the repository"),
        ("_tree", of_listing(oid="../../../x"), "and digests"),
        ("_tree", of_listing(lfs={"oid": "../x", "size": 4, "pointerSize": 9}), "and digests"),
        ("_tree", of_listing(oid="0" * 40), "content with the digest 0{40}, found"),
        ("_tree", of_listing(size="many"), "with sizes and digests"),
        ("_tree", of_listing(size=-1), "with sizes and digests"),
        ("_tree", of_listing(size=10**18), "no room for its 1,000"),
        ("_tree", lambda entries: entries * 8_000, "expected at most 1,048,576 bytes, found more"),
        ("_tree", of_listing(size=3), "expected at most 3 bytes, found more"),
        ("_tree", of_listing(size=5), "not the size that it lists"),
    ],
)
def test_a_hub_that_lies_writes_nothing_and_is_named(
    server: Hub,
    tmp_path: Path,
    method: str,
    lie: Lie,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rungwise.core.storage.hub._MOST_ANSWER_BYTES", 1 << 20)
    server.push("datasets/org/name", {"x.txt": b"text"})
    said = getattr(server, method)
    monkeypatch.setattr(server, method, lambda *arguments: lie(said(*arguments)))
    with pytest.raises((UserError, DataError), match=message) as error:
        local_copy("hf://datasets/org/name/x.txt")
    assert "\n" not in str(error.value)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert all(re.fullmatch(r"main|[0-9a-f]{40}\.json", name) for name in names), names
    monkeypatch.undo()


def test_large_files_have_their_sha256(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.push("datasets/org/name", {"x.txt": b"text"})
    lfs = {"oid": hashlib.sha256(b"text").hexdigest(), "size": 4, "pointerSize": 9}
    said = server._tree
    monkeypatch.setattr(server, "_tree", lambda files: of_listing(lfs=lfs)(said(files)))
    assert local_copy("hf://datasets/org/name/x.txt").read_bytes() == b"text"


def test_a_tag_names_no_file(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.push("datasets/org/name", {"x.txt": b"text"})
    reply = server.reply

    def lie(path: str, headers: dict[str, str]) -> Any:
        status, more, body = reply(path, headers)
        return status, more | {"ETag": '"../../../../stray"'}, body

    monkeypatch.setattr(server, "reply", lie)
    assert local_copy("hf://datasets/org/name/x.txt").read_bytes() == b"text"
    assert not list(tmp_path.rglob("stray"))


def test_nothing_is_written_to_the_hub(server: Hub) -> None:
    server.push("datasets/org/name", {"x.txt": b"text"})
    with pytest.raises(UserError, match="cannot be written"):
        Folder.at("hf://datasets/org/name/artifacts").write_bytes("x", b"")


def test_recipes_are_pinned(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = "hf_secretsecretsecret"
    monkeypatch.setenv("HF_TOKEN", server.token)
    commit = server.push_folder("datasets/org/text", write_corpus(tmp_path / "text", documents=6))
    recipe = small_recipe(tmp_path / "root", tmp_path / "text")
    [source] = recipe["corpus"]["sources"]
    source["paths"] = ["hf://datasets/org/text/*.txt", "hf://datasets/org/text@main/*"]
    built = validate(Recipe, recipe)
    server.push("datasets/org/text", {"new.txt": b"new"})
    record = built.to_record("root")
    assert record["corpus"]["sources"][0]["paths"] == [
        f"hf://datasets/org/text@{commit}/*.txt",
        f"hf://datasets/org/text@{commit}/*",
    ]
    assert server.token not in json.dumps(record)
    # A variant is resolved from the same data, and a record is read without asking the hub.
    asked = len(server.requests)
    changed = built.with_changes({"pretrain.seed": 7}, "a test")
    assert changed.corpus == built.corpus
    assert pin_all(record) == record
    assert len(server.requests) == asked
    # Only a key of files holds addresses; text that looks like one stays as it is.
    for text in ("hf://", "hf://datasets/org/text"):
        free = {"licence": text, "extra": {"labels": {text: text}}}
        assert pin_all({"sources": [free]}) == {"sources": [free]}
    source["paths"] = ["hf://datasets/org/none/*"]
    with pytest.raises(
        ConfigError, match=r"^corpus\.sources\.0\.paths\.0: hf://datasets/org/none/\*"
    ):
        validate(Recipe, recipe)


def test_every_key_that_takes_files_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rungwise.core.storage.hub.pin", lambda uri, commits: f"{uri} pinned")
    page = (REPOSITORY / "docs" / "reference" / "recipe.md").read_text("utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    keys = {row[0].strip("| `") for row in rows if "list: text" in row[1] and "files" in row[3]}
    keys -= {"skip_labels"}  # names of folders or files below those
    assert len(keys) >= 3
    for key in keys:
        assert pin_all({key: ["hf://x"]}) == {key: ["hf://x pinned"]}, key


@pytest.mark.parametrize("name", ["hf://org/model", "org/model"])
def test_a_model_of_the_hub_starts_a_run(server: Hub, tmp_path: Path, name: str) -> None:
    folder = folder_of("bert", tmp_path / "theirs")
    commit = server.push_folder("models/org/model", folder)
    server.repositories["models/org/model"][-1]["tf_model.h5"] = b"not needed"
    commit = server.commits("models/org/model")[-1]
    stages = []
    for initial in (name, str(folder)):
        recipe = small_recipe(tmp_path / "root", write_corpus(tmp_path / "text", documents=6))
        for block in ("model", "tokenizer"):
            recipe.pop(block)
        recipe["pretrain"]["initial"] = initial
        built = validate(Recipe, recipe)
        assert built.pretrain is not None
        stages.append(pretrain_stages(built))
    assert stages[0]["initial"].config.path == f"hf://org/model@{commit}"  # pyright: ignore[reportAttributeAccessIssue]
    for stage in ("initial", "tokenizer", "pretrain"):
        assert stages[0][stage].fingerprint == stages[1][stage].fingerprint
    assert not any("tf_model" in path for path, _ in server.requests)


def test_a_name_that_is_neither_a_folder_nor_a_model(server: Hub, tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path / "root", write_corpus(tmp_path / "text", documents=6))
    recipe.pop("model")
    for name, message in (
        ("org/none", "no folder 'org/none' on this machine, and no such model on the hub"),
        ("none", "or a model of the hub, ORG/NAME; found 'none'"),
    ):
        recipe["pretrain"]["initial"] = name
        with pytest.raises(ConfigError, match=message):
            validate(Recipe, recipe)
