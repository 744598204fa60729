"""Who may build an artifact: one driver at a time, on a folder and on a server that speaks S3."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rungwise.core.stages import lease as leases
from rungwise.core.stages.lease import Lease, describe_live_driver, register_driver
from rungwise.core.storage.folder import Folder

_MOST_PROCESSES = 1 << 22  # of Linux


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(leases, "EXPIRY_SECONDS", 1.5)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> float:
    """Wait for `condition`; how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)
    return time.monotonic() - began


def leave_behind(folder: Folder, **changes: object) -> None:
    """The lease of a driver that was killed, here a process that cannot be."""
    lease = Lease(folder, "f")
    assert lease.take()
    (name,) = folder.files()
    holder = json.loads(folder.read_bytes(name))
    lease.release()
    folder.write_bytes(name, json.dumps(holder | {"pid": _MOST_PROCESSES + 1} | changes).encode())


def test_a_lease_is_held_by_one_renewed_and_given_back(folder: Folder, quick: None) -> None:
    mine, other = Lease(folder, "f"), Lease(folder, "f")
    assert mine.take()
    elsewhere = Lease(folder, "g")
    assert elsewhere.take()
    elsewhere.release()
    # Longer than a lease that is not renewed would last.
    deadline = time.monotonic() + 2.5
    while time.monotonic() < deadline:
        assert not other.take()
        time.sleep(0.3)
    assert f"process {os.getpid()} on " in other.holder
    assert mine.is_valid()
    assert not mine.lost
    mine.release()
    assert other.take()
    other.release()
    assert folder.names() == []


def test_of_many_that_ask_at_once_one_has_it(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        leases, "_AGREE_SECONDS", 60.0
    )  # after which all would go, on a busy machine
    many = [Lease(folder, "f") for _ in range(6)]
    with ThreadPoolExecutor(len(many)) as pool:
        assert sum(pool.map(Lease.take, many)) == 1
    for lease in many:
        lease.release()
    assert folder.names() == []


def test_a_lease_of_a_killed_process_of_this_machine_ends_at_once(folder: Folder) -> None:
    code = (
        "import os, sys; from rungwise.core.stages.lease import Lease; "
        "from rungwise.core.storage.folder import Folder; "
        "assert Lease(Folder.at(sys.argv[1]), 'f').take(); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, folder.uri], check=False)
    assert killed.returncode == -9
    lease = Lease(folder, "f")
    assert lease.take()
    assert len(folder.files()) == 1
    lease.release()


def test_a_lease_of_a_dead_driver_elsewhere_ends_by_the_clock_of_one_that_waits(
    folder: Folder, quick: None
) -> None:
    """Its process id is that of a process that runs here, which must not count."""
    leave_behind(folder, machine="another", host="far", pid=os.getpid())
    waiting = [Lease(folder, "f") for _ in range(4)]
    taken: list[Lease] = []

    def take() -> bool:
        taken.extend(lease for lease in waiting if lease.take())
        return bool(taken)

    assert 1.4 < until(take) < 10
    assert not any(lease.take() for lease in waiting if lease not in taken)
    (holder,) = taken
    holder.release()


def test_a_claim_waits_until_a_holder_elsewhere_renews_or_expires(
    folder: Folder, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_machine", lambda: "")
    living = Lease(folder, "f")
    assert living.take()
    asking = Lease(folder, "f")
    assert not asking.claim()
    living.release()
    leave_behind(folder)
    claiming = Lease(folder, "f")
    assert claiming.claim()
    claiming.release()
    assert folder.names() == []


def test_a_driver_removes_what_killed_ones_left_and_no_lease_of_a_live_one(folder: Folder) -> None:
    leave_behind(folder)
    with register_driver(folder):
        [first] = folder.files()
        with register_driver(folder):
            assert first in folder.files()
            assert len(folder.files()) == 2
            assert describe_live_driver(folder).startswith(f"process {os.getpid()} on ")
    assert folder.names() == []
    assert describe_live_driver(folder) == ""


def test_a_driver_that_was_cut_off_learns_that_its_lease_was_taken_over(
    folder: Folder, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off, other = Lease(folder, "f"), Lease(folder, "f")
    with monkeypatch.context() as patch:
        patch.setattr(leases, "BEAT_SECONDS", 3.0)
        assert cut_off.take()
        until(other.take)
    assert not cut_off.is_valid()
    assert other.is_valid()
    until(lambda: cut_off.lost)
    cut_off.release()
    assert other.is_valid()
    other.release()
    assert folder.names() == []


@pytest.mark.parametrize("count", [50, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_two_have_a_lease_of_killed_holders_at_once(tmp_path: Path, count: int) -> None:
    command = [sys.executable, "-m", "tests.lease_takeovers", str(tmp_path), str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    taken, double, failed = map(int, done.stdout.split())
    assert taken >= count
    assert (double, failed) == (0, 0)


def test_what_was_seen_before_a_pause_gives_no_lease(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a look at the folder and the own file, others take the lease over."""
    leave_behind(folder)
    late, third = Lease(folder, "f"), Lease(folder, "f")
    agree = Lease._agree

    def pause(self: Lease) -> bool:
        monkeypatch.setattr(Lease, "_agree", agree)
        second = Lease(folder, "f")
        # Its file is not there yet, as it would be during a pause.
        text = folder.read_bytes(self._name)
        folder.remove(self._name)
        assert second.take()
        second.release()
        assert third.take()
        folder.write_bytes(self._name, text)
        assert third.is_valid()  # who only asks takes nothing from who holds
        return agree(self)

    monkeypatch.setattr(Lease, "_agree", pause)
    assert not late.take()
    assert third.is_valid()
    third.release()
    assert folder.names() == []


def test_a_damaged_lease_expires_by_the_clock(tmp_path: Path, quick: None) -> None:
    asking = []
    for number, text in enumerate(["", "{", "[]", '{"pid": "x"}', "[" * 100_000]):
        (tmp_path / f".f{number}.{1:012}.{'a' * 12}.lease").write_text(text)
        asking.append(lease := Lease(Folder.at(tmp_path), f"f{number}"))
        assert not lease.take()
        assert lease.holder == "another process"
    assert until(asking[-1].take) > 1.0
    for lease in asking[:-1]:
        until(lease.take)
    for lease in asking:
        lease.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [".f.x.lease", "..lease", ".f.0.lease", ".lease", ".f.lease"])
def test_files_that_only_look_like_leases_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with register_driver(Folder.at(tmp_path)):
        assert describe_live_driver(Folder.at(tmp_path))
        lease = Lease(Folder.at(tmp_path), "f")
        assert lease.take()
        lease.release()
    assert [path.name for path in tmp_path.iterdir()] == [name]
