"""Memory that a worker keeps for its next step."""

import subprocess
import sys

import pytest

# Pages that the system cleared while blocks came and went; small ones land in some. A thread gets
# its memory in pieces of 64 MiB, of which twenty blocks of 4 MiB take two.
SCRIPT = """
import resource, threading, torch
from rungwise.models.device import keep_freed_memory
if {keeps}:
    keep_freed_memory()

def steps(count, numbers, blocks):
    for _ in range(count):
        held = [torch.ones(numbers) for _ in range(blocks)]
        while held:
            held.pop()

def measure(numbers, blocks):
    steps(5, numbers, blocks)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    steps(40, numbers, blocks)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

measure(1 << 24, 1)
thread = threading.Thread(target=measure, args=(1 << 20, 20))
thread.start()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_freed_memory_is_taken_again_without_new_pages() -> None:
    pages = {}
    for keeps in (True, False):
        script = SCRIPT.format(keeps=keeps)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        pages[keeps] = [int(line) for line in done.stdout.splitlines()]
    assert len(pages[True]) == 2
    for kept, returned in zip(pages[True], pages[False], strict=True):
        assert kept < returned / 4, pages
