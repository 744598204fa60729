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

def steps(count):
    for _ in range(count):
        held = [torch.ones({numbers}) for _ in range({blocks})]
        while held:
            held.pop()

def measure():
    steps(5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    steps(40)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

if {in_thread}:
    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
else:
    measure()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
@pytest.mark.parametrize(
    ("in_thread", "numbers", "blocks"), [(False, 1 << 24, 1), (True, 1 << 20, 20)]
)
def test_freed_memory_is_taken_again_without_new_pages(
    in_thread: bool, numbers: int, blocks: int
) -> None:
    pages = {}
    for keeps in (True, False):
        script = SCRIPT.format(keeps=keeps, in_thread=in_thread, numbers=numbers, blocks=blocks)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        pages[keeps] = int(done.stdout)
    assert pages[True] < pages[False] / 4, pages
