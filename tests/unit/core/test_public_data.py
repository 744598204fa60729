"""Public data sets: the list, downloads that break, and files made of what is published."""

import errno
import functools
import gzip
import hashlib
import html
import io
import json
import string
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rungwise.__main__ import main
from rungwise.core import public_data
from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.core.public_data import (
    RULES,
    Download,
    PublicFile,
    PublicSet,
    fetch_set,
    find_sets,
    missing_files,
    public_sets,
)
from rungwise.core.storage.source_files import list_matching_files
from tests.conftest import REPOSITORY
from tests.file_server import FileServer, serving

CONTENT = bytes(range(256)) * 4000
NAME = "tasks/en/X/train.tsv"


def one_file(content: bytes = CONTENT, name: str = NAME, **more: Any) -> PublicSet:
    digest = hashlib.sha256(content).hexdigest()
    part = Download(url="https://example.org/x/train.tsv", bytes=len(content), sha256=digest)
    file = PublicFile(parts=(part,), **more)
    return PublicSet(title="X", licence="CC0", consent=False, files={name: file})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    # The library pauses for a second before it tries again, and hands over ten megabytes at once.
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)
    contents = {"/example.org/x/train.tsv": CONTENT}
    with serving(FileServer(contents.get)) as running:
        yield running


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_set_is_got_by_its_name_below_the_working_folder(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(public_data, "public_sets", lambda: {"x": one_file()})
    assert main(["data", "get", "x", "--mirror", server.url]) == 0
    assert files_below(tmp_path) == [f"data/{NAME}"]


def test_a_name_in_gz_has_the_same_bytes_each_time(server: FileServer, tmp_path: Path) -> None:
    public = one_file(name=f"{NAME}.gz")
    for folder in ("one", "two"):
        fetch_set(public, tmp_path / folder, server.url, lambda line: None)
    first, second = (tmp_path / folder / f"{NAME}.gz" for folder in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()
    assert gzip.decompress(first.read_bytes()) == CONTENT


def test_a_member_of_an_archive_is_taken_out(tmp_path: Path) -> None:
    archive = _zip({"a/x.tsv": "one\n", "a/y.tsv": "two\n"})
    with serving(FileServer(lambda path: archive)) as server:
        public = one_file(archive, rule="member", member="a/y.tsv")
        fetch_set(public, tmp_path, server.url, lambda line: None)
    assert (tmp_path / NAME).read_bytes() == b"two\n"


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_connection_is_opened_again(server: FileServer, tmp_path: Path, ranges: bool) -> None:
    server.ranges = ranges
    server.cuts = [100_000, 300_000, 500]
    fetch_set(one_file(), tmp_path, server.url, lambda line: None)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    if ranges:
        asked = [begin for _, begin in server.requests]
        assert asked == ["", "bytes=100000-", "bytes=400000-", "bytes=400500-"]


def test_a_run_that_gives_up_keeps_nothing(server: FileServer, tmp_path: Path) -> None:
    server.cuts = [100_000, 0, 0, 0, 0, 0, 0]
    with pytest.raises(UserError, match=r"cannot be fetched"):
        fetch_set(one_file(), tmp_path, server.url, lambda line: None)
    assert files_below(tmp_path) == []
    assert missing_files(one_file(), tmp_path) == [NAME]
    fetch_set(one_file(), tmp_path, server.url, lambda line: None)
    assert (tmp_path / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "content",
    [CONTENT[:-1] + b"!", CONTENT[:-10], CONTENT + b"more"],
    ids=["other", "less", "more"],
)
def test_what_is_not_the_published_file_is_refused(tmp_path: Path, content: bytes) -> None:
    refused = pytest.raises(DataError, match=r"expected .*1,024,000 bytes.*nothing was kept")
    with serving(FileServer(lambda path: content)) as server, refused:
        fetch_set(one_file(), tmp_path, server.url, lambda line: None)
    assert files_below(tmp_path) == []


def test_moved_files_and_a_server_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    moved = pytest.raises(UserError, match=r"answers 404.*--mirror")
    with serving(FileServer(lambda path: None)) as server, moved:
        fetch_set(one_file(), tmp_path, server.url, lambda line: None)
    with pytest.raises(UserError, match=r"cannot be fetched \(.*refused"):
        fetch_set(one_file(), tmp_path, server.url, lambda line: None)


def test_a_disk_that_fills_while_it_downloads(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(url: str, target: io.BufferedIOBase) -> None:
        target.write(CONTENT[:500])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.file_download.http_get", fill)
        with pytest.raises(UserError, match="no room left on the disk"):
            fetch_set(one_file(), tmp_path, server.url, lambda line: None)
    assert files_below(tmp_path) == []


def test_files_of_sets_do_not_overlap_and_addresses_cannot_change() -> None:
    names = [name for public in public_sets().values() for name in public.files]
    assert len(names) == len(set(names))
    for public in public_sets().values():
        for url in public.downloads:
            commit = (
                url.split("/")[5] if url.startswith("https://raw.githubusercontent.com") else ""
            )
            assert len(commit) == 40 or url.endswith("aclImdb_v1.tar.gz"), url


def _paths(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _paths(each)
    elif isinstance(value, str) and value.startswith("data/"):
        yield value


RECIPES = sorted((REPOSITORY / "workflows/configs").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_file_that_a_recipe_names_is_of_a_set(recipe: Path) -> None:
    for path in _paths(yaml.safe_load(recipe.read_text("utf-8"))):
        assert find_sets(path), path


def test_the_list_has_the_bytes_that_results_were_made_with(real_data: Path) -> None:
    """Copies that were fetched from the same places by other means, as published or unpacked."""
    compared = 0
    for public in public_sets().values():
        for name, file in public.files.items():
            if file.rule or not (real_data / name).exists() or _shortened(name):
                continue
            data = _copy(real_data / name, file)
            (part,) = file.parts
            assert (len(data), hashlib.sha256(data).hexdigest()) == (part.bytes, part.sha256), name
            compared += 1
    assert compared > 150


def _copy(path: Path, file: PublicFile) -> bytes:
    """A copy as it was published, unpacked if we packed it."""
    packed = path.suffix == ".gz" and not file.parts[0].url.endswith(".gz")
    return gzip.decompress(path.read_bytes()) if packed else path.read_bytes()


def _shortened(name: str) -> bool:
    """Whether the copy beside the repository has fewer examples than the published file."""
    return "SQuAD" in name or "QNLI" in name


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("data/tasks/en/AG_NEWS/test.csv", ["ag-news"]),
        ("./data/tasks/en/AG_NEWS/*.csv", ["ag-news"]),
        ("data/corpora/en/gutenberg", ["gutenberg"]),
        ("data/corpora/en/gutenberg/austen-*", ["gutenberg"]),
        ("data/tasks/en/BLiMP/BLiMP.zip/data/x.jsonl", ["blimp"]),
        ("data/tasks/en/AG_NEWS/train.csv", []),
        ("data/tasks/en/AG", []),
        ("/data/tasks/en/AG_NEWS/test.csv", []),
    ],
)
def test_which_set_provides_a_path(pattern: str, names: list[str]) -> None:
    assert find_sets(pattern) == names


def test_a_missing_file_is_answered_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"get it with: rungwise data get ag-news$"):
        list_matching_files(["data/tasks/en/AG_NEWS/test.csv"], "data.train")
    recipe = REPOSITORY / "workflows/configs/quick-thoughts.yaml"
    assert main(["plan", "pretrain", str(recipe)]) == 2
    assert "get it with: rungwise data get brown" in capsys.readouterr().err


def test_consent_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Two sets: one asks.
    assert main(["data", "get", "ag-news", "blimp", "--mirror", "http://127.0.0.1:9"]) == 2
    out, err = capsys.readouterr()
    assert "ag-news: non-commercial use" in out
    assert "blimp" not in out
    assert "--yes" in err
    assert not list(tmp_path.iterdir())
    assert main(["data", "get", "ag-nwes"]) == 2
    assert "`rungwise data list` names them" in capsys.readouterr().err


def published(rule: str, real_data: Path) -> list[bytes]:
    """What a rule reads, in the published layout, around independent copies of the files."""

    def text(name: str) -> str:
        return gzip.decompress((real_data / name).read_bytes()).decode()

    match rule:
        case "brown":
            docs = text("corpora/en/brown/brown.txt.gz").split("\n\n")
            tagged = (
                "\n\n\t".join(" ".join(f"{word}/nn" for word in s.split()) for s in doc.split("\n"))
                for doc in docs
            )
            names = [
                f"brown/c{letter}{n:02d}"
                for letter in string.ascii_lowercase[:18]
                for n in range(1, 81)
            ]
            return [_zip(dict(zip(names, tagged, strict=False)))]
        case "msra":
            test = (real_data / "tasks/zh/MSRA-NER/msra_test_bio.txt").read_bytes()
            return [_zip({"dh_msra.txt": text("tasks/zh/MSRA-NER/train.txt.gz")}), test]
        case "abstracts":
            lines = text("corpora/zh/csl_abstracts/abstracts.txt.gz").splitlines()
            records = [json.dumps({"abst": line}) + "\n" for line in lines]
            return ["".join(part).encode() for part in _cut(records, 6)]
        case "reuters":
            stories = text("corpora/en/reuters21578/reuters-000-018.txt.gz").split("\n\n")
            bodies = [
                f"<BODY>{html.escape(story.strip(chr(10)))}".replace("\n", "\n    ")
                + "\n    Reuter\n&#3;</BODY>"
                for story in stories
            ]
            return ["".join(part).encode("latin-1") for part in _cut(bodies, 19)]
    return [_imdb(real_data)]


def _zip(members: dict[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return data.getvalue()


def _cut(items: list[str], parts: int) -> list[list[str]]:
    size = -(-len(items) // parts)
    return [items[at : at + size] for at in range(0, parts * size, size)]


@functools.cache
def _imdb(real_data: Path) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for split in ("train", "test", "unsup"):
            with gzip.open(real_data / f"tasks/en/IMDB/{split}.jsonl.gz", "rt") as lines:
                for line in [*lines][::-500]:  # backwards, as an archive is in no order
                    record = json.loads(line)
                    member = tarfile.TarInfo(f"aclImdb/{record['id']}.txt")
                    member.size = len(record["text"].encode())
                    archive.addfile(member, io.BytesIO(record["text"].encode()))
    return data.getvalue()


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_rule_makes_the_file_of_our_results(rule: str, real_data: Path, tmp_path: Path) -> None:
    """The archives are made here around independent copies of the files."""
    [(name, file)] = [
        (name, file)
        for public in public_sets().values()
        for name, file in public.files.items()
        if file.rule == rule
    ]
    assert file.rule is not None
    parts = []
    for number, data in enumerate(published(rule, real_data)):
        parts.append(tmp_path / str(number))
        parts[-1].write_bytes(data)
    expected = gzip.decompress((real_data / name).read_bytes()).decode()
    if rule.startswith("imdb"):
        lines = expected.split("\n")[:-1]
        expected = "".join(f"{line}\n" for line in lines[::-500][::-1])
    assert "".join(RULES[file.rule](parts)) == expected
