"""The corpus stage on what large corpora hold: broken files, copies, and lines without an end."""

import gzip
import json
import os
import random
import sys
from pathlib import Path

import pytest

from tests.commands import execute
from tests.conftest import REPOSITORY


def story(rng: random.Random, sentences: int = 12) -> str:
    words = ["word" + "".join(rng.choices("abdeiklmnorstu", k=4)) for _ in range(sentences * 8)]
    rows = (" ".join(words[at : at + 8]) for at in range(0, len(words), 8))
    return " ".join(f"The {row} is here." for row in rows)


# Reads and writes one file as tasks do, and says what of memory that took at its peak.
READER = """
import json, sys
import numpy as np
from rungwise.core.configuration.config import validate
from rungwise.core.storage.folder import Folder
from rungwise.corpus.config import CorpusConfig
from rungwise.corpus.building.held_out import HeldOutSplit
from rungwise.core.stages.artifact import SharedResults
from rungwise.corpus.building.range_task import RangeTask
from rungwise.corpus.config import list_ranges, name_ranges
def megabytes(name):
    # What getrusage says starts with the peak of the process that this one was forked from.
    (line,) = (line for line in open("/proc/self/status") if line.startswith(name))
    return int(line.split()[1]) // 1024
config = validate(CorpusConfig, {
    "sources": [{"paths": [sys.argv[1]], **json.loads(sys.argv[2])}],
    "near_duplicates": True,
})
out = Folder.at(sys.argv[1] + ".out")
task = RangeTask(config, out, SharedResults(out / "shared"))
before = megabytes("VmRSS")
counts = {"": 0}
for range in name_ranges(list_ranges(config), config, version=0):
    report = task.read(range)
    none = np.empty((0, 3), np.int64)
    split = HeldOutSplit(0)
    task.write_training(range, none, split)
    task.write_held_out(range, none, False)
    counts[""] += report.documents
    for reason, count in report.dropped.items():
        counts[reason] = counts.get(reason, 0) + count
print(megabytes("VmHWM") - before, json.dumps({r: n for r, n in counts.items() if n}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's peak of memory")
@pytest.mark.parametrize(
    ("keys", "content", "expected", "most_megabytes"),
    [
        ({"kind": "text", "documents": "line"}, "one long line", {"": 1, "too long": 1}, 150),
        ({"kind": "jsonl"}, "one long record", {"": 1, "too long": 1}, 400),
        ({"kind": "text"}, "many lines", {"too long": 1}, 250),
        ({"kind": "text", "documents": "line"}, "many lines", {"": 20000}, 400),
        ({"kind": "text"}, "one document of the limit", {"": 1}, 800),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_reader_stays_under_a_gigabyte_whatever_a_file_holds(
    tmp_path: Path,
    keys: dict[str, str],
    content: str,
    expected: dict[str, int],
    most_megabytes: int,
    packed: bool,
) -> None:
    rng = random.Random(3)
    path = tmp_path / ("in.gz" if packed else "in")
    line = story(rng, 190)[:9_999].encode() + b"\n"
    with gzip.open(path, "wb", 1) if packed else path.open("wb") as stream:
        if content == "one long line":
            for _ in range(200):
                stream.write("你".encode() * 333_333)
            stream.write(b"\n" + line)
        elif content == "one long record":
            stream.write(b'{"text": "')
            for _ in range(200):
                stream.write(b"word " * 200_000)
            stream.write(b'"}\n' + json.dumps({"text": line.decode()}).encode())
        elif content == "many lines":
            for number in range(20_000):
                stream.write(b"%05d" % number + line)
        else:
            for number in range(3_180):
                stream.write(b"%05d" % number + line)
    variables = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY / "platform"), *sys.path])}
    done = execute([sys.executable, "-c", READER, str(path), json.dumps(keys)], variables=variables)
    megabytes, _, counts = done.stdout.strip().partition(" ")
    print(content, keys, packed, megabytes)
    assert json.loads(counts) == expected
    assert int(megabytes) < most_megabytes
