"""Build many files on the cluster, each once; files left by a killed job are reused.

A file is determined by its order, so it does not matter which job built it. Its manifest row is
written after it, as a marker.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from rungwise.cluster.tasks import pack_items, run_tasks
from rungwise.core.stages.context import Reporter
from rungwise.core.stages.notes import read_note, write_note
from rungwise.core.storage.folder import Folder

MARKERS = "markers"

FileRow = dict[str, Any]  # of the manifest


class BuildOrder(Protocol):
    """An order for one file: plain data that can be pickled."""

    @property
    def file(self) -> str:
        """The name of the file."""
        ...

    @property
    def text_bytes(self) -> int:
        """Bytes of text in the file; the work is proportional to them."""
        ...


OrderT = TypeVar("OrderT", bound=BuildOrder)


def build_files(
    orders: Sequence[OrderT],
    build: Callable[[OrderT], FileRow],
    output: Folder,
    report: Reporter,
    on_row: Callable[[FileRow, int], None] = lambda row, done: None,
) -> list[FileRow]:
    """Build all files and return their rows in the order of `orders`: JSON from `build`, with the
    file's `sha256`. Calls `on_row` in this process with each row as it arrives and the number of
    rows so far. Raises the UserError that a `build` raised."""

    def build_pack(pack: list[OrderT]) -> Iterator[tuple[str, FileRow]]:
        for order in pack:
            marker = f"{MARKERS}/{order.file}.json"
            if (row := read_note(output, marker)) is None:
                row = build(order)
                write_note(output, marker, row, {order.file: row["sha256"]})
            yield order.file, row

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
