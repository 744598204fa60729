"""Process many items on the cluster, several per task.

Tasks take some seconds, so that starting them costs little, and get smaller towards the end, so
that all CPUs finish together. Ray Data submits them all and Ray queues them: with its own budget,
Ray Data would begin with one task, notice the other CPUs a second later (several in a new cluster),
and replace a finished task up to 0.1 s late. That budget is meant for data in transit, whereas
these are only orders and reports.

Few bytes are processed here, in less time than a task takes to start.
"""

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import ray

from rungwise.core.errors import UserError, from_text, to_text

# Bytes of text; instances are built at 60 MB/s, a corpus at 25.
_MOST_BYTES, _LEAST_BYTES = 96e6, 16e6
# Each waiting task costs the driver time whenever a task ends, so larger jobs get larger tasks.
_MOST_TASKS = 10_000
# Text that is not worth a process, which imports for seconds.
_SMALL_BYTES = 1e6

ItemT = TypeVar("ItemT")
OtherT = TypeVar("OtherT")


class Packs(list[list[ItemT]]):
    """Items by task. `small`: all of them together are not worth starting a task."""

    def __init__(self, packs: Iterable[list[ItemT]], small: bool = False) -> None:
        super().__init__(packs)
        self.small = small

    def map(self, function: Callable[[ItemT], OtherT]) -> "Packs[OtherT]":
        """The packs with `function` of each item in its place."""
        return Packs(([function(item) for item in pack] for pack in self), self.small)


def is_small(num_bytes: float) -> bool:
    """Whether so much text is processed in less time than a task takes to start."""
    return num_bytes < _SMALL_BYTES


def pack_items(items: Sequence[ItemT], num_bytes: Sequence[float]) -> Packs[ItemT]:
    """Pack `items` with `num_bytes` of text each into tasks, the largest items first. A task gets
    half an even share of the rest, within bounds; its items keep their order."""
    if is_small(sum(num_bytes)):
        return Packs([list(items)] if items else [], small=True)
    return Packs(_pack(items, num_bytes))


def _pack(items: Sequence[ItemT], num_bytes: Sequence[float]) -> list[list[ItemT]]:
    cpus, rest = max(1, int(ray.cluster_resources().get("CPU", 1))), sum(num_bytes)
    most = max(_MOST_BYTES, rest / _MOST_TASKS)
    least = min(_LEAST_BYTES, rest / cpus)
    packs: list[list[int]] = []
    room = 0.0
    for index in sorted(range(len(items)), key=lambda index: -num_bytes[index]):
        if room <= 0:
            packs.append([])
            room = min(max(rest / cpus / 2, least), most)
        packs[-1].append(index)
        room -= num_bytes[index]
        rest -= num_bytes[index]
    return [[items[index] for index in sorted(pack)] for pack in packs]


def run_tasks(packs: Packs[ItemT], work: Callable[[list[ItemT]], Iterable[Any]]) -> Iterator[Any]:
    """Run `work` on each pack as a task and yield its results, converted to JSON and back. Raises
    the UserError that a task raised."""
    if packs.small:
        for pack in packs:
            yield from (json.loads(json.dumps(each)) for each in work(pack))
        return
    import ray.data  # takes a second

    from rungwise.cluster.session import quiet_ray_data

    quiet_ray_data()

    def rows(batch: pa.Table) -> Iterator[pa.Table]:
        [pack] = batch["pack"].to_pylist()
        try:
            for each in work(pickle.loads(pack)):
                yield pa.table({"row": [json.dumps(each)], "error": [False]})
        except UserError as error:
            # Returned as a row, because Ray Data would wrap an exception in a page of text.
            yield pa.table({"row": [to_text(error)], "error": [True]})

    orders = [{"pack": pickle.dumps(pack)} for pack in packs]
    dataset = ray.data.from_items(orders, override_num_blocks=max(1, len(orders)))
    dataset.context.op_resource_reservation_enabled = False
    for row in dataset.map_batches(rows, batch_size=1, batch_format="pyarrow").iter_rows():
        if row["error"]:
            raise from_text(row["row"])
        yield json.loads(row["row"])
