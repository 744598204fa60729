"""The corpus block: what is refused before anything runs, and what makes a corpus the same one."""

import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.core.storage import source_files
from rungwise.core.storage.source_files import SourceFile, find_files, hash_files
from rungwise.corpus.config import (
    CorpusConfig,
    FileSource,
    identity,
    input_digests,
    list_ranges,
    list_source_files,
    source_names,
)


def corpus(*sources: dict[str, Any], **keys: Any) -> CorpusConfig:
    return validate(CorpusConfig, {"sources": list(sources), **keys})


def text(*paths: Path | str, **keys: Any) -> dict[str, Any]:
    return {"kind": "text", "paths": [str(path) for path in paths], **keys}


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([text("a", encoding="utf-99")], "encoding: expected a text encoding that Python knows"),
        ([text("a", encoding="idna")], "encoding: expected a text encoding that Python knows"),
        ([text("a", boilerplate="gutenberg", documents="line")], r"file or chunk \(now line\)"),
        ([text("a", name="b")] * 2, "two sources are called 'b'; give each of corpus"),
    ],
)
def test_bad_config_is_refused(sources: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        corpus(*sources)


def test_a_corpus_that_moves_is_the_same_and_one_that_changes_is_not(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "a.txt").write_text("one")
    (here / "b.txt").write_text("two")
    there = tmp_path / "there"
    shutil.copytree(here, there)

    def facts(*sources: dict[str, Any]) -> str:
        config = corpus(*sources)
        return fingerprint({"identity": identity(config), "outside": input_digests(config)})

    first = facts(text(here))
    assert facts(text(there)) == first
    assert facts(text(there / "*.txt")) == first
    assert facts(text(there, label="x")) != first
    os.utime(there / "a.txt", (0, 0))
    assert facts(text(there)) == first
    (there / "a.txt").write_text("One")
    assert facts(text(there)) != first
    (there / "a.txt").write_text("one")
    (there / "b.txt").rename(there / "c.txt")
    assert facts(text(there)) != first


def test_a_source_that_matches_or_holds_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full.txt").write_text("words")
    (tmp_path / "empty.txt").touch()
    missing = str(tmp_path / "no*.txt")
    with pytest.raises(ConfigError) as no_file:
        input_digests(corpus(text(tmp_path / "full.txt"), text(missing)))
    assert str(no_file.value) == (
        f"corpus.sources.1.paths: no file matches {missing!r}; expected a file, folder or glob"
    )
    with pytest.raises(DataError, match=r"corpus\.sources\.0\.paths: the corpus is empty: 1 file"):
        input_digests(corpus(text(tmp_path / "empty.txt")))
    # Two paths that match a file read it once.
    both = corpus(text(tmp_path, tmp_path / "*.txt"))
    assert input_digests(both)["sources.0"]["files"] == 2
    with pytest.raises(UserError):
        input_digests(corpus(text(tmp_path / "nowhere")))


def text_source(*paths: Path) -> FileSource:
    (source,) = corpus(text(*paths)).sources
    assert isinstance(source, FileSource)
    return source


def test_sources_have_names_of_their_own(tmp_path: Path) -> None:
    alone = corpus(text(tmp_path), {"kind": "pydocs"})
    assert source_names(alone.sources) == ["text", "pydocs"]
    several = corpus(text(tmp_path), text(tmp_path, name="books"), text(tmp_path))
    assert source_names(several.sources) == ["text-0", "books", "text-2"]


def test_two_files_of_one_name_in_a_source_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part.txt").write_text("words")
    with pytest.raises(ConfigError, match=r"part\.txt.*name a folder above both, or make them two"):
        list_source_files(text_source(tmp_path / "a", tmp_path / "b"), 0)
    (one, two) = list_source_files(text_source(tmp_path), 0)
    assert (one.name, two.name) == ("a/part.txt", "b/part.txt")


def test_a_large_file_is_hashed_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(250)) * 4
    (tmp_path / "a.txt").write_bytes(data)
    (file,) = find_files(str(tmp_path))
    assert hash_files([file], "key") == [hashlib.sha256(data).hexdigest()]
    monkeypatch.setattr(SourceFile, "BLOCK_BYTES", 300)
    blocks = [hashlib.sha256(data[at : at + 300]).digest() for at in range(0, 1000, 300)]
    expected = hashlib.sha256(b"".join(blocks)).hexdigest()
    assert hash_files([file, file], "key") == [expected] * 2


@pytest.fixture
def blocks_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of which a block was hashed, on a machine that keeps digests after 20 ms."""
    monkeypatch.setattr(source_files.stores, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(source_files, "_TICK_NS", 20_000_000)
    names: list[str] = []
    hash_block = SourceFile.block_digest

    def note(file: SourceFile, number: int) -> bytes:
        names.append(file.name)
        return hash_block(file, number)

    monkeypatch.setattr(SourceFile, "block_digest", note)
    return names


def test_a_file_is_hashed_once_and_after_each_change_again(
    tmp_path: Path, blocks_read: list[str]
) -> None:
    """However it is written, and if its size and time of modification stay."""
    path, other = tmp_path / "a.txt", tmp_path / "b"
    path.write_bytes(b"x" * 1000)
    modified = path.stat().st_mtime_ns

    def replace(data: bytes) -> None:
        other.write_bytes(data)
        other.replace(path)

    def write_through_a_link(data: bytes) -> None:
        other.hardlink_to(path)
        other.write_bytes(data)
        other.unlink()

    for number, write in enumerate([path.write_bytes, replace, write_through_a_link], 1):
        data = bytes([number]) * 1000
        write(data)
        os.utime(path, ns=(modified, modified))
        time.sleep(0.05)  # else its digest is not kept
        for _ in range(3):
            assert hash_files(find_files(str(path)), "key") == [hashlib.sha256(data).hexdigest()]
        assert len(blocks_read) == number


@pytest.mark.parametrize("fault", ["changed just now", "no database", "of another user", "no disk"])
def test_a_digest_that_cannot_be_trusted_or_kept_is_computed(
    tmp_path: Path, blocks_read: list[str], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"text")
    if fault == "changed just now":
        monkeypatch.setattr(source_files, "_TICK_NS", 3600 * 10**9)
    elif fault == "no database":
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "sha256.sqlite").write_bytes(b"nonsense" * 1000)
    elif fault == "of another user":
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    else:
        (tmp_path / "cache").write_bytes(b"a file")
    time.sleep(0.05)
    for _ in range(2):
        assert hash_files(find_files(str(path)), "key") == [hashlib.sha256(b"text").hexdigest()]
    assert len(blocks_read) == 2


def test_ranges_follow_from_the_listing(tmp_path: Path) -> None:
    sizes = {"a": 2600, "b": 300, "c": 300, "d": 500, "e": 1400, "f": 1600, "g": 0}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "b.gz").write_bytes(b"x" * 300)
    lines = corpus(text(tmp_path, documents="line"), {"kind": "pydocs"}, shard_megabytes=0.001)
    first = [part for part in list_ranges(lines) if part.source == 0]
    assert [([file.name for file in part.files], part.begin, part.end) for part in first] == [
        (["a"], 0, 1000),
        (["a"], 1000, 2000),
        (["a"], 2000, 2600),
        (["b"], 0, None),
        (["b.gz"], 0, None),
        (["c"], 0, None),
        (["d"], 0, None),
        (["e"], 0, None),
        (["f"], 0, 1000),
        (["f"], 1000, 1600),
        (["g"], 0, None),
    ]
    assert sum(part.num_bytes for part in first) == sum(sizes.values()) + 300
    numbers = [part.number for part in list_ranges(lines)]
    assert numbers == list(range(len(numbers)))
    whole = corpus(text(tmp_path), shard_megabytes=0.001)
    assert all(part.end is None for part in list_ranges(whole))
    wide = corpus(text(tmp_path, documents="line", encoding="utf-16"), shard_megabytes=0.001)
    assert all(part.end is None for part in list_ranges(wide))
