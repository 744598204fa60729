"""Group rows by part, with the shuffle that is fastest for the amount of data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from rungwise.cluster.tasks import Packs

if TYPE_CHECKING:
    import ray.data

# Ray's default shuffle and its hash shuffle start their own processes, which takes 4 to 6 s, or
# half a minute under load. Its sort shuffle does 27 MB in 0.7 s, but creates an object for each
# pair of blocks. All three give the same result.
_SORTED_BELOW_BYTES = 4 << 30


Rows: TypeAlias = "pa.Table | ray.data.Dataset"


def map_packs(packs: Packs[int], rows: Callable[[list[int]], Iterator[pa.Table]]) -> Rows:
    """The tables that `rows` yields for each pack of numbers, made by tasks unless they are few."""
    if packs.small:
        tables = [table for pack in packs for table in rows(pack)]
        return pa.concat_tables(tables).combine_chunks()
    import ray.data

    def read(pack: pa.Table) -> Iterator[pa.Table]:
        return rows(pack["pack"].to_pylist())

    tables = ray.data.from_arrow([pa.table({"pack": pack}) for pack in packs])
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
