"""How fast models are trained, beside what others do with the same model and batch.

    python -m benchmarks.training                       everything: about a quarter of an hour
    python -m benchmarks.training --only step,ray
    python -m benchmarks.training --quick               a smoke run: one short round, nothing kept

    step     the bare step beside transformers and a nanoGPT-style step (training_step.py)
    ray      the loop on Ray Train beside the same loop on torch.distributed, one worker and two
    workers  one worker beside two, the same rows a worker, bare and on Ray Train
    growth   seconds and memory of a step as length, width and the number of workers grow

Competitors take turns, round after round, each in a process of its own, and every ratio is the
median of the ratios of the rounds. A full run puts its sections into benchmarks/results/, into the
file of its day, with every measurement; sections that were not run stay there as they were.
"""

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import training_runs
from benchmarks.common import median_ratio, results_path, take_turns, write_results
from benchmarks.training_cases import CASES
from benchmarks.training_step import OURS, Setting, Worker, compare, lines
from benchmarks.turns import Row
from rungwise.core.stages.provenance import provenance
from rungwise.training.loop import uses_bfloat16

_IN_BFLOAT16 = ("BERT small, 128", "GPT tiny, 256", "GPT small, 256")
_PROCESSORS = 2  # what more workers than this share


@dataclass(frozen=True)
class Bench:
    """What the sections share."""

    folder: Path
    quick: bool
    rounds: int
    for_seconds: float
    steps: int  # of a whole run


Section = tuple[list[Row], Any]  # the table's rows, and every measurement


def step(bench: Bench) -> Section:
    """Real tokens a second of a CPU thread, ours over each peer."""
    half = uses_bfloat16("auto", torch.device("cpu"))
    rows: list[Row] = []
    results: list[dict[str, Any]] = []
    for precision in ("float32", "bfloat16") if half else ("float32",):
        setting = Setting("cpu", precision, compile=False, threads=1)
        for number, case in enumerate(CASES["cpu"]):
            if precision == "bfloat16" and case.name not in _IN_BFLOAT16:
                continue
            if bench.quick and number:
                continue
            result = compare("cpu", number, setting, bench.rounds, bench.for_seconds)
            results.append(result)
            print("\n" + "\n".join(lines(result)), flush=True)
            rates = result["tokens_per_second"]
            rows += [
                Row(
                    f"{case.name}, {precision}: ours over {name}",
                    f"{ratio:.2f}",
                    f"{rates[OURS]:,.0f} over {rates[name]:,.0f} tokens/s of one thread; "
                    f"MFU {result['mfu'][OURS]:.0%} over {result['mfu'][name]:.0%}, so that bare "
                    f"matrix products would be {1 / result['mfu'][name]:.2f} times as fast",
                )
                for name, ratio in result["ratios"].items()
            ]
    return rows, results


def ray(bench: Bench) -> Section:
    """The target is at most 2 % more a step on Ray where a core is left for it, and less than 1 %
    of waiting for data. Two workers leave none on a machine of two."""
    rows: list[Row] = []
    measured: dict[str, Any] = {}
    for count in (1, 2):
        of_workers = f"{count} worker{'s' * (count > 1)}"
        runs = _take_turns(bench, {"bare": ("bare", count, 64), "ray": ("ray", count, 64)})
        measured[of_workers] = runs
        seconds = {name: [run["step_seconds"] for run in each] for name, each in runs.items()}
        ratios = [a / b for a, b in zip(seconds["ray"], seconds["bare"], strict=True)]
        milliseconds = {name: 1000 * median(values) for name, values in seconds.items()}
        rows.append(
            Row(
                f"step on Ray Train over bare torch.distributed, {of_workers}",
                f"{median(ratios):.3f}",
                f"{milliseconds['ray']:.0f} over {milliseconds['bare']:.0f} ms; rounds from "
                f"{min(ratios):.3f} to {max(ratios):.3f}",
            )
        )
        rows += [
            Row(
                f"share of waiting for data, {name}, {of_workers}",
                f"{median(run['data_wait_share'] for run in each):.2%}",
                f"the highest of {len(each)} runs {max(r['data_wait_share'] for r in each):.2%}",
            )
            for name, each in runs.items()
        ]
    return rows, measured


def workers(bench: Bench) -> Section:
    """Two workers read twice the rows a step; without any loss the ratio is 2. Two runs side by
    side, which share nothing but the machine, show what it can give."""
    titles = {"bare": "bare torch.distributed", "ray": "Ray Train", "apart": "two separate runs"}
    names = {f"{kind} 2": (kind, 2, 64) for kind in titles}
    measured = _take_turns(bench, {"bare 1": ("bare", 1, 64), "ray 1": ("ray", 1, 64)} | names)
    rates = {name: [run["tokens_per_second"] for run in runs] for name, runs in measured.items()}
    rows: list[Row] = []
    for kind, title in titles.items():
        one, two = rates["ray 1" if kind == "ray" else "bare 1"], rates[f"{kind} 2"]
        absolute = f"{median(two):,.0f} over {median(one):,.0f} tokens/s"
        label = f"two workers over one, tokens/s, {title}"
        rows.append(Row(label, f"{median_ratio(two, one):.2f}", absolute))
    return rows, measured


def growth(bench: Bench) -> Section:
    """BERT of two layers, one thread a worker, eight rows a step (sixteen a worker)."""
    rows: list[Row] = []
    measured: dict[str, list[dict[str, Any]]] = {}
    setting = Setting("cpu", "float32", compile=False, threads=1)
    for group in ("lengths", "widths"):
        for number, case in enumerate(CASES[group][: 2 if bench.quick else None]):
            worker = Worker(OURS, group, number, setting)
            runs = [
                worker.ask(do="measure", for_seconds=bench.for_seconds) for _ in range(bench.rounds)
            ]
            worker.close()
            measured[case.name] = runs
            rows.append(
                _size(case.name, median(run["seconds"] / run["steps"] for run in runs), runs)
            )
    for count in (1, 2) if bench.quick else (1, 2, 3, 4):
        runs = _take_turns(bench, {"run": ("bare", count, 16)}, rounds=1)["run"]
        name = f"{count} worker{'s' * (count > 1)}"
        measured[name] = runs
        peaks = [{"peak_bytes": peak} for run in runs for peak in run["peak_bytes"]]
        shared = f" on {_PROCESSORS} processors" if count > _PROCESSORS else ""
        rows.append(_size(name + shared, runs[0]["step_seconds"], peaks))
    return rows, measured


def _size(name: str, seconds: float, runs: list[dict[str, Any]]) -> Row:
    peak = max(run["peak_bytes"] for run in runs) / 2**20
    return Row(f"growth: {name}", f"{1000 * seconds:.0f} ms", f"peak {peak:,.0f} MiB a process")


def _take_turns(
    bench: Bench, competitors: dict[str, tuple[str, int, int]], rounds: int | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Runs of (kind, workers, rows a worker), in every round another one first."""
    if not (bench.folder / "instances").exists():
        training_runs.make_instances(bench.folder / "instances")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in competitors}
    for turn, name in take_turns(list(competitors), rounds or bench.rounds):
        print(f"  round {turn + 1}: {name}", file=sys.stderr)
        kind, count, rows = competitors[name]
        runs[name].append(training_runs.measure(bench.folder, kind, count, rows, bench.steps))
    return runs


SECTIONS: dict[str, Callable[[Bench], Section]] = {
    section.__name__: section for section in (step, ray, workers, growth)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between")
    parser.add_argument("--quick", action="store_true", help="one short round, nothing written")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = set(names) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="rungwise-bench-") as folder:
        bench = Bench(
            Path(folder),
            options.quick,
            rounds=1 if options.quick else options.rounds,
            for_seconds=0.2 if options.quick else 1.5,
            steps=10 if options.quick else 40,
        )
        for name in names:
            print(f"\n{name}", file=sys.stderr)
            section, measured = SECTIONS[name](bench)
            rows += section
            if not options.quick:
                _write_section(name, section, measured, bench)
    table = Table(title="Training, as ratios")
    for heading in ("what", "value", "behind it"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    for row in rows:
        table.add_row(row.label, row.value, row.absolute)
    Console().print(table)
    return 0


def _write_section(name: str, rows: list[Row], measured: Any, bench: Bench) -> None:
    """Put one section into the file of the day, beside those that are there."""
    path = results_path("training")
    sections = json.loads(path.read_text())["sections"] if path.exists() else {}
    sections[name] = {
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "made_by": provenance(),
        "machine": _machine(),
        "rounds": bench.rounds,
        "rows": [vars(row) for row in rows],
        "measured": measured,
    }
    write_results("training", {"date": datetime.date.today().isoformat(), "sections": sections})


def _machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "load_of_the_last_minute": os.getloadavg()[0],
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def _processor() -> str:
    """The model's name, where Linux tells it."""
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        for line in cpus.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
