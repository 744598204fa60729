"""Build many files on the cluster, each once: what a killed job has left is taken as it is.

A file is built from its order, whoever builds it. Its row of the manifest is written after it, as a
marker. Ray Data takes 0.1 to 0.2 s to schedule a task, so a task builds several files, one by one.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import ray
import ray.data

from rungwise.cluster.packing import packed
from rungwise.cluster.session import quiet_ray_data
from rungwise.core.context import Reporter
from rungwise.core.errors import UserError, from_text, to_text
from rungwise.core.storage import Folder

MARKERS = "markers"
_TASK_BYTES = 96e6  # of text: some five seconds of work

Row = dict[str, Any]


class Order(Protocol):
    """An order for one file; plain data that pickles."""

    @property
    def file(self) -> str:
        """The name of the file."""
        ...

    @property
    def text_bytes(self) -> int:
        """The text that goes into it, which is how long it takes."""
        ...


OrderT = TypeVar("OrderT", bound=Order)


def build_files(
    orders: Sequence[OrderT],
    build: Callable[[OrderT], Row],
    output: Folder,
    report: Reporter,
    built: Callable[[Row, int], None] = lambda row, done: None,
) -> list[Row]:
    """The row of every file in the order of `orders`; JSON, as `build` returns it.

    `built` is called here for each row as it comes, with the number of those that are done. Raises
    the UserError that a `build` raised.
    """
    quiet_ray_data()

    def run(batch: pa.Table) -> pa.Table:
        rows: list[str] = []
        for pickled in batch["order"].to_pylist():
            order = pickle.loads(pickled)
            try:
                rows.append(json.dumps([order.file, _build_once(order, build, output)]))
            except UserError as error:
                # As a row: Ray Data would put a page of its own words around the message.
                rows.append(json.dumps([None, to_text(error)]))
                break
        return pa.table({"row": rows})

    sizes = [order.text_bytes for order in orders]
    cpus = int(ray.cluster_resources().get("CPU", 1))
    packs = packed(orders, sizes, cpus * max(1, round(sum(sizes) / _TASK_BYTES / cpus)))
    tables = [pa.table({"order": [pickle.dumps(order) for order in pack]}) for pack in packs]
    text_bytes = {order.file: order.text_bytes for order in orders}
    documents = num_bytes = 0
    rows: dict[str, Row] = {}
    answers = ray.data.from_arrow(tables).map_batches(run, batch_size=None, batch_format="pyarrow")
    for answer in answers.iter_rows():
        file, row = json.loads(answer["row"])
        if file is None:
            raise from_text(row)
        rows[file] = row
        report.progress(len(rows), len(orders))
        documents += row["documents"]
        num_bytes += text_bytes[file]
        report.metrics({"read/documents": documents, "read/bytes": num_bytes}, step=len(rows))
        built(row, len(rows))
    return [rows[order.file] for order in orders]


def _build_once(order: OrderT, build: Callable[[OrderT], Row], output: Folder) -> Row:
    marker = f"{MARKERS}/{order.file}.json"
    if output.exists(marker):
        return json.loads(output.read_bytes(marker))
    row = build(order)
    output.write_bytes(marker, json.dumps(row).encode())
    return row
