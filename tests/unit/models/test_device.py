"""Memory that a worker keeps for its next step."""

import subprocess
import sys

import pytest

# The share of the written pages that the system cleared while blocks came and went. The first
# steps touch what the process then keeps, in other places from step to step. A thread gets its
# memory in pieces of 64 MiB, of which twenty blocks of 4 MiB take two.
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
    steps(10, numbers, blocks)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    steps(12, numbers, blocks)
    cleared = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    print(cleared * resource.getpagesize() / (12 * 4 * numbers * blocks))

measure(1 << 24, 1)
thread = threading.Thread(target=measure, args=(1 << 20, 20))
thread.start()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_freed_memory_is_taken_again_without_new_pages() -> None:
    shares = {}
    for keeps in (True, False):
        command = [sys.executable, "-c", SCRIPT.format(keeps=keeps)]
        done = subprocess.run(command, capture_output=True, check=True)
        shares[keeps] = [float(line) for line in done.stdout.splitlines()]
    assert len(shares[True]) == 2
    assert max(shares[True]) < 0.25
    # The default clears every page of a large block again; a thread's blocks not everywhere.
    assert shares[False][0] > 0.75
