"""Process many items on the cluster, several per task, and build files that a killed job may reuse.

Ray Data submits all tasks and Ray queues them: Ray Data's own budget is meant for data in transit.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
import ray

from rungwise.core.errors import UserError, from_text, to_text
from rungwise.core.stages.stage import Reporter

if TYPE_CHECKING:
    import ray.data


# Bytes of text; instances are built at 60 MB/s, a corpus at 25.
_MOST_BYTES, _LEAST_BYTES = 96e6, 16e6
# Each waiting task costs the driver time whenever a task ends, so larger jobs get larger tasks.
_MOST_TASKS = 10_000
# Text that is not worth a process, which imports for seconds.
_SMALL_BYTES = 1e6

ItemT = TypeVar("ItemT")


class Packs(list[list[ItemT]]):
    """Items by task. `small`: all of them together are not worth starting a task."""

    def __init__(self, packs: Iterable[list[ItemT]], small: bool = False) -> None:
        super().__init__(packs)
        self.small = small


def pack_items(items: Sequence[ItemT], num_bytes: Sequence[float]) -> Packs[ItemT]:
    """Pack `items` with `num_bytes` of text each into tasks, the largest items first. A task gets
    half an even share of the rest, within bounds; its items keep their order."""
    if sum(num_bytes) < _SMALL_BYTES:
        return Packs([list(items)] if items else [], small=True)
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
    return Packs([items[index] for index in sorted(pack)] for pack in packs)


def run_tasks(packs: Packs[ItemT], work: Callable[[list[ItemT]], Iterable[Any]]) -> Iterator[Any]:
    """Yield the results of `work` on each pack as JSON data. Raises the UserError of a task."""
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


# Ray's default shuffle and its hash shuffle start their own processes, which takes 4 to 6 s, or
# half a minute under load. Its sort shuffle does 27 MB in 0.7 s, but creates an object for each
# pair of blocks. All three give the same result.
_SORTED_BELOW_BYTES = 4 << 30


Rows: TypeAlias = "pa.Table | ray.data.Dataset"


def map_packs(packs: Packs[ItemT], rows: Callable[[list[ItemT]], Iterator[pa.Table]]) -> Rows:
    """The tables that `rows` yields for each pack, made by tasks unless they are few."""
    if packs.small:
        tables = [table for pack in packs for table in rows(pack)]
        return pa.concat_tables(tables).combine_chunks()
    import ray.data

    def read(order: pa.Table) -> Iterator[pa.Table]:
        return rows(pickle.loads(order["pack"][0].as_py()))

    tables = ray.data.from_arrow([pa.table({"pack": [pickle.dumps(pack)]}) for pack in packs])
    return tables.map_batches(read, batch_size=None, batch_format="pyarrow")


def unite(one: Rows, other: Rows) -> Rows:
    """The rows of both, which are both tables or neither."""
    if isinstance(one, pa.Table):
        return pa.concat_tables([one, cast(pa.Table, other)])
    return one.union(cast("ray.data.Dataset", other))


def group_parts(
    rows: Rows,
    column: str,
    num_parts: int,
    moved_bytes: float,
    decide: Callable[[pa.Table], pa.Table],
) -> Rows:
    """Apply `decide` to all rows of each part, numbered by `column`."""
    if isinstance(rows, pa.Table):
        parts = [rows]
        if num_parts > 1:
            parts = [rows.filter(pc.field(column) == number) for number in range(num_parts)]
        return pa.concat_tables([decide(part) for part in parts if len(part) or num_parts == 1])
    from ray.data.context import ShuffleStrategy

    if num_parts == 1:
        whole = rows.repartition(1)
        return whole.map_batches(decide, batch_size=None, batch_format="pyarrow")
    if moved_bytes < _SORTED_BELOW_BYTES:
        rows.context.shuffle_strategy = ShuffleStrategy.SORT_SHUFFLE_PULL_BASED
    return rows.groupby(column, num_partitions=num_parts).map_groups(decide, batch_format="pyarrow")


def list_rows(rows: Rows) -> Iterator[dict[str, Any]]:
    if isinstance(rows, pa.Table):
        yield from cast(Any, rows).to_pylist()
    else:
        yield from cast("ray.data.Dataset", rows).iter_rows()


FileRow = dict[str, Any]  # of the manifest


class BuildOrder(Protocol):
    """An order for one file: plain data that can be pickled. The work is proportional to the bytes
    of text in the file."""

    @property
    def file(self) -> str: ...
    @property
    def text_bytes(self) -> int: ...


OrderT = TypeVar("OrderT", bound=BuildOrder)


def build_files(
    orders: Sequence[OrderT],
    build: Callable[[OrderT], FileRow],
    report: Reporter,
    on_row: Callable[[FileRow, int], None] = lambda row, done: None,
) -> list[FileRow]:
    """Build all files and return their rows in the order of `orders`, with the file's `sha256`.
    Calls `on_row` with each row as it arrives and their number. Raises the UserError of a build."""

    def build_pack(pack: list[OrderT]) -> Iterator[tuple[str, FileRow]]:
        for order in pack:
            yield order.file, build(order)

    text_bytes = {order.file: order.text_bytes for order in orders}
    documents = num_bytes = 0
    rows: dict[str, FileRow] = {}
    packs = pack_items(orders, list(text_bytes.values()))
    for file, row in run_tasks(packs, build_pack):
        rows[file] = row
        report.progress(len(rows), len(orders))
        documents += row["documents"]
        num_bytes += text_bytes[file]
        report.metrics({"read/documents": documents, "read/bytes": num_bytes}, step=len(rows))
        on_row(row, len(rows))
    return [rows[order.file] for order in orders]
