"""The corpus stage killed while it reads or writes: it goes on, and the bytes are equal."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from rungwise.core.configuration.config import validate
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus import CorpusConfig
from rungwise.corpus.building.held_out import Split, fraction_threshold
from rungwise.corpus.building.range_task import STAGING, RangeTask
from rungwise.corpus.building.ranges import list_ranges
from rungwise.corpus.building.stage import build_corpus
from rungwise.corpus.deduplication import documents as duplicates
from rungwise.corpus.deduplication import near_duplicates, overlap
from tests.conftest import REPOSITORY, made_up_sentences
from tests.ray.kills import PARTS
from tests.waiting import wait_until

RANGES = 120


def config_of(path: Path) -> dict[str, Any]:
    return {
        "sources": [{"kind": "jsonl", "paths": [str(path)]}],
        "shard_megabytes": path.stat().st_size / RANGES / 1e6,
        "near_duplicates": {},
        "held_out_fraction": 0.2,
    }


def start(tmp_path: Path, output: Path, source: Path, cpus: int) -> subprocess.Popen[str]:
    wanted = {"config": config_of(source), "output": str(output), "cpus": cpus}
    (tmp_path / "wanted.json").write_text(json.dumps(wanted))
    path = os.pathsep.join([str(REPOSITORY / "platform"), str(REPOSITORY), *sys.path])
    return subprocess.Popen(
        [sys.executable, "tests/ray/corpus_job.py", str(tmp_path / "wanted.json")],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": path},
        text=True,
        start_new_session=True,
    )


def build(output: Path, source: Path) -> dict[str, str]:
    """Build or go on on the Ray of the tests; the digests of all files."""
    config = validate(CorpusConfig, config_of(source))
    return build_corpus(config, {}, Folder.at(output), Context()).sha256


def kill_at(process: subprocess.Popen[str], output: Path, pattern: str) -> set[int]:
    """Kill the job when a few ranges have the marker `pattern`; the numbers of those that do.

    Ray's workers are no part of the job's process group: each is killed and waited for, or it would
    finish its range after the markers were listed.
    """
    markers = f"{STAGING}/{pattern}"
    wait_until(
        markers, lambda: len(list(output.glob(markers))) >= 5, code=process.poll, pause=0.001
    )
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive
    return {int(path.name[:5]) for path in output.glob(f"{STAGING}/{pattern}")}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Three thousand records, of which some are copies of others and some nearly."""
    rng = random.Random(0)
    texts = [" ".join(made_up_sentences(number, 12)) for number in range(2600)]
    texts += [rng.choice(texts) for _ in range(200)]
    texts += [f"{rng.choice(texts)} And more." for _ in range(200)]
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
    process = start(tmp_path, output, source, cpus)
    if cpus:
        read = kill_at(process, output, "*.read.json")
        assert len(read) < RANGES
    else:
        assert process.wait() == -signal.SIGKILL
        read = {int(path.name[:5]) for path in output.glob(f"{STAGING}/*.read.json")}
        assert len(read) == PARTS
    # What was read is gone from the source: a second reading would be seen.
    ranges = list_ranges(validate(CorpusConfig, config_of(source)))
    damaged = bytearray(lines)
    for range_ in ranges:
        if range_.number in read:
            begin = lines.index(b"\n", range_.begin) + 1
            end = lines.rindex(b"\n", 0, range_.end)
            damaged[begin:end] = b"x" * (end - begin)
    source.write_bytes(damaged)
    # Half a file without its marker counts for nothing.
    left = next(range_.number for range_ in ranges if range_.number not in read)
    (output / STAGING / f"{left:05d}.text.arrow").write_bytes(b"ARROW1 and half of it")
    assert build(output, source) == expected
    assert set(Folder.at(output).files()) == {*expected, ".summary.json"}
    assert Folder.at(output).subfolders() == []


@pytest.mark.slow
def test_killed_while_it_writes_it_writes_no_finished_range_again(
    lines: bytes, expected: dict[str, str], tmp_path: Path
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_bytes(lines)
    written = kill_at(start(tmp_path, output, source, cpus=3), output, "?????.train.json")
    assert len(written) < RANGES
    before = {
        path: path.stat().st_mtime_ns
        for path in output.glob("*.parquet")
        if int(path.name.split("-")[1][:5]) in written
    }
    # Everything has been read: the source is not looked at.
    source.write_bytes(b"x" * len(lines))
    assert build(output, source) == expected
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_one_process_without_a_cluster_writes_the_same(
    lines: bytes, expected: dict[str, str], tmp_path: Path
) -> None:
    """By the parts of the stage, one range after the other, half of them read twice."""
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines)
    config = validate(CorpusConfig, config_of(source))
    assert config.near_duplicates is not None
    task, ranges = RangeTask(config, Folder.at(tmp_path / "out")), list_ranges(config)
    for range_ in (*ranges[::2], *ranges):
        task.read(range_)
    rows = [duplicates.key_rows(task.keys(one.number), one.number, 1) for one in ranges]
    bands = [near_duplicates.band_rows(task.keys(one.number), 1) for one in ranges]
    marks = near_duplicates.mark_duplicates(
        pa.concat_tables(bands), config.near_duplicates.similarity
    )
    verdict = duplicates.decide(
        pa.concat_tables([*rows, duplicates.mark_rows(marks, 1)]), True, fraction_threshold(0.2)
    )
    assert len(verdict.duplicates) > 300
    split = Split(fraction_threshold(0.2))
    nothing = np.empty((0, 3), np.int64)
    reports = [task.write_training(one, verdict.duplicates, nothing, split) for one in ranges]
    passages = [task.held_out_passages(one.number) for one in ranges]
    members = overlap.HashFilter.for_hashes(sum(map(len, passages)))
    for hashes in passages:
        members.add(hashes)
    files = [file.file for report in reports for file in report.files]
    training = overlap.hash_training(task.training_documents(files), members)
    rows = [overlap.passage_rows(hashes, number, 1) for number, hashes in enumerate(passages)]
    rows.append(overlap.passage_rows(training, overlap.TRAINING, 1))
    repeats = overlap.find_passages(pa.concat_tables(rows))
    reports += [task.write_held_out(one, repeats, split, keep_repeats=False) for one in ranges]
    written = {file: sha256 for one in reports for file, sha256 in one.sha256.items()}
    assert written == expected
