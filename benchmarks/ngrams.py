"""What a task needs to estimate an n-gram model: memory, processor time, and the same bits as one.

    python -m benchmarks.ngrams                          8 M tokens of order 5, minutes of a core
    python -m benchmarks.ngrams --millions 100 --parts 8    without a single task of everything

The text is real English (texts.py) as words and marks, the 29,990 most frequent with an id; copies
of it, if more is asked for, have every tenth token replaced by another of the text, so that 41 % of
their 5-grams are new. Each task of kneser_ney.py runs in a process of its own, which reads its
arguments from files and writes its results to files: its peak of resident memory has all of them,
numpy and Python included. Ray would hold them in shared memory instead.
"""

import argparse
import hashlib
import multiprocessing
import pickle
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import texts
from benchmarks.common import add_results, print_rows
from rungwise.models.families.kneser_ney import Smoothing, estimate_tensors
from rungwise.models.fitting import Tasks
from rungwise.models.ngram_model import Ids, count_ngrams, split_table
from rungwise.training.tensor_files import create_arrays, map_arrays

WORDS, CHANGED, ORDER = 29_990, 0.1, 5
START, END, UNKNOWN, FIRST_WORD = 2, 3, 4, 5
VOCAB_SIZE = WORDS + FIRST_WORD
SHARD = 2_000_000  # tokens, about what a corpus shard of 8 MB has
# Among many tokens no word of the vocabulary is rare, which leaves unigrams without discounts.
SMOOTHING = Smoothing(fallback=(0.5, 1.0, 1.5))


class Processes(Tasks):
    """Runs each task in a process of its own, and measures it. A handle is a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seconds: Counter[str] = Counter()
        self.gigabytes: Counter[str] = Counter()

    def call(
        self, number: int, function: Callable[..., Sequence[Any]], *arguments: Any
    ) -> list[Path]:
        name = getattr(function, "__name__", "count_shard").strip("_")
        handles = [self._folder / f"{name}-{self.seconds.total():.6f}-{n}" for n in range(number)]
        context = multiprocessing.get_context("fork")
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(
            target=_run_task, args=(function, arguments, handles, writer), name=name
        )
        process.start()
        seconds, gigabytes = reader.recv()
        process.join()
        self.seconds[name] += seconds
        self.gigabytes[name] = max(self.gigabytes[name], gigabytes)
        return handles

    def get(self, handle: Path) -> Any:
        return pickle.loads(handle.read_bytes())


def _run_task(function: Any, arguments: Sequence[Any], handles: Sequence[Path], pipe: Any) -> None:
    values = [pickle.loads(a.read_bytes()) if isinstance(a, Path) else a for a in arguments]
    began = time.process_time()
    results = function(*values)
    seconds = time.process_time() - began
    for handle, result in zip(handles, results, strict=True):
        with handle.open("wb") as file:
            pickle.dump(result, file, protocol=5)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    pipe.send((seconds, peak))


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--millions", type=float, default=8.0, help="of tokens")
    parser.add_argument("--parts", default="1,2", help="rows and columns of the grid, with commas")
    options = parser.parse_args(given)
    if texts.real_data() is None:
        print("no real data: set RUNGWISE_DATA to the folder of corpora", file=sys.stderr)
        return 2
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="rungwise-ngrams-") as scratch:
        # In a process of its own: the tasks are forks of this one, and its memory is theirs.
        arguments = (Path(scratch), int(options.millions * 1e6))
        with multiprocessing.get_context("fork").Pool(1) as pool:
            shards = pool.apply(write_shards, arguments)
        for parts in map(int, options.parts.split(",")):
            results[f"{options.millions:g} M tokens, {parts} x {parts}"] = result = measure(
                Path(scratch), shards, parts
            )
            print_rows(f"{parts} x {parts} tasks", [(k, f"{v}") for k, v in result.items()])
    made_by = {"numpy": np.__version__, "order": ORDER}
    add_results("ngrams", made_by, results)
    digests = {result["sha256"] for result in results.values()}
    if len(results) > 1:
        print("the same bits" if len(digests) == 1 else "NOT the same bits")
    return len(digests) - 1


def measure(scratch: Path, shards: Sequence[Path], parts: int) -> dict[str, Any]:
    """Count and estimate with so many rows and columns."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        tasks, model = Processes(Path(folder)), Path(folder) / "model.safetensors"
        tables = [tasks.call(parts, partial(count_shard, shard, parts)) for shard in shards]
        began = time.process_time()
        create = partial(create_arrays, model)
        rows = list(zip(*tables, strict=True))
        arrays = estimate_tensors(rows, VOCAB_SIZE, START, SMOOTHING, tasks, create)
        seconds = dict(tasks.seconds) | {"write": time.process_time() - began}
        began = time.monotonic()
        map_arrays(model)
        loading = time.monotonic() - began
        tokens = sum(len(np.load(shard, mmap_mode="r")) for shard in shards)
        with model.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {
            "tokens": tokens,
            "n-grams": {n: len(arrays[f"log_probabilities.{n}"]) for n in range(1, ORDER + 1)},
            "CPU seconds": {name: round(value, 2) for name, value in seconds.items()},
            "M tokens a CPU second": round(tokens / 1e6 / sum(seconds.values()), 3),
            "peak GB of a task": {name: round(v, 2) for name, v in tasks.gigabytes.items()},
            "seconds to load": round(loading, 3),
            "bytes": model.stat().st_size,
            "sha256": digest,
        }


def count_shard(shard: Path, parts: int) -> list[Any]:
    ids = np.load(shard)
    ends = np.flatnonzero(ids == END) + 1
    return split_table(count_ngrams(ids, np.concatenate([[0], ends]), ORDER, START), parts)


def write_shards(folder: Path, tokens: int) -> list[Path]:
    """Write at least as many tokens, in shards of whole documents."""
    base = read_ids()
    rng, shards, passed = np.random.default_rng(0), [], 0
    ends = np.flatnonzero(base == END) + 1
    while passed < tokens:
        ids = base.copy()
        if passed:
            places = np.flatnonzero((rng.random(len(ids)) < CHANGED) & (base != END))
            ids[places] = rng.choice(base[base != END], len(places))
        cuts = ends[np.searchsorted(ends, np.arange(SHARD, len(ids), SHARD))]
        for piece in np.split(ids, cuts):
            if passed < tokens:
                shards.append(folder / f"shard-{len(shards)}.npy")
                np.save(shards[-1], piece)
                passed += len(piece)
    return shards


def read_ids() -> Ids:
    """The text as ids, every document closed."""
    documents = [
        re.findall(r"\w+|[^\w\s]", " ".join(document.paragraphs).lower())
        for document in texts.english(10**12)
    ]
    frequent = Counter(word for words in documents for word in words).most_common(WORDS)
    ids = {word: number for number, (word, _) in enumerate(frequent, start=FIRST_WORD)}
    closed = ([*(ids.get(word, UNKNOWN) for word in words), END] for words in documents)
    return np.array([id for words in closed for id in words], np.uint16)


if __name__ == "__main__":
    sys.exit(main())
