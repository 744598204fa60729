"""Memory that a worker keeps for its next step."""

import json
import subprocess
import sys

import pytest

# Pages that the system cleared while blocks came and went: a large block, then small ones in a
# thread. It gets its memory in pieces of 64 MiB, of which twenty blocks of 4 MiB take two.
SCRIPT = """
import resource, threading, torch
from rungwise.models.device import keep_freed_memory
if {keeps}:
    keep_freed_memory()
pages = []

def steps(count, numbers, blocks):
    for _ in range(count):
        held = [torch.ones(numbers) for _ in range(blocks)]
        while held:
            held.pop()

def measure(numbers, blocks):
    steps(5, numbers, blocks)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    steps(10, numbers, blocks)
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

measure(1 << 24, 1)
thread = threading.Thread(target=measure, args=(1 << 20, 20))
thread.start()
thread.join()
print(pages)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_freed_memory_is_taken_again_without_new_pages() -> None:
    pages = {}
    for keeps in (True, False):
        command = [sys.executable, "-c", SCRIPT.format(keeps=keeps)]
        pages[keeps] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    for kept, returned in zip(pages[True], pages[False], strict=True):
        assert kept < returned / 4, pages
