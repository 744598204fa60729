"""Staged files of the corpus stage: what was marked as done is checked before it is trusted."""

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rungwise.core.configuration.config import validate
from rungwise.core.errors import UserError
from rungwise.core.stages.context import Context
from rungwise.core.stages.notes import SharedResults, read_note, write_note
from rungwise.core.storage.folder import Folder
from rungwise.corpus import CorpusConfig
from rungwise.corpus.building import stage
from rungwise.corpus.building.held_out import HeldOutSplit
from rungwise.corpus.building.range_builder import Range, list_ranges
from rungwise.corpus.building.range_task import RangeTask
from rungwise.corpus.summary import CorpusSummary, summarise_reports
from tests.conftest import made_up_sentences, mounted_disk

NOTHING = np.empty((0, 3), np.int64)
SPLIT = HeldOutSplit(1 << 63)


@pytest.fixture
def staged(tmp_path: Path) -> tuple[RangeTask, Range]:
    (tmp_path / "a.txt").write_text("\n".join(made_up_sentences(0, 60)))
    source = {"kind": "text", "paths": [str(tmp_path / "a.txt")], "documents": "line"}
    config = validate(CorpusConfig, {"sources": [source], "minimum_characters": 1})
    (range_,) = list_ranges(config)
    return task_in(config, tmp_path / "out"), range_


def task_in(config: CorpusConfig, folder: Path) -> RangeTask:
    return RangeTask(config, Folder.at(folder), SharedResults(Folder.at(folder / "shared")))


def contents(folder: Folder) -> dict[str, bytes]:
    return {name: folder.read_bytes(name) for name in folder.names()}


def build(task: RangeTask, range_: Range) -> list[Any]:
    return [
        task.read(range_),
        task.write_training(range_, NOTHING, NOTHING, SPLIT),
        task.write_held_out(range_, NOTHING, SPLIT, keep_repeats=False),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "text.arrow",
        "keys.arrow",
        "held-out.arrow",
        "held-out.passages",
        "train.passages",
        "note.json",
        "train-00000.parquet",
        "train.parquet",
        "validation.parquet",
    ],
)
def test_what_changed_after_it_was_made_is_made_again(
    staged: tuple[RangeTask, Range], name: str
) -> None:
    task, range_ = staged
    reports = build(task, range_)
    before = contents(task.output)
    changed = [file for file in before if file.endswith(f"/{name}") or file == name]
    assert changed
    for file in changed:
        for at in (len(before[file]) // 3, len(before[file]) // 2):
            damaged = bytearray(before[file])
            damaged[at] ^= 4
            task.output.write_bytes(file, bytes(damaged))
            assert build(task, range_) == reports
            assert contents(task.output) == before
        task.output.remove(file)
        assert build(task, range_) == reports
        assert contents(task.output) == before


def test_what_is_unchanged_is_not_made_again(
    staged: tuple[RangeTask, Range], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, range_ = staged
    reports = build(task, range_)
    Path(range_.files[0].uri).unlink()
    assert build(task, range_) == reports


@pytest.mark.parametrize("change", ["summary", "shard"])
def test_an_edited_summary_of_a_killed_stage_is_not_taken(
    staged: tuple[RangeTask, Range], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    task, range_ = staged
    summary = summarise_reports(build(task, range_))
    stored = {"summary": summary.model_dump(mode="json"), "sha256": summary.sha256}
    built: list[CorpusSummary] = []

    def build_again(*_: Any) -> CorpusSummary:
        built.append(summary)
        return summary

    monkeypatch.setattr(stage, "_build", build_again)
    write_note(task.output, ".summary.json", stored, summary.sha256)
    assert stage.build_corpus(task.config, {}, task.output, Context()) == summary
    assert not built
    if change == "summary":
        edited = json.loads(task.output.read_bytes(".summary.json"))
        edited["content"]["summary"]["documents"]["train"] += 1
        task.output.write_bytes(".summary.json", json.dumps(edited).encode())
    else:
        task.output.write_bytes(next(iter(summary.sha256)), b"other")
    assert stage.build_corpus(task.config, {}, task.output, Context()) == summary
    assert built


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"nonsense", b'{"files": {}}', b"[" * 5000])
def test_a_note_that_is_none_counts_for_nothing(tmp_path: Path, text: bytes) -> None:
    folder = Folder.at(tmp_path)
    folder.write_bytes("note.json", text)
    assert read_note(folder, "note.json") is None


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_disk_that_fills_up_while_a_corpus_is_built_is_named(
    staged: tuple[RangeTask, Range], tmp_path: Path, part: float
) -> None:
    """Whichever file has no room; what is there is no half of one."""
    task, range_ = staged
    build(task, range_)
    states = [path.stat() for path in Path(task.output.uri).rglob("*")]
    files = {state.st_ino: state.st_size for state in states if stat.S_ISREG(state.st_mode)}
    pages = sum(-(-size // 4096) for size in files.values())
    with mounted_disk(tmp_path / "disk", f"{4 * int(part * pages)}k") as place:
        output = Folder.at(place / "out")
        with pytest.raises(UserError, match=rf"no room left on the disk of {output.uri}.*; free"):
            build(task_in(task.config, place / "out"), range_)
        sizes = task.output.sizes()
        assert all(sizes[name] == size for name, size in output.sizes().items())
