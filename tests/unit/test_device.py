"""Memory that a worker keeps for its next step."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Pages that the system cleared while blocks of 64 MB came and went; small ones land in some.
SCRIPT = """
import resource, torch
from rungwise.models.device import keep_freed_memory
if {keeps}:
    keep_freed_memory()
for _ in range(5):
    torch.ones(1 << 24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    torch.ones(1 << 24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_freed_memory_is_taken_again_without_new_pages() -> None:
    pages = {}
    for keeps in (True, False):
        script = SCRIPT.format(keeps=keeps)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        pages[keeps] = int(done.stdout)
    assert pages[True] < pages[False] / 4, pages
