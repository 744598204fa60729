"""Work is packed into tasks that keep every CPU busy until nearly the end."""

import heapq
import random

import pytest

from rungwise.cluster import tasks


@pytest.mark.parametrize("cpus", [1, 2, 7, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_all_cpus_end_nearly_at_once(monkeypatch: pytest.MonkeyPatch, cpus: int, seed: int) -> None:
    monkeypatch.setattr(tasks.ray, "cluster_resources", lambda: {"CPU": float(cpus)})
    rng = random.Random(seed)
    largest = rng.choice((8e6, 3e8, 2e9))
    sizes = [rng.uniform(0.0, largest) for _ in range(rng.choice((1, 40, 30_000)))]
    packs = tasks.pack_items(range(len(sizes)), sizes)
    assert sorted(item for pack in packs for item in pack) == list(range(len(sizes)))
    assert all(pack == sorted(pack) for pack in packs)
    # In the order of the tasks, each to the CPU that is free first.
    ends = [0.0] * cpus
    for pack in packs:
        heapq.heapreplace(ends, ends[0] + sum(sizes[item] for item in pack))
    assert max(ends) <= sum(sizes) / cpus + max(16e6, largest)
    assert len(packs) < 2 * 10_000 + 20 * cpus
