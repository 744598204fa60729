"""One large JSON Lines file through corpus, tokens and instances on one and on two workers.

    python -m benchmarks.large_file [GIGABYTES ...] [--workers 1,2] [--kill worker|job]

Prints for each stage the wall time, the CPU seconds of its workers, how busy they were over the
whole and over the last fifth, and the most memory that one of them, and the driver, held (resident,
without what they share). Several sizes show how a build grows. `--kill worker` ends one worker by
SIGKILL in the middle of the corpus; `--kill job` ends everything there, starts the job again and
counts the ranges that were read twice. The digests of all files of one size have to be equal
however they were made.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks import texts
from rungwise.corpus.building.range_task import STAGING

_EVERY_SECONDS = 0.5


def write_source(path: Path, gigabytes: float) -> None:
    """English with changed words (benchmarks/texts.py) as JSON Lines, copy after copy."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, path.open("wb") as stream:
        base = texts.write_corpus(texts.english(40_000_000), Path(folder) / "english")
        copy = 0
        while stream.tell() < gigabytes * 1e9:
            for file in texts.files(base, "train"):
                for document in texts.changed(base, file, copy):
                    record = {"id": document.id, "text": document.paragraphs[0]}
                    stream.write(json.dumps(record).encode() + b"\n")
            copy += 1


def job(wanted: dict[str, Any]) -> None:
    """The three stages on a Ray of its own; a line to standard output as each begins and ends."""
    from rungwise.cluster.environment import set_environment
    from rungwise.cluster.session import session
    from rungwise.core.configuration.config import validate
    from rungwise.core.configuration.overrides import ComputeConfig
    from rungwise.core.stages.artifact import Artifact
    from rungwise.core.stages.stage import Context, StageType
    from rungwise.core.storage.folder import Folder
    from rungwise.corpus.config import CorpusConfig
    from rungwise.corpus.summary import CORPUS
    from rungwise.instances.pairs import MaskedPairsConfig
    from rungwise.instances.summary import INSTANCES
    from rungwise.tokenizer import TokenizerFileConfig
    from rungwise.tokenizer.config import WordPieceConfig
    from rungwise.tokenizer.token_stage import TOKENIZER, TOKENS

    pairs = MaskedPairsConfig.model_validate({"sequence_length": 128})
    sources = [{"kind": "jsonl", "paths": [wanted["source"]], "id_field": "id"}]
    corpus = validate(CorpusConfig, {"sources": sources})
    data = texts.real_data()
    tokenizer = (
        WordPieceConfig(vocab_size=8192)
        if data is None
        else TokenizerFileConfig(path=str(data / "vocab" / "bert-base-uncased"))
    )
    context = Context(ComputeConfig(object_store_megabytes=1024))
    stages: list[tuple[StageType[Any, Any], Any]] = [
        (CORPUS, corpus),
        (TOKENIZER, tokenizer),
        (TOKENS, pairs.tokens),
        (INSTANCES, pairs),
    ]
    inputs: dict[str, Artifact] = {}
    set_environment()
    with session(context.compute, num_cpus=wanted["workers"]):
        for stage, config in stages:
            print(json.dumps({"begins": stage.name}), flush=True)
            output = Folder(wanted["output"]) / stage.name
            summary = stage.run(config, inputs, output, context)
            inputs[stage.name] = summary.replace_summary(Artifact(stage.name, "", output, {}))
            print(json.dumps({"ends": stage.name, "files": summary.sha256}), flush=True)


class Watched:
    """The job as a process, with what its workers used, seen from outside twice a second."""

    def __init__(self, folder: Path, wanted: dict[str, Any]) -> None:
        path = folder / "wanted.json"
        path.write_text(json.dumps(wanted))
        self.output, self.workers = Path(wanted["output"]), wanted["workers"]
        self.files: dict[str, Any] = {}
        self.begun: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.samples: list[tuple[float, dict[int, tuple[float, int]]]] = []
        self.driver_bytes = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.large_file", "--job", str(path)],
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | {"RAY_worker_niceness": "0", "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._printed = b""

    def step(self) -> bool:
        """Look once; whether the job still runs."""
        assert self._process.stdout is not None
        running = self._process.poll() is None
        self._printed += self._process.stdout.read() or b""
        *lines, self._printed = self._printed.split(b"\n")
        now = time.monotonic()
        for line in lines:
            event = json.loads(line)
            if "begins" in event:
                self.begun[event["begins"]] = now
            else:
                self.ended[event["ends"]] = now
                self.files[event["ends"]] = event["files"]
        self.samples.append((now, {each.pid: _used(each) for each in self.ray_workers()}))
        self.driver_bytes = max(self.driver_bytes, _used(self._process.pid)[1])
        time.sleep(_EVERY_SECONDS)
        return running

    def ray_workers(self) -> list[psutil.Process]:
        """Processes of tasks: Ray names them ray::..."""
        try:
            children = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [each for each in children if _name(each).startswith("ray::")]

    def markers(self, pattern: str) -> dict[str, int]:
        """The ranges of the corpus that were read, and when."""
        paths = self.output.glob(f"corpus/{STAGING}/{pattern}")
        return {path.name: path.stat().st_mtime_ns for path in paths}

    def wait(self) -> None:
        while self.step():
            pass
        if self._process.returncode:
            raise SystemExit(f"the job ended with {self._process.returncode}")

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def table(self) -> None:
        for stage, begin in self.begun.items():
            end = self.ended[stage]
            last = end - (end - begin) / 5
            samples = [usage for at, usage in self.samples if begin <= at <= end]
            peak = max((memory for usage in samples for _, memory in usage.values()), default=0)
            spent, available = self._spent(begin, end), (end - begin) * self.workers
            print(
                f"  {stage:<12}{end - begin:7.1f} s   {spent:6.1f} CPU s   busy "
                f"{spent / available:4.0%}, last fifth "
                f"{self._spent(last, end) / available * 5:4.0%}   "
                f"peak of a worker {peak / 2**20:,.0f} MiB"
            )
        seconds = max(self.ended.values()) - min(self.begun.values())
        print(f"  together    {seconds:7.1f} s   driver {self.driver_bytes / 2**20:,.0f} MiB")

    def _spent(self, begin: float, end: float) -> float:
        """CPU seconds of all workers."""
        samples = [usage for at, usage in self.samples if begin <= at <= end]
        return sum(
            cpu - before.get(pid, (0.0, 0))[0]
            for before, after in itertools.pairwise(samples)
            for pid, (cpu, _) in after.items()
        )


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _used(process: psutil.Process | int) -> tuple[float, int]:
    """CPU seconds, and bytes of memory that are the process's own."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        times, memory = process.cpu_times(), process.memory_info()
    except psutil.Error:
        return 0.0, 0
    return times.user + times.system, memory.rss - memory.shared


def _run(folder: Path, source: Path, workers: int, kill: str = "") -> dict[str, Any]:
    name = f"{workers} workers" + (f", {kill} killed" if kill else "")
    output = folder / name.replace(" ", "-").replace(",", "")
    job = {"source": str(source), "output": str(output), "workers": workers}
    print(name, flush=True)
    watched = Watched(folder, job)
    if kill:
        most = source.stat().st_size / 2
        while watched.step() and _read_bytes(output) < most:
            pass
        if kill == "worker":
            victim = max(watched.ray_workers(), key=lambda each: each.cpu_times().user)
            print(f"  SIGKILL to one of {len(watched.ray_workers())} workers", flush=True)
            victim.kill()
        else:
            watched.kill()
            before = watched.markers("*.keys.arrow")
            watched = Watched(folder, job)
            again = before
            while watched.step() and len(again) <= len(before) and "corpus" not in watched.ended:
                again = watched.markers("*.keys.arrow") or again
            same = sum(again.get(name) == at for name, at in before.items())
            print(f"  {len(before)} ranges were read, {same} of them are as they were", flush=True)
    watched.wait()
    watched.table()
    return watched.files


def _read_bytes(output: Path) -> int:
    return sum(path.stat().st_size for path in output.glob(f"corpus/{STAGING}/*.text.arrow"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("gigabytes", nargs="*", type=float, default=[2.0])
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--kill", choices=("worker", "job"), action="append", default=[])
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(json.loads(Path(options.job).read_text()))
        return
    workers = [int(each) for each in options.workers.split(",")]
    for gigabytes in options.gigabytes:
        with tempfile.TemporaryDirectory(prefix="rungwise-bench-") as name:
            source = Path(name) / "in.jsonl"
            write_source(source, gigabytes)
            print(f"{source.stat().st_size / 1e9:.2f} GB of JSON Lines", flush=True)
            files = [_run(source.parent, source, each) for each in workers]
            files += [_run(source.parent, source, max(workers), kill) for kill in options.kill]
            if any(each != files[0] for each in files):
                raise SystemExit("the files are not the same")
            print(f"the files of {len(files)} runs have the same digests")


if __name__ == "__main__":
    main()
