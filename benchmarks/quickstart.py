"""How long `make quickstart` takes and how much memory, cold and when everything is cached.

    python benchmarks/quickstart.py            prints a table and writes benchmarks/results/

Installation is not counted. Memory is the largest sum of the proportional set sizes (PSS) of all
processes that the run starts, read once a second; shared pages count once.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from rungwise.core.stages import artifact as artifacts
from rungwise.core.storage.folder import Folder

REPOSITORY = Path(__file__).resolve().parents[1]
CONFIG = "workflows/configs/quickstart.yaml"
READ = ("pretrain", "evaluate/libraries", "report")  # the stages whose records have the numbers


def measured(root: str) -> tuple[float, float, int]:
    """Seconds, peak GiB and exit status of one run with its artifacts below `root`."""
    command = [sys.executable, "workflows/finetune.py", CONFIG, f"root={root}"]
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=REPOSITORY)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _memory(process.pid))
        time.sleep(1)
    return time.monotonic() - began, peak / 2**30, process.returncode


def _memory(pid: int) -> int:
    total = 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for member in family:
        try:
            total += member.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def records(root: Folder) -> dict[str, dict[str, Any]]:
    """The record of each stage built below `root`, by its title."""
    return {each.record["title"]: each.record for each in artifacts.find_artifacts(root)}


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory(prefix="rungwise-bench-") as root:
        cold, memory, status = measured(root)
        if status:
            return status
        cached, _, status = measured(root)
        if status:
            return status
        stages = records(Folder.at(Path(root)))
    pretrain, evaluation, report = (stages[title] for title in READ)
    pretrain, evaluation = pretrain["summary"], evaluation["summary"]
    result = {
        "date": datetime.date.today().isoformat(),
        "cpus": os.cpu_count(),
        "commit": report["made_by"]["commit"],
        "cold_seconds": round(cold, 1),
        "cached_seconds": round(cached, 1),
        "peak_memory_gib": round(memory, 2),
        "stage_seconds": {stage: record["seconds"] for stage, record in stages.items()},
        "pretrain_tokens_per_second": round(
            pretrain["gradient"]["throughput"]["tokens_per_second"]
        ),
        "validation_mlm_loss": round(pretrain["final"]["mlm_loss"], 4),
        "unigram_loss": round(pretrain["unigram_loss"], 4),
        "accuracy": {k: v["estimates"]["accuracy"] for k, v in evaluation["variants"].items()},
        "differences": evaluation["differences"],
    }
    folder = REPOSITORY / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{result['date']}-quickstart.json").write_text(json.dumps(result, indent=1) + "\n")
    print("\nquickstart")
    for label, value in (
        ("everything built", f"{cold:.0f} s"),
        ("everything cached", f"{cached:.1f} s"),
        ("cold over cached", f"{cold / cached:.0f}"),
        ("peak memory", f"{memory:.2f} GiB"),
        ("pretraining", f"{result['pretrain_tokens_per_second']:,} tokens/s"),
        (
            "MLM loss under that by frequency alone",
            f"{result['unigram_loss'] - result['validation_mlm_loss']:.2f} nats",
        ),
    ):
        print(f"  {label:<32}{value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
