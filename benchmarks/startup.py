"""How long rungwise takes to start, beside what it cannot do without.

    python -m benchmarks.startup                   five rounds of all but the ladder, 15 minutes
    python -m benchmarks.startup --only run,again  these and their floors
    python -m benchmarks.startup --rounds 1 --only ladder

Every case is a command of its own, taking turns; a ratio is the median over the rounds of a case
over its floor in the same round. Of each command also the processes that it started, as seen by
twenty looks a second, their CPU seconds, whose ratio a machine that does other work changes less,
and the most memory that they held at once. Results go to today's file of benchmarks/results, where
what was not run stays as it was.

    floors    import torch | bare ray.init and one task | an empty TorchTrainer, one and two workers
              tokenizers and transformers' Trainer doing what TINY does
    TINY      15 documents of 60 words, byte BPE of 300, a GPT of 2 layers and 64, ten steps, to the
              report: `rungwise run pretrain`, fresh, again from the cache, and with two workers
    commands  plan, status, doctor, --help, an unknown key, a corpus that is one document
    stages    an empty stage on a Ray that runs; a sweep of twelve short trials
    ladder    `rungwise run ladder ladder-quick`, if asked for: many minutes
"""

import argparse
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.common import REPOSITORY, add_results, median_ratio, take_turns
from rungwise.core.stages import artifact as artifacts
from rungwise.core.storage.folder import Folder

LOOK_SECONDS = 0.05
LADDER = "ladder"
TORCH = "import torch"
RAY = """
import ray
ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=40)
ray.get(ray.remote(num_cpus=0)(lambda: None).remote())
"""
# With the health checks of rungwise/cluster/environment.py.
TRAINER = """
import os, sys, ray
os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.2"
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=40)
def work(): pass
scaling = ScalingConfig(num_workers=WORKERS)
TorchTrainer(work, scaling_config=scaling, run_config=RunConfig(storage_path=sys.argv[1])).fit()
"""
HUGGING_FACE = """
import pathlib, sys, torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
text, out = pathlib.Path(sys.argv[1]), sys.argv[2]
tokenizer = ByteLevelBPETokenizer()
tokenizer.train([str(text)], vocab_size=300, show_progress=False)
ids = [i for line in text.read_text().split("\\n\\n") for i in tokenizer.encode(line).ids]
rows = [{"input_ids": ids[i:i+64], "labels": ids[i:i+64]} for i in range(0, len(ids) - 64, 64)]
config = GPT2Config(vocab_size=300, n_layer=2, n_embd=64, n_head=2, n_positions=64)
arguments = TrainingArguments(out, max_steps=10, per_device_train_batch_size=8, report_to=[],
    use_cpu=True, disable_tqdm=True, eval_strategy="steps", eval_steps=5)
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows[2:], eval_dataset=rows[:2])
trainer.train()
trainer.save_model(out)
"""
EMPTY_STAGE = """
import time, ray
from rungwise.cluster.environment import set_environment
set_environment()
from rungwise.cluster.session import session
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages.stage import run_stage
def nothing(config, inputs, output, context): return None
with session(ComputeConfig()):
    task = ray.remote(num_cpus=0)(run_stage)
    from rungwise.core.stages.stage import Context
    ray.get(task.remote(nothing, None, {}, None, Context()))
    began = time.perf_counter()
    ray.get(task.remote(nothing, None, {}, None, Context()))
    print(time.perf_counter() - began)
"""


@dataclass(frozen=True)
class Case:
    """A command, what its time is compared with, and what must hold of the ratio."""

    command: Callable[[Path], list[str]]
    floor: str = ""
    most: float | None = None
    status: int = 0
    prepare: tuple[str, ...] = ()  # folders to empty before each round
    longest_seconds: float = 300


@dataclass(frozen=True)
class Measured:
    """One command: seconds, seconds until its first line, processes, their CPU seconds and the
    most GiB that they held at once, without what they share."""

    seconds: float
    first_line: float
    processes: int
    cpu: float
    memory: float


def python(code: str, *arguments: str) -> Callable[[Path], list[str]]:
    return lambda folder: [
        sys.executable,
        "-c",
        code,
        *(each.format(folder=folder) for each in arguments),
    ]


def rungwise(*arguments: str) -> Callable[[Path], list[str]]:
    return lambda folder: [
        *(sys.executable, "-m", "rungwise"),
        *(each.format(folder=folder) for each in arguments),
    ]


TINY = "{folder}/tiny.yaml"
CASES = {
    "import torch": Case(python(TORCH)),
    "ray.init and a task": Case(python(RAY)),
    "empty TorchTrainer of 1": Case(python(TRAINER.replace("WORKERS", "1"), "{folder}/empty")),
    "empty TorchTrainer of 2": Case(python(TRAINER.replace("WORKERS", "2"), "{folder}/empty")),
    "Trainer": Case(python(HUGGING_FACE, "{folder}/text/0.txt", "{folder}/hf")),
    "run": Case(rungwise("run", "pretrain", TINY), "ray.init and a task", 2.2, prepare=("root",)),
    "again": Case(rungwise("run", "pretrain", TINY), "import torch", 1.7),
    "run with 2 workers": Case(
        rungwise("run", "pretrain", TINY, "root={folder}/two", "compute.num_workers=2"),
        "empty TorchTrainer of 2",
        prepare=("two",),
    ),
    "plan": Case(rungwise("plan", "pretrain", TINY), "import torch", 2.0),
    "unknown key": Case(
        rungwise("run", "pretrain", TINY, "pretrain.stepz=5"), "import torch", 1.3, status=2
    ),
    "one document": Case(
        rungwise("run", "pretrain", "{folder}/one.yaml"), "import torch", status=2
    ),
    "status": Case(rungwise("status", "tiny"), "import torch", 1.5),
    "doctor": Case(rungwise("doctor"), "import torch", 1.5),
    "--help": Case(rungwise("--help"), "import torch"),
    "empty stage": Case(python(EMPTY_STAGE)),
    "sweep of 12": Case(
        rungwise("run", "finetune", "{folder}/sweep.yaml"), "run", prepare=("swept",)
    ),
    LADDER: Case(
        rungwise("run", "ladder", "ladder-quick", "root={folder}/ladder"),
        prepare=("ladder",),
        longest_seconds=7200,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each case runs; 5")
    parser.add_argument("--only", help=f"cases, with commas between: {', '.join(CASES)}")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else [name for name in CASES if name != LADDER]
    if strange := {*names} - {*CASES}:
        parser.error(f"there is no case {', '.join(strange)}; there is: {', '.join(CASES)}")
    names = [name for name in CASES if name in names or name in {CASES[n].floor for n in names}]
    results: dict[str, list[Measured]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="rungwise-startup-") as place:
        folder = Path(place)
        write_inputs(folder)
        if "again" in names or "status" in names:
            measure(CASES["run"], folder)
        for turn, name in take_turns(names, options.rounds):
            case = CASES[name]
            results[name].append(measure(case, folder))
            print(f"  round {turn + 1}: {name} {results[name][-1].seconds:.2f} s", file=sys.stderr)
        records = [
            each.record
            for root in ("root", "two", "swept", "ladder")
            for each in artifacts.find_artifacts(Folder.at(folder / root))
        ]
    add_results("startup", describe_machine(options.rounds), summarise(results, records))
    print_table(results, records)
    return 0


def write_inputs(folder: Path) -> None:
    """The text and the recipes of TINY, of one document and of the sweep."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(200)]
    sentence = lambda: " ".join(draw.choices(words, k=12)).capitalize() + "."  # noqa: E731
    documents = [" ".join(sentence() for _ in range(5)) for _ in range(15)]
    (folder / "text").mkdir()
    (folder / "text" / "0.txt").write_text("\n\n".join(documents))
    (folder / "one").mkdir()
    (folder / "one" / "0.txt").write_text(documents[0])
    source = {"kind": "text", "paths": [f"{folder}/text/*.txt"], "documents": "blank_line"}
    tiny: dict[str, Any] = {
        "name": "tiny",
        "root": f"{folder}/root",
        "corpus": {"sources": [source], "minimum_characters": 20, "held_out_fraction": 0.2},
        "tokenizer": {"kind": "byte_bpe", "vocab_size": 300},
        "instances": {"kind": "causal", "sequence_length": 64},
        "model": {"kind": "gpt", "num_layers": 2, "num_heads": 2, "hidden_size": 64},
        "pretrain": {
            "steps": 10,
            "global_batch_size": 8,
            "validation_every_steps": 5,
            "validation_instances": 8,
        },
        "compute": {"num_workers": 1},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(tiny))
    one = {"kind": "text", "paths": [f"{folder}/one/*.txt"]}
    blocks = {**tiny, "name": "one", "corpus": {"sources": [one]}}
    (folder / "one.yaml").write_text(yaml.safe_dump(blocks))
    rows = ["text\tlabel", *(f"{text[:80]}\t{'ab'[n % 2]}" for n, text in enumerate(documents * 4))]
    (folder / "task.tsv").write_text("\n".join(rows))
    data = {
        "kind": "files",
        "train": f"{folder}/task.tsv",
        "validation_fraction": 0.2,
        "test_fraction": 0.2,
        "format": {"kind": "table", "columns": {"text": "text", "label": "label"}},
    }
    sweep = {
        "name": "sweep",
        "root": f"{folder}/swept",
        "tasks": {"toy": {"data": data}},
        "finetune": {"epochs": 1, "pooling": "mean"},
        "evaluate": {"num_seeds": 2},
        "sweep": {
            "trials": 12,
            "space": {
                "finetune.learning_rate": {"kind": "loguniform", "low": 1.0e-4, "high": 1.0e-2}
            },
        },
    }
    (folder / "sweep.yaml").write_text(yaml.safe_dump(tiny | sweep))


def measure(case: Case, folder: Path) -> Measured:
    """Run the command of a case; raise an error if it ends otherwise than it should."""
    for name in case.prepare:
        subprocess.run(["rm", "-rf", str(folder / name)], check=True)
    environment = {name: value for name, value in os.environ.items() if "BYTECODE" not in name}
    environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/root/mlflow.db"
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
    paths = [str(REPOSITORY / "platform"), str(REPOSITORY)]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    log, before = folder / "log", reaped_seconds()
    began = time.perf_counter()
    with log.open("w") as stream:
        process = subprocess.Popen(
            case.command(folder), cwd=REPOSITORY, env=environment, stdout=stream, stderr=stream
        )
        cpu: dict[tuple[int, float], float] = {}
        first_line = memory = 0.0
        while process.poll() is None:
            memory = max(memory, look(process.pid, cpu))
            if not first_line and log.stat().st_size:
                first_line = time.perf_counter() - began
            if time.perf_counter() - began > case.longest_seconds:
                process.kill()
            time.sleep(LOOK_SECONDS)
    seconds = time.perf_counter() - began
    if process.returncode != case.status:
        raise RuntimeError(
            f"{case.command(folder)} ended with {process.returncode}: {log.read_text()}"
        )
    # The looks miss the last moments of a process, and the kernel those that nobody waited for.
    spent = max(sum(cpu.values()), reaped_seconds() - before)
    return Measured(seconds, first_line, len(cpu), spent, memory / (1 << 30))


def reaped_seconds() -> float:
    """CPU seconds of the processes that have ended and were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def look(pid: int, cpu: dict[tuple[int, float], float]) -> int:
    """Note the CPU seconds so far of a process and of all that it has started; return the bytes
    that they hold, without those that they share."""
    num_bytes = 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for each in family:
        try:
            times, memory = each.cpu_times(), each.memory_info()
            cpu[each.pid, each.create_time()] = times.user + times.system
            num_bytes += memory.rss - memory.shared
        except psutil.NoSuchProcess:
            continue
    return num_bytes


def ratio(results: dict[str, list[Measured]], name: str, of: str = "seconds") -> float | None:
    """The median of a case over its floor, `of` seconds or cpu; None without a floor."""
    floor = results.get(CASES[name].floor)
    if not floor:
        return None
    return median_ratio(
        *([getattr(each, of) for each in rounds] for rounds in (results[name], floor))
    )


def summarise(
    results: dict[str, list[Measured]], records: list[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """What is kept of each case, and where the time of the stages of TINY went."""
    rows: dict[str, dict[str, Any]] = {
        name: {
            "seconds": [round(each.seconds, 2) for each in rounds],
            "first_line_seconds": round(median(each.first_line for each in rounds), 2),
            "processes": median(each.processes for each in rounds),
            "cpu_seconds": round(median(each.cpu for each in rounds), 2),
            "gigabytes": round(median(each.memory for each in rounds), 2),
            "ratio": ratio(results, name),
            "cpu_ratio": ratio(results, name, "cpu"),
            "most": CASES[name].most,
        }
        for name, rounds in results.items()
    }
    stages = {f"{each['label']} {each['title']}": list_seconds(each) for each in records}
    return rows | {"stages": stages}


def list_seconds(record: dict[str, Any]) -> dict[str, float]:
    """Where the time of a stage went: of a sweep also the work of its trials."""
    seconds = {name: record[name] for name in ("seconds", "starting_seconds")}
    if record["stage"] == "sweep":
        seconds["of_trials"] = record["summary"]["seconds"]
        seconds["trials"] = len(record["summary"]["trials"])
    return seconds


def print_table(results: dict[str, list[Measured]], records: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in (
        "",
        "seconds",
        "first line",
        "processes",
        "CPU seconds",
        "GiB",
        "floor",
        "ratio",
        "of CPU",
        "at most",
    ):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, rounds in results.items():
        ratios = [ratio(results, name, of) for of in ("seconds", "cpu")]
        table.add_row(
            name,
            f"{median(each.seconds for each in rounds):.2f}",
            f"{median(each.first_line for each in rounds):.2f}",
            f"{median(each.processes for each in rounds):.0f}",
            f"{median(each.cpu for each in rounds):.2f}",
            f"{median(each.memory for each in rounds):.2f}",
            CASES[name].floor,
            *("" if each is None else f"{each:.2f}" for each in ratios),
            str(CASES[name].most or ""),
        )
    Console(width=130).print(table)


def describe_machine(rounds: int) -> dict[str, Any]:
    packages = {name: version(name) for name in ("ray", "torch", "mlflow", "transformers")}
    return {
        "rounds": rounds,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    } | packages


if __name__ == "__main__":
    sys.exit(main())
