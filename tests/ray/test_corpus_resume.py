"""The corpus stage killed while it reads or writes: it goes on, and the bytes are equal."""

import contextlib
import json
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from rungwise.core.configuration.config import validate
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building.range_task import STAGING
from rungwise.corpus.building.stage import build_corpus
from rungwise.corpus.config import CorpusConfig
from tests.conftest import made_up_sentences
from tests.ray.kills import PARTS, start
from tests.waiting import wait_until

RANGES = 60


def config_of(path: Path) -> dict[str, Any]:
    return {
        "sources": [{"kind": "jsonl", "paths": [str(path)]}],
        "shard_megabytes": path.stat().st_size / RANGES / 1e6,
        "near_duplicates": True,
        "held_out_fraction": 0.2,
    }


def start_job(tmp_path: Path, output: Path, source: Path, cpus: int) -> subprocess.Popen[str]:
    wanted = {"stage": "corpus", "config": config_of(source), "inputs": {}}
    return start(tmp_path, output=str(output), cpus=cpus, **wanted)


def build(output: Path, source: Path) -> dict[str, str]:
    """Build or go on on the Ray of the tests; the digests of all files."""
    config = validate(CorpusConfig, config_of(source))
    return build_corpus(config, {}, Folder.at(output), Context()).sha256


def kill_at(process: subprocess.Popen[str], folder: Path, markers: str) -> int:
    """Kill the job when a few ranges have such markers; the number of those that do.

    Ray's workers are no part of the job's process group: each is killed and waited for, or it would
    finish its range after the markers were listed.
    """
    wait_until(
        markers, lambda: len(list(folder.glob(markers))) >= 5, code=process.poll, pause=0.001
    )
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive
    return len(list(folder.glob(markers)))


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A thousand records, too long to be read without tasks; some are copies, some nearly."""
    rng = random.Random(0)
    texts = [" ".join(made_up_sentences(number, 30)) for number in range(800)]
    texts += [rng.choice(texts) for _ in range(100)]
    texts += [f"{rng.choice(texts)} And more." for _ in range(100)]
    rng.shuffle(texts)
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


@pytest.fixture(scope="module")
def expected(
    ray_session: None, lines: bytes, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The digests of all files, built at one go by two workers."""
    root = tmp_path_factory.mktemp("once")
    (root / "in.jsonl").write_bytes(lines)
    return build(root / "out", root / "in.jsonl")


@pytest.mark.parametrize("cpus", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_while_it_reads_it_reads_no_finished_range_again(
    lines: bytes, expected: dict[str, str], tmp_path: Path, cpus: int
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_bytes(lines)
    process = start_job(tmp_path, output, source, cpus)
    if cpus:
        assert kill_at(process, tmp_path, ".shared/*/note.json") < RANGES
    else:
        assert process.wait() == -signal.SIGKILL
        assert len(list(tmp_path.glob(".shared/*/note.json"))) == PARTS
    # Half a file without its note counts for nothing.
    texts = {path: path.stat().st_mtime_ns for path in tmp_path.glob(".shared/*/text.arrow")}
    notes = {path for path in texts if (path.parent / "note.json").exists()}
    assert len(notes) >= 5
    for path in texts.keys() - notes:
        path.write_bytes(b"ARROW1 and half of it")
    assert build(output, source) == expected
    assert {path: path.stat().st_mtime_ns for path in notes} == {
        path: texts[path] for path in notes
    }
    assert len(list(tmp_path.glob(".shared/*/text.arrow"))) == RANGES
    assert set(Folder.at(output).files()) == {*expected, ".shared.json"}
    assert Folder.at(output).subfolders() == []


@pytest.mark.slow
def test_no_range_is_written_twice(lines: bytes, expected: dict[str, str], tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_bytes(lines)
    process = start_job(tmp_path, output, source, cpus=3)
    assert kill_at(process, output, f"{STAGING}/?????.train") < RANGES
    before = {
        path: path.stat().st_mtime_ns
        for note in tmp_path.glob(".shared/*/note.json")
        for path in note.parent.iterdir()
    }
    assert build(output, source) == expected
    assert {path: path.stat().st_mtime_ns for path in before} == before
