"""Build many files on the cluster, each once: what a killed job has left is taken as it is.

A file is built from its order, whoever builds it. Its row of the manifest is written after it, as a
marker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from rungwise.cluster.tasks import over, packed
from rungwise.core.context import Reporter
from rungwise.core.storage import Folder

MARKERS = "markers"

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

    def build_pack(pack: list[OrderT]) -> Iterator[tuple[str, Row]]:
        return ((order.file, _build_once(order, build, output)) for order in pack)

    text_bytes = {order.file: order.text_bytes for order in orders}
    documents = num_bytes = 0
    rows: dict[str, Row] = {}
    packs = packed(orders, [order.text_bytes for order in orders])
    for file, row in over(packs, build_pack):
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
