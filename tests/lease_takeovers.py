"""Four processes take one lease in turn, and most holders die with it."""

import multiprocessing
import os
import random
import sys
import time
from pathlib import Path

from rungwise.core.stages.lease import Lease
from rungwise.core.storage.folder import Folder

PROCESSES = 4
RELEASED = 0.3  # the share of holders that live to release it


def hold(top: Path, count: int, draw: random.Random) -> None:
    """Take the lease and be alone for a moment; then release it, or leave it behind."""
    lease = Lease(Folder.at(top / "stage"), "f")
    while not lease.take():
        if size(top / "taken") >= count:
            return
        time.sleep(draw.uniform(0, 0.003))
    try:
        (top / "inside").touch(exist_ok=False)
    except FileExistsError:
        add_byte(top / "double")
        return
    add_byte(top / "taken")
    time.sleep(draw.uniform(0, 0.002))
    (top / "inside").unlink()
    if draw.random() < RELEASED:
        lease.release()


def add_byte(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b".")


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def take_turns(top: Path, count: int, seed: int) -> None:
    number = 0
    while size(top / "taken") < count:
        number += 1
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                hold(top, count, random.Random(seed * 1_000_000 + number))
                status = 0
            finally:
                os._exit(status)  # without a clean-up, as if killed
        if os.waitpid(pid, 0)[1]:
            add_byte(top / "failed")


def main(folder: str, count: str) -> None:
    top = Path(folder)
    workers = [
        multiprocessing.Process(target=take_turns, args=(top, int(count), seed))
        for seed in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(*(size(top / name) for name in ("taken", "double", "failed")))


if __name__ == "__main__":
    main(*sys.argv[1:])
