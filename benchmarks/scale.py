"""Reading 10^10 instances in 25,000 shards with 1,000 readers, simulated; and ten times more.

    python -m benchmarks.scale            prints a table and writes benchmarks/results/

What a reader needs comes from the order itself (rungwise.instances.order), on sampled ranks, over a
whole epoch; its cache is modelled as the files used last that fit. Sampled rows are located, and
each has to lie in a shard that the model holds. Times are CPU seconds of this machine. Stated and
not measured: the sizes, the rates in capitals below, and nothing else. Building as much text is
simulated by benchmarks/building.py.
"""

import argparse
import datetime
import hashlib
import json
import os
import sys
import tempfile
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.common import print_rows, write_results
from benchmarks.measuring import instances_summary
from rungwise.core.stages import artifact
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import SpecialIds
from rungwise.instances.order import OrderConfig, ReadOrder, ShardShare
from rungwise.instances.summary import InstancesSummary

SHARD_BYTES = 256_000_000
ROWS_PER_SHARD = 400_000
TOKENS_PER_ROW = SHARD_BYTES // ROWS_PER_SHARD // 2  # two bytes a token
READER_TOKENS_PER_SECOND = 2e6  # a fast accelerator reads less; rates scale with it
CACHE_BYTES = 8 << 30  # of a reader; a machine with eight has eight times as much
READER_BYTES_PER_SECOND = 1.25e9  # 10 Gbit/s
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html
BUCKET_GETS_PER_SECOND = 5_500  # of one prefix
SAMPLED = 12


@dataclass(frozen=True)
class Case:
    """A data set, its readers, and how they read."""

    name: str
    shards: int = 25_000
    readers: int = 1_000
    batch: int = 65_536
    lanes: int = 1_024
    window: int = 1 << 20
    readers_per_machine: int = 1  # that share a cache
    sampled: int = SAMPLED
    part: float = 1.0  # of the epoch that is simulated, from its beginning

    def order(self) -> ReadOrder:
        rows = np.full(self.shards, ROWS_PER_SHARD, dtype=np.int64)
        return ReadOrder(rows, 0, OrderConfig(window_instances=self.window, lanes=self.lanes))

    @property
    def steps(self) -> int:
        return self.shards * ROWS_PER_SHARD // self.batch

    @property
    def stride(self) -> int:
        """Half a window, in steps: what is asked for at once."""
        return max(1, self.window * self.lanes // self.batch // 2)

    @property
    def step_seconds(self) -> float:
        return self.batch * TOKENS_PER_ROW / (self.readers * READER_TOKENS_PER_SECOND)

    def machines(self) -> list[range]:
        """The ranks of some machines, spread over all."""
        size = self.readers_per_machine
        first = np.linspace(0, self.readers - size, min(self.sampled, self.readers), dtype=int)
        return [range(rank, rank + size) for rank in first // size * size]


@dataclass
class Machine:
    """What one cache holds and has fetched."""

    room: int  # shards
    cached: OrderedDict[int, None] = field(default_factory=OrderedDict)
    downloads: list[int] = field(default_factory=list)  # in each stride
    touched: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    most: int = 0  # shards needed within one stride and the next

    def need(self, shards: Sequence[int]) -> None:
        fetched = 0
        for shard in shards:
            fetched += shard not in self.cached
            self.cached[shard] = None
            self.cached.move_to_end(shard)
        while len(self.cached) > max(self.room, len(shards)):
            self.cached.popitem(last=False)
        self.downloads.append(fetched)
        self.touched.update(shards)
        self.most = max(self.most, len(self.before.union(shards)))
        self.before = set(shards)


def run(
    case: Case, order: ReadOrder, ranks: range, first: int, last: int, machine: Machine
) -> None:
    """Read the steps [first, last) with these ranks of the case."""
    generator = np.random.default_rng(ranks.start)
    for step in range(first, last, case.stride):
        ahead = min(case.stride, last - step)
        machine.need(_needed(case, order, ranks, step, ahead))
        rank = int(generator.integers(ranks.start, ranks.stop))
        sampled = int(generator.integers(step, step + ahead))
        rows = order.locate(order.positions(sampled, ShardShare(case.batch, rank, case.readers)))
        assert set(rows.shards.tolist()) <= set(machine.cached), "a row without its shard"


def _needed(case: Case, order: ReadOrder, ranks: range, step: int, ahead: int) -> list[int]:
    parts = [
        order.upcoming_shards(step, ahead, ShardShare(case.batch, rank, case.readers)).tolist()
        for rank in ranks
    ]
    return list(dict.fromkeys(shard for part in parts for shard in part))


def reading(case: Case) -> dict[str, Any]:
    """An epoch of the case, from sampled machines."""
    order = case.order()
    steps = int(case.steps * case.part)
    machines = []
    for ranks in case.machines():
        machine = Machine(CACHE_BYTES * case.readers_per_machine // SHARD_BYTES)
        run(case, order, ranks, 0, steps, machine)
        machines.append(machine)
    count = case.readers / case.readers_per_machine
    seconds = steps * case.step_seconds
    per_machine = float(np.mean([sum(m.downloads) for m in machines]))
    per_stride = np.mean([m.downloads for m in machines], axis=0) * count
    total = per_machine * count
    return {
        "epoch_seconds": case.steps * case.step_seconds,
        "simulated_part": case.part,
        "shards_touched": float(np.mean([len(m.touched) for m in machines])),
        "downloads_per_epoch": per_machine / case.part,
        "shards_per_hour": per_machine / seconds * 3600,
        "downloaded_bytes_per_epoch": total / case.part * SHARD_BYTES,
        "amplification": total / case.part / case.shards,
        "gets_per_second": total / seconds,
        "bytes_per_second": total / seconds * SHARD_BYTES,
        "machine_bytes_per_second": per_machine / seconds * SHARD_BYTES,
        "first_gets": float(per_stride[0]),
        "first_bytes_per_machine": float(np.max([m.downloads[0] for m in machines])) * SHARD_BYTES,
        "most_gets_after_start": float(per_stride[1:].max()),
        "stride_seconds": case.stride * case.step_seconds,
        "disk_bytes_per_machine": max(m.most for m in machines) * SHARD_BYTES,
    }


def restart(case: Case, readers: int) -> dict[str, Any]:
    """Stopped in the middle of an epoch; `readers` go on, with the disks they had or with none."""
    order, middle = case.order(), case.steps // 2
    after = replace(case, readers=readers)
    fetches, hits = [], []
    for ranks in after.machines():
        machine = Machine(CACHE_BYTES // SHARD_BYTES)
        if ranks.start < case.readers:
            # A short run up to the middle fills the cache with what it would hold there.
            run(case, order, ranks, middle - 4 * case.stride, middle, machine)
        needed = set(_needed(after, order, ranks, middle, 1))
        fetches.append(len(needed))
        hits.append(len(needed & set(machine.cached)))
    positions = np.concatenate(
        [order.positions(middle, ShardShare(after.batch, rank, readers)) for rank in range(readers)]
    )
    assert np.array_equal(np.sort(positions), middle * case.batch + np.arange(case.batch))
    return {
        "readers": readers,
        "gets_without_disks": float(np.mean(fetches)) * readers,
        "bytes_without_disks": float(np.mean(fetches)) * readers * SHARD_BYTES,
        "bytes_with_disks": float(np.mean(fetches) - np.mean(hits)) * readers * SHARD_BYTES,
        "seconds_per_reader": float(np.max(fetches)) * SHARD_BYTES / READER_BYTES_PER_SECOND,
    }


def computing(case: Case) -> dict[str, Any]:
    """CPU time and memory of the order: to set it up, and to find a batch of one rank."""
    tracemalloc.start()
    began = time.process_time()
    order = case.order()
    order.locate(order.positions(0, ShardShare(case.batch, 0, case.readers)))
    setup = time.process_time() - began
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    steps = np.random.default_rng(0).integers(0, case.steps, size=200)
    began = time.process_time()
    for step in steps:
        order.locate(order.positions(int(step), ShardShare(case.batch, 3, case.readers)))
    located = (time.process_time() - began) / len(steps)
    began = time.process_time()
    for step in steps[:20]:
        order.upcoming_shards(int(step), case.stride, ShardShare(case.batch, 3, case.readers))
    return {
        "setup_seconds": setup,
        "held_bytes": held,
        "peak_bytes": peak,
        "locate_seconds_per_step": located,
        "locate_share_of_step": located / case.step_seconds,
        "upcoming_seconds": (time.process_time() - began) / 20,
    }


def manifest(shards: int) -> dict[str, Any]:
    """Reading the record of an artifact with so many shards, in the form that a stage writes."""
    names = [f"train-{number:06d}.arrow" for number in range(shards)]
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in names}
    rows = [
        {
            "file": name,
            "split": "train",
            "sha256": digests[name],
            "bytes": SHARD_BYTES,
            "instances": ROWS_PER_SHARD,
            "tokens": ROWS_PER_SHARD * TOKENS_PER_ROW,
            "documents": 4_000,
        }
        for name in names
    ]
    record = {
        "stage": "instances",
        "fingerprint": "0" * 12,
        "summary": instances_summary(rows, 30_000, SpecialIds()).model_dump(mode="json"),
        "files": {name: {"bytes": SHARD_BYTES, "sha256": digests[name]} for name in names},
    }
    with tempfile.TemporaryDirectory(prefix="rungwise-bench-") as root:
        folder = Folder.at(root)
        folder.write_bytes(artifact.RECORD, json.dumps(record, indent=1).encode())
        del record, rows, digests
        began = time.process_time()
        loaded = artifact.load(folder)
        seconds = time.process_time() - began
        tracemalloc.start()
        loaded = artifact.load(folder)
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert loaded is not None
        assert len(InstancesSummary.of(loaded).files) == shards
        size = folder.size(artifact.RECORD)
    return {"bytes": size, "seconds": seconds, "held_bytes": held, "peak_bytes": peak}


def naive(case: Case) -> dict[str, Any]:
    """One permutation of everything: each row is a range request, or each shard is soon needed."""
    order = replace(case, lanes=1, window=case.shards * ROWS_PER_SHARD).order()
    requests, distinct = [], []
    for rank in case.machines():
        parts = [
            order.locate(order.positions(step, ShardShare(case.batch, rank.start, case.readers)))
            for step in range(100)
        ]
        requests.append(len(np.unique(np.concatenate([part.instances for part in parts]))))
        distinct.append(len(np.unique(np.concatenate([part.shards for part in parts]))))
    per_second = float(np.mean(requests)) / 100 * case.readers / case.step_seconds
    return {
        "gets_per_second": per_second,
        "prefixes_needed": per_second / BUCKET_GETS_PER_SECOND,
        "shards_touched_in_100_steps": float(np.mean(distinct)),
    }


MAIN = Case("1,024 lanes")
CHOICES = (
    MAIN,
    replace(MAIN, name="1,024 lanes, eight readers a machine", readers_per_machine=8, sampled=4),
    replace(MAIN, name="1,024 lanes, 1,024 readers", readers=1_024),
    replace(MAIN, name="1,000 lanes, batch 64,000", lanes=1_000, batch=64_000),
    replace(MAIN, name="1,000 lanes (no divisor of the batch)", lanes=1_000),
    replace(MAIN, name="8,192 lanes, window 2^17", lanes=8_192, window=1 << 17),
    replace(MAIN, name="1 lane", lanes=1, sampled=2, part=1 / 64),
)
MORE = replace(MAIN, shards=250_000, part=0.5)
TENFOLD = (
    replace(MORE, name="ten times the shards"),
    replace(MORE, name="and ten times the readers", readers=10_000),
    replace(MORE, name="and 8,192 lanes, window 2^17", readers=10_000, lanes=8_192, window=1 << 17),
    replace(
        MORE,
        name="and eight readers a machine",
        readers=10_000,
        lanes=8_192,
        window=1 << 17,
        readers_per_machine=8,
        sampled=4,
    ),
)


def measured() -> dict[str, Any]:
    """Every number, in SI units."""
    return {
        "date": datetime.date.today().isoformat(),
        "cpus": os.cpu_count(),
        "stated": {
            "shard_bytes": SHARD_BYTES,
            "rows_per_shard": ROWS_PER_SHARD,
            "tokens_per_row": TOKENS_PER_ROW,
            "reader_tokens_per_second": READER_TOKENS_PER_SECOND,
            "cache_bytes": CACHE_BYTES,
            "reader_bytes_per_second": READER_BYTES_PER_SECOND,
            "bucket_gets_per_second": BUCKET_GETS_PER_SECOND,
        },
        "manifest": {str(n): manifest(n) for n in (MAIN.shards, TENFOLD[0].shards)},
        "computing": {case.name: computing(case) for case in (MAIN, *TENFOLD)},
        "reading": {case.name: reading(case) for case in (*CHOICES, *TENFOLD)},
        "restart": [restart(MAIN, readers) for readers in (1_000, 1_024, 900)],
        "naive": naive(MAIN),
    }


def rows(results: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    """The table: what was asked, and the answer; measured now unless `results` are given."""
    results = results or measured()
    table: list[tuple[str, str]] = []
    for shards, item in results["manifest"].items():
        table.append(
            (
                f"manifest of {int(shards):,} shards",
                f"{item['bytes'] / 1e6:.1f} MB, parsed in {item['seconds']:.2f} s, "
                f"{item['held_bytes'] / 1e6:.0f} MB in memory",
            )
        )
    for name, item in results["computing"].items():
        table.append(
            (
                f"order, {name}",
                f"set up in {item['setup_seconds'] * 1e3:.0f} ms, {item['held_bytes'] / 1e6:.1f} "
                f"MB held; a rank's batch in {item['locate_seconds_per_step'] * 1e6:.0f} us "
                f"({item['locate_share_of_step']:.1%} of the step)",
            )
        )
    for name, item in results["reading"].items():
        table.extend(
            [
                (
                    f"{name}: epoch",
                    f"{item['epoch_seconds'] / 60:.0f} min; a machine fetches "
                    f"{item['downloads_per_epoch']:,.0f} shards, "
                    f"{item['shards_per_hour']:,.0f} an hour",
                ),
                (
                    f"{name}: from the bucket",
                    f"{item['downloaded_bytes_per_epoch'] / 1e12:.1f} TB, "
                    f"{item['amplification']:.2f} x the data; {item['gets_per_second']:.0f} "
                    f"GET/s, {item['bytes_per_second'] / 1e9:.1f} GB/s",
                ),
                (
                    f"{name}: at start",
                    f"{item['first_gets']:,.0f} GETs, at most "
                    f"{item['first_bytes_per_machine'] / 1e9:.1f} GB a machine; later at most "
                    f"{item['most_gets_after_start']:,.0f} in {item['stride_seconds']:.0f} s",
                ),
                (f"{name}: disk of a machine", f"{item['disk_bytes_per_machine'] / 1e9:.1f} GB"),
            ]
        )
    for item in results["restart"]:
        table.append(
            (
                f"restart in mid-epoch with {item['readers']:,} readers",
                f"{item['gets_without_disks']:,.0f} GETs, "
                f"{item['bytes_without_disks'] / 1e12:.2f} TB ("
                f"{item['bytes_with_disks'] / 1e12:.2f} TB if disks survive), "
                f"{item['seconds_per_reader']:.1f} s at 10 Gbit/s a reader",
            )
        )
    item = results["naive"]
    table.append(
        (
            "one global permutation, by range requests",
            f"{item['gets_per_second'] / 1e6:.2f} M GET/s, the limit of "
            f"{item['prefixes_needed']:,.0f} prefixes; a reader touches "
            f"{item['shards_touched_in_100_steps']:,.0f} shards in 100 steps",
        )
    )
    return table


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    results = measured()
    write_results("scale", results)
    print_rows("scale", rows(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
