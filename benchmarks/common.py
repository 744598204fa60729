"""What the benchmarks share: turns, processes of their own, files of results.

It needs the standard library alone, since training_step.py runs on a bare GPU machine.
"""

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_IO_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def take_turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield every competitor once a round, and in every round another one first."""
    for turn in range(rounds):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            yield turn, name


def median_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios of the rounds."""
    return median(a / b for a, b in zip(values, others, strict=True))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of values and Student's 95 % interval; NaN for one of a single value."""
    from scipy import stats

    half = float("nan")
    if len(values) > 1:
        half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return fmean(values), fmean(values) - half, fmean(values) + half


def run_alone(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module in a process of its own, with one thread; return the JSON of its last line."""
    paths = [str(REPOSITORY / "platform"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    finished = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=REPOSITORY,
        env=os.environ | ONE_THREAD | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(finished.stdout.strip().splitlines()[-1])


def results_path(kind: str) -> Path:
    """The file of today for results of this kind."""
    RESULTS.mkdir(exist_ok=True)
    return RESULTS / f"{datetime.date.today().isoformat()}-{kind}.json"


def write_results(kind: str, results: dict[str, Any]) -> None:
    results_path(kind).write_text(json.dumps(results, indent=1) + "\n")


def add_results(kind: str, made_by: dict[str, Any], results: dict[str, Any]) -> None:
    """Write results into the file of today; what was not run stays there as it was."""
    path = results_path(kind)
    before = json.loads(path.read_text())["found"] if path.exists() else {}
    write_results(kind, {"made_by": made_by, "found": before | results})


def print_rows(title: str, rows: Sequence[tuple[str, str]]) -> None:
    print(f"\n{title}")
    width = max(len(label) for label, _ in rows) + 2
    for label, value in rows:
        print(f"  {label:<{width}}{value}")
