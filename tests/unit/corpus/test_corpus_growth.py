"""A corpus that grows, or whose stage is killed: what was done is checked, and not done again."""

import json
import os
import random
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rungwise.core.configuration.config import validate
from rungwise.core.errors import DataError, UserError
from rungwise.core.stages.artifact import CheckedFolder, SharedResults, read_note
from rungwise.core.stages.stage import Context
from rungwise.core.storage import source_files
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building import range_task, stage
from rungwise.corpus.building.held_out import HeldOutSplit
from rungwise.corpus.building.range_task import RangeTask
from rungwise.corpus.config import CorpusConfig, Range, list_ranges, name_ranges
from rungwise.corpus.document import read_documents
from rungwise.corpus.summary import SPLITS, CorpusSummary
from tests.conftest import made_up_sentences, mounted_disk


def build(texts: Path, place: Path, **keys: Any) -> CorpusSummary:
    source = {"kind": "text", "paths": [str(texts)], "documents": "line"}
    config = validate(CorpusConfig, {"sources": [source], "minimum_characters": 1, **keys})
    return stage.build_corpus(config, {}, Folder.at(place), Context())


def shards(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.glob("*.parquet")}


def write_texts(folder: Path, number: int, lines: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{number:02}.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def files_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read."""
    names: list[str] = []
    read = range_task.read_range

    def note(range_: Any, config: CorpusConfig) -> Any:
        names.extend(file.name for file in range_.files)
        return read(range_, config)

    monkeypatch.setattr(range_task, "read_range", note)
    return names


KEYS = st.fixed_dictionaries(
    {
        "held_out_fraction": st.sampled_from([0.05, 0.3]),
        "shard_megabytes": st.sampled_from([0.0005, 0.002, 8]),
        "near_duplicates": st.booleans(),
        "overlap": st.sampled_from(["leave_out", "keep"]),
    }
)


@settings(max_examples=4, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=3), KEYS, st.randoms())
def test_files_added_in_any_order_give_the_bytes_of_a_new_build(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    keys: dict[str, Any],
    rng: random.Random,
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    sentences = made_up_sentences(3, 60)  # few, so that texts repeat across files
    order = rng.sample(range(len(sizes)), len(sizes))
    grown = None
    for step, number in enumerate(order):
        lines = [" ".join(rng.sample(sentences, rng.randint(1, 4))) for _ in range(sizes[number])]
        write_texts(folder / "texts", number, lines)
        if step == 0:
            write_texts(folder / "texts", 99, [*sentences[:30], *sentences[20:50]])
        grown = build(folder / "texts", folder / "corpus" / f"x-{step}", **keys)
    new = build(folder / "texts", folder / "new" / "corpus" / "x", **keys)
    assert grown is not None
    assert (grown, grown.sha256) == (new, new.sha256)
    place = folder / "corpus" / f"x-{len(order) - 1}"
    assert shards(place) == shards(folder / "new" / "corpus" / "x")


def test_only_the_range_that_a_new_file_falls_into_is_read(
    tmp_path: Path, files_read: list[str]
) -> None:
    for number in (1, 2, 3):
        write_texts(tmp_path / "texts", number, made_up_sentences(number, 80))
    keys = {"shard_megabytes": 0.002}  # less than a file has
    build(tmp_path / "texts", tmp_path / "corpus" / "a", **keys)
    assert {*files_read} == {"01.txt", "02.txt", "03.txt"}
    for step, number in enumerate((4, 0)):
        files_read.clear()
        write_texts(tmp_path / "texts", number, made_up_sentences(10 + number, 80))
        grown = build(tmp_path / "texts", tmp_path / "corpus" / f"b{step}", **keys)
        assert {*files_read} == {f"{number:02}.txt"}
        assert grown.documents.total + sum(grown.dropped.values()) == 320 + 80 * step
    files_read.clear()
    other = {"overlap": "keep", "deduplicate": False}
    build(tmp_path / "texts", tmp_path / "corpus" / "c", **keys, **other)
    assert files_read == []
    build(tmp_path / "texts", tmp_path / "corpus" / "d", **keys, minimum_characters=2)
    assert len({*files_read}) == 5


@pytest.mark.parametrize(("megabytes", "files"), [(0.002, 18), (0.01, 40)])
def test_shards_of_ranges_that_nothing_new_touches_are_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, megabytes: float, files: int
) -> None:
    """A range holds one file, or some: also where a file is added first, in the middle or last."""
    for number in range(files):
        write_texts(tmp_path / "texts", 1 + number, made_up_sentences(number, 40))
    keys = {"shard_megabytes": megabytes}
    build(tmp_path / "texts", tmp_path / "corpus" / "a", **keys)
    write = range_task.write_training_shards
    written: list[str] = []

    def note(*arguments: Any) -> Any:
        written.append(arguments[0])
        return write(*arguments)

    monkeypatch.setattr(range_task, "write_training_shards", note)
    for name in ("00.txt", "15b.txt", "99.txt"):
        written.clear()
        new = tmp_path / "texts" / name
        new.write_text("\n".join(made_up_sentences(99, 40)))
        grown = build(tmp_path / "texts", tmp_path / "corpus" / name, **keys)
        assert 0 < len(written) <= 3, name
        assert len(grown.file_names("train")) > 10
        new.unlink()


@pytest.mark.parametrize("stop", range(0, 9, 3))
def test_a_build_that_is_killed_leaves_nothing_that_is_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    for number in range(3):
        write_texts(tmp_path / "texts", number, made_up_sentences(number, 40))
    keys = {"shard_megabytes": 0.002}
    build(tmp_path / "texts", tmp_path / "corpus" / "a", **keys)
    write_texts(tmp_path / "texts", 1, made_up_sentences(77, 40))
    expected = build(tmp_path / "texts", tmp_path / "new" / "corpus" / "b", **keys)
    write = SharedResults.write
    left = stop

    def killed(self: SharedResults, key: str, *arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:  # its files are there, and cut, without the note
            for name in self[key].names():
                self[key].write_bytes(name, self[key].read_bytes(name)[:-9])
            raise KeyboardInterrupt
        write(self, key, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SharedResults, "write", killed)
        try:
            build(tmp_path / "texts", tmp_path / "corpus" / "b", **keys)
        except KeyboardInterrupt:
            assert left < 0
    assert build(tmp_path / "texts", tmp_path / "corpus" / "b", **keys) == expected
    assert shards(tmp_path / "corpus" / "b") == shards(tmp_path / "new" / "corpus" / "b")


def test_a_source_changed_in_place_is_read_again_if_its_size_and_time_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_read: list[str]
) -> None:
    monkeypatch.setattr(source_files.stores, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(source_files, "_TICK_NS", 20_000_000)
    for number in range(3):
        write_texts(tmp_path / "texts", number, made_up_sentences(number, 80))
    time.sleep(0.05)  # else no digest is kept
    build(tmp_path / "texts", tmp_path / "corpus" / "a")
    path = tmp_path / "texts" / "01.txt"
    modified = path.stat().st_mtime_ns
    text = path.read_text()
    path.write_text(text[::-1])
    os.utime(path, ns=(modified, modified))
    time.sleep(0.05)
    files_read.clear()
    grown = build(tmp_path / "texts", tmp_path / "corpus" / "b")
    assert "01.txt" in files_read
    assert grown == build(tmp_path / "texts", tmp_path / "new" / "corpus" / "b")
    assert shards(tmp_path / "corpus" / "b") == shards(tmp_path / "new" / "corpus" / "b")


def test_a_shard_that_rotted_is_made_again_once_it_was_read(tmp_path: Path) -> None:
    """A disk that changes a byte changes no time, so its stamp is as it was."""
    write_texts(tmp_path / "texts", 0, made_up_sentences(0, 80))
    first = build(tmp_path / "texts", tmp_path / "corpus" / "a")
    expected = shards(tmp_path / "corpus" / "a")
    (name,) = first.file_names("train")
    path = tmp_path / "corpus" / "a" / name
    state, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    record = {"files": {name: {"sha256": first.sha256[name]}}}
    artifact = CheckedFolder.of(Folder.at(path.parent), record)
    with pytest.raises(DataError, match="delete the folder to have it built again"):
        artifact.read_bytes(name)
    shutil.rmtree(path.parent)
    assert build(tmp_path / "texts", tmp_path / "corpus" / "a") == first
    assert shards(tmp_path / "corpus" / "a") == expected


def test_results_of_no_artifact_are_found(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts", 0, made_up_sentences(0, 40))
    build(tmp_path / "texts", tmp_path / "corpus" / "a")
    shared = SharedResults.beside(Folder.at(tmp_path / "corpus" / "a"))
    write_texts(tmp_path / "texts", 1, made_up_sentences(1, 40))
    build(tmp_path / "texts", tmp_path / "corpus" / "b")
    assert shared.find_unused() == []
    shutil.rmtree(tmp_path / "corpus" / "a")
    unused = shared.find_unused()
    assert 0 < len(unused) < len(shared.folder.subfolders())
    for key in unused:
        shared[key].remove()
    write_texts(tmp_path / "texts", 2, made_up_sentences(2, 40))
    new = build(tmp_path / "texts", tmp_path / "new" / "corpus" / "c")
    assert build(tmp_path / "texts", tmp_path / "corpus" / "c") == new


def test_near_duplicates_of_old_text_are_dropped_from_the_new_and_documents_keep_their_split(
    tmp_path: Path,
) -> None:
    def splits(place: Path, summary: CorpusSummary) -> dict[str, str]:
        return {
            " ".join(document.sentences): split
            for split in SPLITS
            for name in summary.file_names(split)
            for document in read_documents(Folder.at(place), name)
        }

    rng = random.Random(0)
    old = [" ".join(made_up_sentences(number, 12)) for number in range(400)]
    write_texts(tmp_path / "texts", 0, old)
    keys = {"near_duplicates": True, "held_out_fraction": 0.2}
    place = tmp_path / "corpus"
    before = splits(place / "a", build(tmp_path / "texts", place / "a", **keys))
    changed = [f"{line} A few more words." for line in rng.sample(old, 100)]
    new = [" ".join(made_up_sentences(1000 + number, 12)) for number in range(40)]
    write_texts(tmp_path / "texts", 1, [*changed, *new])
    grown = build(tmp_path / "texts", place / "b", **keys)
    after = splits(place / "b", grown)
    assert grown.dropped == {"near-duplicate": 100}
    assert after.items() > before.items()
    assert len(after) == len(before) + 40


NOTHING = np.empty((0, 3), np.int64)
SPLIT = HeldOutSplit(1 << 63, longest=1000)


@pytest.fixture
def staged(tmp_path: Path) -> tuple[RangeTask, Range]:
    long = " ".join(made_up_sentences(1, 200))  # is cut
    (tmp_path / "a.txt").write_text("\n".join([*made_up_sentences(0, 60), long]))
    source = {"kind": "text", "paths": [str(tmp_path / "a.txt")], "documents": "line"}
    config = validate(CorpusConfig, {"sources": [source], "minimum_characters": 1})
    (range_,) = name_ranges(list_ranges(config), config, version=0)
    return task_in(config, tmp_path / "out"), range_


def task_in(config: CorpusConfig, folder: Path) -> RangeTask:
    return RangeTask(config, Folder.at(folder), SharedResults(Folder.at(folder / "shared")))


def contents(folder: Folder) -> dict[str, Any]:
    """The bytes of each file, and what each note says, but for the stamps of its files."""
    files = {name: folder.read_bytes(name) for name in folder.names()}
    notes = {name: json.loads(text) for name, text in files.items() if name.endswith("note.json")}
    return files | {
        name: (note["content"], {file: digest for file, (digest, _) in note["files"].items()})
        for name, note in notes.items()
    }


def run_task(task: RangeTask, range_: Range) -> list[Any]:
    return [
        task.read(range_),
        task.write_training(range_, NOTHING, SPLIT),
        task.write_held_out(range_, NOTHING, keep_repeats=False),
    ]


STAGED = (
    "text.arrow keys.arrow passages.arrow held-out.arrow held-out.passages train.rows "
    "cut.passages note.json train-00000.parquet train.parquet validation.parquet"
)


@pytest.mark.parametrize("name", STAGED.split())
def test_what_changed_after_it_was_made_is_made_again(
    staged: tuple[RangeTask, Range], name: str
) -> None:
    task, range_ = staged
    reports = run_task(task, range_)
    before = contents(task.output)
    changed = [file for file in before if file.endswith(f"/{name}") or file == name]
    assert changed
    for file in changed:
        whole = task.output.read_bytes(file)
        for at in (len(whole) // 3, len(whole) // 2):
            damaged = bytearray(whole)
            damaged[at] ^= 4
            task.output.write_bytes(file, bytes(damaged))
            assert run_task(task, range_) == reports
            assert contents(task.output) == before
        task.output.remove(file)
        assert run_task(task, range_) == reports
        assert contents(task.output) == before


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"nonsense", b'{"files": {}}', b"[" * 5000])
def test_a_note_that_is_none_counts_for_nothing(tmp_path: Path, text: bytes) -> None:
    folder = Folder.at(tmp_path)
    folder.write_bytes("note.json", text)
    assert read_note(folder, "note.json") is None


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_full_disk_is_named(staged: tuple[RangeTask, Range], tmp_path: Path, part: float) -> None:
    """Whichever file has no room; what is there is no half of one."""
    task, range_ = staged
    run_task(task, range_)
    states = [path.stat() for path in Path(task.output.uri).rglob("*")]
    files = {state.st_ino: state.st_size for state in states if stat.S_ISREG(state.st_mode)}
    pages = sum(-(-size // 4096) for size in files.values())
    with mounted_disk(tmp_path / "disk", f"{4 * int(part * pages)}k") as place:
        output = Folder.at(place / "out")
        with pytest.raises(UserError, match=rf"no room left on the disk of {output.uri}.*; free"):
            run_task(task_in(task.config, place / "out"), range_)
        sizes = task.output.sizes()
        assert all(sizes[name] == size for name, size in output.sizes().items())
