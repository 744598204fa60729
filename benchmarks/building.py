"""Building a corpus of 10 TB, simulated: what the driver plans and holds, and what is shuffled.

    python -m benchmarks.building [TERABYTES]     prints a table and writes benchmarks/results/

The listing is made up. Ranges, tasks, summaries, orders and the parts of the shuffle come from the
functions of the stages, at full size where memory allows, and the rows say where not. Replaced is
the work on a range alone: one of real text is read and written, and its reports stand for all.
Times are CPU seconds of this machine; memory is what the process grew by. How a real build grows is
measured by benchmarks/large_file.py.
"""

import argparse
import datetime
import gc
import json
import multiprocessing
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.common import print_rows, write_results
from benchmarks.large_file import write_source
from rungwise.cluster import tasks
from rungwise.core.configuration.config import validate
from rungwise.core.stages.artifact import SharedResults
from rungwise.core.storage.folder import Folder
from rungwise.core.storage.source_files import SourceFile
from rungwise.corpus import config as config_module
from rungwise.corpus.building.held_out import HeldOutSplit
from rungwise.corpus.building.range_task import NO_POSITIONS, PositionFiles, RangeTask
from rungwise.corpus.building.stage import choose_partitions
from rungwise.corpus.cleaning import duplicates
from rungwise.corpus.config import CorpusConfig, Range, input_digests
from rungwise.corpus.summary import CorpusSummary, RangeReport, summarise_reports
from rungwise.instances.building import list_orders
from rungwise.instances.pairs import MaskedPairsConfig
from rungwise.tokenizer.token_stage import TokensRow

CPUS = 1_000
FILE_BYTES = 1_000_000_000
LOST_SHARE = 0.01  # of documents, to others with their text
PART_ROWS = (1_000_000, 4_000_000)


@contextmanager
def _measured(result: dict[str, Any], name: str) -> Iterator[None]:
    gc.collect()
    process = psutil.Process()
    before, began = process.memory_info().rss, time.process_time()
    yield
    result[f"{name}_seconds"] = time.process_time() - began
    result[f"{name}_held_bytes"] = process.memory_info().rss - before


def real_range(folder: Path) -> dict[str, Any]:
    """One range of real text, read and written: its reports, its documents, its bytes."""
    write_source(folder / "in.jsonl", 0.008)
    config = _config(str(folder / "in.jsonl"), 256.0)
    out = Folder.at(folder / "out")
    task = RangeTask(config, out, SharedResults(out / "shared"))
    [one] = config_module.name_ranges(config_module.list_ranges(config), config, version=0)
    reading = task.read(one)
    writing = task.write_training(one, NO_POSITIONS, HeldOutSplit(2**64 // 100))
    return {
        "read": json.dumps(reading.to_plain()),
        "written": json.dumps(writing.to_plain()),
        "documents_per_byte": reading.documents / one.num_bytes,
    }


def _config(path: str, shard_megabytes: float) -> CorpusConfig:
    source = {"kind": "jsonl", "paths": [path], "name": "web"}
    keys = {"sources": [source], "shard_megabytes": shard_megabytes}
    return validate(CorpusConfig, keys)


def planning(terabytes: float, shard_megabytes: float) -> tuple[dict[str, Any], tasks.Packs[Range]]:
    """The listing, its digest, the ranges and the tasks."""
    config = _config("s3://bucket/web", shard_megabytes)
    result: dict[str, Any] = {"terabytes": terabytes, "shard_megabytes": shard_megabytes}
    count = round(terabytes * 1e12 / FILE_BYTES)
    files = [
        SourceFile(f"s3://bucket/web/{n:05d}.jsonl", f"{n:05d}.jsonl", FILE_BYTES, f"{n:032x}")
        for n in range(count)
    ]
    with (
        mock.patch.object(config_module, "list_source_files", return_value=files),
        mock.patch.object(tasks.ray, "cluster_resources", return_value={"CPU": CPUS}),
    ):
        with _measured(result, "digest"):
            input_digests(config)
        with _measured(result, "ranges"):
            cut = config_module.list_ranges(config)
        with _measured(result, "packing"):
            packs = tasks.pack_items(cut, [one.num_bytes for one in cut])
    sizes = [sum(one.num_bytes for one in pack) for pack in packs]
    result |= {
        "files": count,
        "ranges": len(cut),
        "tasks": len(packs),
        "largest_task_bytes": max(sizes),
        "smallest_task_bytes": min(sizes),
        "orders_bytes": sum(len(pickle.dumps(pack)) for pack in packs),
    }
    return result, packs


def reporting(packs: tasks.Packs[Range], real: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Reports of all ranges in the driver, the summary made of them, and the artifact's record."""
    result: dict[str, Any] = {}
    count = sum(map(len, packs))
    read, written = real["read"], real["written"]
    with _measured(result, "reports"):
        reports = [RangeReport.from_plain(json.loads(read)) for _ in range(count)]
        reports += [
            RangeReport.from_plain(
                json.loads(written.replace("-00000.parquet", f"-{n:05d}.parquet"))
            )
            for n in range(count)
        ]
    with _measured(result, "summary"):
        summary = summarise_reports(reports)
    result["record_bytes"] = len(summary.model_dump_json())
    return result, summary


def ordering(summary: CorpusSummary) -> dict[str, Any]:
    """The orders of instances for every file of the corpus."""
    result: dict[str, Any] = {}
    rows = [
        TokensRow(
            file=row.file.replace(".parquet", ".arrow"),
            sha256="0" * 64,
            tokens=row.words,
            text_bytes=row.bytes,
            **{name: getattr(row, name) for name in ("split", "source", "documents", "sentences")},
        )
        for row in summary.files
    ]
    with (
        _measured(result, "orders"),
        mock.patch.object(tasks.ray, "cluster_resources", return_value={"CPU": CPUS}),
    ):
        orders = list_orders(MaskedPairsConfig(), rows)
        packs = tasks.pack_items(orders, [order.text_bytes for order in orders])
    result |= {"shards": len(orders), "tasks": len(packs)}
    return result


def shuffling(packs: tasks.Packs[Range], documents_per_byte: float) -> dict[str, Any]:
    """Keys of all documents: how many parts, what a part costs, and who is lost, written and found
    again by a task."""
    num_bytes = sum(one.num_bytes for pack in packs for one in pack)
    documents = round(num_bytes * documents_per_byte)
    moved = 2 * documents * duplicates.ROW_BYTES
    parts = choose_partitions(moved)
    result: dict[str, Any] = {
        "documents": documents,
        "moved_bytes": moved,
        "parts": parts,
        "part_rows": 2 * documents // parts,
    }
    rng = np.random.default_rng(0)
    for rows in PART_ROWS:
        part = _part(rng, rows // 2)
        with _measured(result, f"decide_{rows}"):
            duplicates.decide(part, True, threshold=0)
        result[f"part_{rows}_bytes"] = part.nbytes
        del part
    count = sum(map(len, packs))
    lost = round(documents * LOST_SHARE / parts)
    sample = np.column_stack(
        [
            np.sort(rng.integers(0, count, min(lost, 1_000_000))),
            np.zeros((min(lost, 1_000_000), 2), np.int64),
        ]
    )
    with tempfile.TemporaryDirectory(prefix="rungwise-bench-") as name:
        output = Folder.at(name)
        files = PositionFiles(output, "duplicates", 1)
        with _measured(result, "write_lost"):
            files.write(0, sample)
        (file,) = output.sizes().values()
        with _measured(result, "find_lost"):
            positions = files.read(packs[0])
    result |= {"lost_rows": len(sample), "lost_file_bytes": file, "lost_found": len(positions)}
    return result


def _part(rng: np.random.Generator, documents: int) -> pa.Table:
    """The rows of so many documents, all of one part."""
    words = rng.integers(0, 256, (documents, 32), np.uint8)
    digest, name = (
        pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), documents, [None, pa.py_buffer(np.ascontiguousarray(half))]
        )
        for half in (words[:, :16], words[:, 16:])
    )
    keys = pa.table(
        {"digest": digest, "name": name, "split": words[:, :8].copy().view("<u8")[:, 0]}
    )
    return duplicates.key_rows(keys, 0, 1)


def simulate(
    terabytes: float, megabytes: float, *, whole: bool, real: dict[str, Any]
) -> dict[str, Any]:
    """The numbers of one case, with reports and instances if `whole`."""
    case, packs = planning(terabytes, megabytes)
    if whole:
        reports, summary = reporting(packs, real)
        case |= {"reports": reports, "instances": ordering(summary)}
    return case | {"shuffle": shuffling(packs, real["documents_per_byte"])}


def measured(terabytes: float) -> dict[str, Any]:
    """Every number, in SI units."""
    with tempfile.TemporaryDirectory(prefix="rungwise-bench-") as name:
        real = real_range(Path(name))
    # By the default size of a range, reports would fill this machine: those of a tenth of the text.
    cases = ((terabytes, 256.0, True), (terabytes, 8.0, False), (terabytes / 10, 8.0, True))
    # A process each, so that memory that one case has freed does not hide what the next takes.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        futures = [pool.submit(simulate, *size, whole=whole, real=real) for *size, whole in cases]
        results = [future.result() for future in futures]
    return {
        "date": datetime.date.today().isoformat(),
        "stated": {"cpus": CPUS, "file_bytes": FILE_BYTES, "lost_share": LOST_SHARE},
        "documents_per_megabyte": real["documents_per_byte"] * 1e6,
        "cases": results,
    }


def rows(results: dict[str, Any]) -> list[tuple[str, str]]:
    """The table."""
    table: list[tuple[str, str]] = []
    for case in results["cases"]:
        name = f"{case['terabytes']:g} TB in ranges of {case['shard_megabytes']:g} MB"
        shuffle, large = case["shuffle"], PART_ROWS[-1]
        seconds = case["digest_seconds"] + case["ranges_seconds"] + case["packing_seconds"]
        table += [
            (
                f"{name}: plan",
                f"{case['files']:,} files, {case['ranges']:,} ranges, {case['tasks']:,} tasks of "
                f"{case['smallest_task_bytes'] / 1e6:,.0f} to "
                f"{case['largest_task_bytes'] / 1e6:,.0f} MB in {seconds:.1f} s; "
                f"{(case['ranges_held_bytes'] + case['packing_held_bytes']) / 1e6:,.0f} MB held, "
                f"{case['orders_bytes'] / 1e6:,.0f} MB of orders",
            ),
            (
                f"{name}: keys",
                f"{shuffle['documents'] / 1e9:.1f} G documents, "
                f"{shuffle['moved_bytes'] / 1e9:,.0f} GB in {shuffle['parts']} parts of "
                f"{shuffle['part_rows'] / 1e6:.1f} M rows; "
                f"{large / 1e6:.0f} M rows are decided in {shuffle[f'decide_{large}_seconds']:.1f} "
                f"s on top of {shuffle[f'part_{large}_bytes'] / 1e6:,.0f} MB of them",
            ),
            (
                f"{name}: who is lost",
                f"one part of {shuffle['lost_rows']:,} written in "
                f"{shuffle['write_lost_seconds']:.2f} s, a task finds its own in "
                f"{shuffle['find_lost_seconds'] * 1e3:.1f} ms a part",
            ),
        ]
        if "reports" in case:
            reports, instances = case["reports"], case["instances"]
            table += [
                (
                    f"{name}: reports",
                    f"{reports['reports_held_bytes'] / 1e6:,.0f} MB held, summed up in "
                    f"{reports['summary_seconds']:.1f} s, a record of "
                    f"{reports['record_bytes'] / 1e6:,.0f} MB",
                ),
                (
                    f"{name}: instances",
                    f"{instances['shards']:,} orders in {instances['tasks']:,} tasks, "
                    f"{instances['orders_seconds']:.1f} s, "
                    f"{instances['orders_held_bytes'] / 1e6:,.0f} MB held",
                ),
            ]
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("terabytes", nargs="?", type=float, default=10.0)
    results = measured(parser.parse_args().terabytes)
    write_results("building", results)
    print_rows("building", rows(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
