"""Shards by number: checked before they are read, fetched once a machine, bounded in bytes."""

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rungwise.core.errors import DataError, UserError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.storage.folder import Folder
from rungwise.instances import shards
from rungwise.instances.reader import ShardStore
from rungwise.instances.shards import Shard
from rungwise.instances.summary import ShardFile
from tests.conftest import mounted_disk
from tests.waiting import wait_until

ROWS, LENGTH = 100, 60
NUMBERS = range(8)


class Artifact:
    """Shards in a folder, with what the record says of them."""

    def __init__(self, folder: Folder, scratch: Path, salt: int) -> None:
        self.folder = folder
        self.files: list[ShardFile] = []
        counts = {"documents": 1, "instances": ROWS, "tokens": ROWS * LENGTH}
        for number in NUMBERS:
            file = f"train-{number:05d}.arrow"
            path = scratch / file
            ids = np.full(ROWS * LENGTH, number + 10, dtype=np.uint16)
            ids[0] = salt
            shards.write_shard(Shard(ids, np.arange(0, ROWS * LENGTH + 1, LENGTH)), path)
            data = path.read_bytes()
            folder.write_bytes(file, data)
            facts = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), **counts}
            row = {"file": file, "split": "train", "source": "x", **facts}
            self.files.append(ShardFile.model_validate(row))
        record = {"stage": "instances", "fingerprint": "f"}
        self.checked = artifacts.finish(folder, record, {}).folder

    @property
    def size(self) -> int:
        return max(file.bytes for file in self.files)

    def store(self, cache_folder: Path | None = None, fits: float = 100) -> ShardStore:
        return ShardStore(self.checked, self.files, int(fits * self.size), cache_folder)


@pytest.fixture
def local(tmp_path: Path) -> Artifact:
    (tmp_path / "scratch").mkdir()
    return Artifact(Folder.at(tmp_path / "artifact"), tmp_path / "scratch", 0)


@pytest.fixture(scope="module")
def remote(bucket: str, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact(Folder.at(f"{bucket}/instances"), tmp_path_factory.mktemp("scratch"), 1)


def right(shard: Shard, number: int) -> bool:
    return len(shard) == ROWS and (shard.ids[1:] == number + 10).all()


def flip(path: Path, at: int = 700) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that stores of this process download."""
    names: list[str] = []
    download = ShardStore._download

    def note(store: ShardStore, name: str, expected: str, part: Path) -> None:
        names.append(name)
        download(store, name, expected, part)

    monkeypatch.setattr(ShardStore, "_download", note)
    return names


def run_threads(number: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(each,)) for each in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def wait_for_prefetch(store: ShardStore) -> None:
    wait_until("the end of its threads", lambda: store._threads == 0)


def cached(folder: Path) -> dict[str, int]:
    return {path.stem: path.stat().st_size for path in folder.glob("*.arrow")}


def test_a_flipped_byte_or_a_missing_local_shard_says_what_to_do(local: Artifact) -> None:
    path = local.folder.local(local.files[2].file)
    flip(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    local.folder.remove(local.files[4].file)
    store = local.store()
    message = f"{path} has changed.*{local.files[2].sha256[:12]}.*{found[:12]}.*delete the folder"
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            store.get(2)
    with pytest.raises(DataError, match=r"train-00004\.arrow is in the record but is missing"):
        store.get(4)
    assert right(store.get(1), 1)


def test_bytes_stay_within_bounds(remote: Artifact, tmp_path: Path, downloads: list[str]) -> None:
    """But for the downloads of three threads."""
    store = remote.store(tmp_path, fits=3.5)
    sizes, wrong = [], []

    def read(seed: int) -> None:
        if seed == 0:
            while len(wrong) < 45:
                sizes.append(len({path.name[:64] for path in tmp_path.glob("*.*")}))
            return
        generator = random.Random(seed)
        for number in generator.choices(NUMBERS, k=15):
            wrong.append(not right(store.get(number), number))

    run_threads(4, read)
    assert not any(wrong)
    assert max(sizes) <= 3 + 3
    assert 8 < len(downloads) < 45


def test_threads_share_one_download(remote: Artifact, tmp_path: Path, downloads: list[str]) -> None:
    store = remote.store(tmp_path)
    found: list[bool] = []
    start = threading.Barrier(8)

    def read(_: int) -> None:
        start.wait()
        found.extend(right(store.get(number), number) for number in NUMBERS)

    run_threads(8, read)
    assert found == [True] * 64
    assert sorted(downloads) == [file.file for file in remote.files]
    # Another store of the machine finds the files.
    assert right(remote.store(tmp_path).get(5), 5)
    assert len(downloads) == len(NUMBERS)
    assert list(tmp_path.glob("*.part")) == []


_READ_ALL = """
import json, sys
from pathlib import Path
from rungwise.instances.reader import ShardStore
from rungwise.core.storage.folder import Folder
from rungwise.instances.summary import ShardFile
uri, rows, limit, folder = json.load(sys.stdin)
files = [ShardFile(**row) for row in rows]
store = ShardStore(Folder.at(uri), files, limit, Path(folder))
found = [int(store.get(number).ids[-1]) for _ in range(3) for number in range(len(files))]
assert "ray" not in sys.modules and "mlflow" not in sys.modules
print(json.dumps(found))
"""


def test_processes_share_the_cache(remote: Artifact, tmp_path: Path) -> None:
    limit = int(4.5 * remote.size)
    rows = [file.model_dump() for file in remote.files]
    spec = [remote.folder.uri, rows, limit, str(tmp_path)]

    def read(_: int) -> None:
        command = [sys.executable, "-c", _READ_ALL]
        results.append(subprocess.check_output(command, input=json.dumps(spec), text=True))

    results: list[str] = []
    run_threads(2, read)
    expected = [number + 10 for number in NUMBERS] * 3
    assert [json.loads(result) for result in results] == [expected] * 2
    assert sum(cached(tmp_path).values()) <= limit + remote.size


def test_an_evicted_shard_can_still_be_read_where_it_is_mapped(
    remote: Artifact, tmp_path: Path
) -> None:
    store, other = remote.store(tmp_path, fits=2.5), remote.store(tmp_path, fits=2.5)
    mine, theirs = store.get(0), other.get(0)
    os.utime(tmp_path / f"{remote.files[0].sha256}.arrow", ns=(1, 1))
    for number in (1, 2, 3):
        store.get(number)
    assert remote.files[0].sha256 not in cached(tmp_path)
    assert right(mine, 0)
    assert right(theirs, 0)
    # The process that evicted it let go of it; the other one still has it.
    assert 0 not in store._open
    assert other.get(0) is theirs
    assert right(store.get(0), 0)


def test_what_was_opened_longest_ago_goes_first(remote: Artifact, tmp_path: Path) -> None:
    store = remote.store(tmp_path, fits=3.5)
    for number in (0, 1, 2):
        store.get(number)
    for age, number in enumerate((1, 2, 0)):
        os.utime(tmp_path / f"{remote.files[number].sha256}.arrow", ns=(age, age))
    remote.store(tmp_path, fits=3.5).get(1)  # a second process uses the oldest
    store.get(3)
    assert set(cached(tmp_path)) == {remote.files[number].sha256 for number in (0, 1, 3)}


@pytest.mark.parametrize("spoil", [flip, lambda path: path.write_bytes(path.read_bytes()[:1000])])
def test_a_damaged_file_of_the_cache_is_downloaded_again(
    remote: Artifact, tmp_path: Path, downloads: list[str], spoil: Callable[[Path], None]
) -> None:
    remote.store(tmp_path).get(0)
    spoil(tmp_path / f"{remote.files[0].sha256}.arrow")
    assert right(remote.store(tmp_path).get(0), 0)
    assert len(downloads) == 2


def test_another_object_is_an_error(bucket: str, tmp_path: Path, downloads: list[str]) -> None:
    artifact = Artifact(Folder.at(f"{bucket}/spoilt"), tmp_path, 2)
    data = artifact.folder.read_bytes(artifact.files[0].file)
    artifact.folder.write_bytes(artifact.files[0].file, data[:-1] + b"?")
    artifact.folder.remove(artifact.files[1].file)
    store = artifact.store(tmp_path / "cache")
    store.prefetch([0, 1, 2])  # is silent until a shard is wanted
    wait_for_prefetch(store)
    left = {path.name for path in (tmp_path / "cache").iterdir()}
    assert left == {"locks", f"{artifact.files[2].sha256}.arrow"}
    name = re.escape(artifact.folder.path(artifact.files[0].file))
    with pytest.raises(DataError, match=f"{name} has changed.*{artifact.files[0].sha256}.*delete"):
        store.get(0)
    with pytest.raises(DataError, match=r"train-00001\.arrow is in the record but is missing"):
        store.get(1)
    assert right(store.get(2), 2)
    assert len(downloads) == 5


def test_shards_are_prefetched(remote: Artifact, tmp_path: Path, downloads: list[str]) -> None:
    store = remote.store(tmp_path, fits=3.5)
    store.prefetch(np.array([7, 6, 5, 4, 3]))  # as many as fit, the first ones
    wait_for_prefetch(store)
    assert set(cached(tmp_path)) == {remote.files[number].sha256 for number in (5, 6, 7)}
    assert all(right(store.get(number), number) for number in (5, 6, 7))
    assert len(downloads) == 3


def test_what_a_killed_process_left_is_removed(remote: Artifact, tmp_path: Path) -> None:
    (tmp_path / "dead.part").write_bytes(b"x")
    (tmp_path / "alive.part").write_bytes(b"x")
    os.utime(tmp_path / "dead.part", ns=(1, 1))
    remote.store(tmp_path, fits=1.5).get(0)
    assert [path.name for path in tmp_path.glob("*.part")] == ["alive.part"]


def test_the_folder_by_default_is_closed_to_others(
    remote: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    remote.store().get(0)
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert set(cached(folder)) == {remote.files[0].sha256}
    folder.chmod(0o755)
    with pytest.raises(UserError, match="mode 0700"):
        remote.store()


def test_a_full_disk_is_one_sentence_and_leaves_nothing(remote: Artifact, tmp_path: Path) -> None:
    with mounted_disk(tmp_path, "20k"):
        store = remote.store(tmp_path)
        store.get(0)
        with pytest.raises(UserError, match="no room left on the disk of the shard cache"):
            store.get(1)
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {"locks", f"{remote.files[0].sha256}.arrow"}
