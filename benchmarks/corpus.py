"""The corpus stage: megabytes of source a second, step by step, and beside datatrove.

    python -m benchmarks.corpus [MEGABYTES] [--datatrove PYTHON] [--rounds N]
    python -m benchmarks.corpus [MEGABYTES] --grow

`--grow` builds a corpus of 100 files and its tokens, adds a file of a hundredth of their bytes as
the first, in the middle or as the last, and builds both again, with the same tokenizer: the share
of the seconds of a build from nothing, and whether all bytes are equal. It writes
benchmarks/results/. All is done in this process, in which a small corpus was built before, so the
start of Ray and of its workers counts for nothing. The text is drawn word by word, since repeated
text would be one that is left out.

The other command goes step by step.

The text is that of benchmarks/texts.py as JSON Lines, repeated to the size that is asked. Seconds
are of the processor, in this process, the least of all rounds; a round does every case once, so
that all see the same machine, and figures are compared as ratios.

`--datatrove` names the interpreter of an environment with datatrove[processing] and spacy. It runs
there, one process: its JSON Lines reader, a filter by length and its MinHash signatures, beside
reading, cleaning, segmenting and signing here. It neither cleans nor segments; its seconds hold the
loading of its word tokenizer, so ask for enough megabytes.
"""

import argparse
import functools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import texts
from benchmarks.common import print_rows, write_results
from rungwise.cluster import tasks
from rungwise.cluster.tasks import Packs
from rungwise.core.configuration.config import validate
from rungwise.core.stages import artifact
from rungwise.core.stages.artifact import Artifact, SharedResults
from rungwise.core.stages.stage import Context, StageType
from rungwise.core.storage import source_files
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building.held_out import HeldOutSplit
from rungwise.corpus.building.range_builder import RangeBuilder, read_range
from rungwise.corpus.building.range_task import NO_POSITIONS, RangeTask
from rungwise.corpus.cleaning.text import clean_all, segment
from rungwise.corpus.config import CorpusConfig, list_ranges, name_ranges
from rungwise.corpus.summary import CORPUS
from rungwise.tokenizer.config import WordPieceConfig
from rungwise.tokenizer.token_stage import TOKENIZER, TOKENS, TokensConfig

DATATROVE = """
import sys, time
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupSignature
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import JsonlReader
folder, output = sys.argv[1:]
begin = time.process_time()
LocalPipelineExecutor(
    pipeline=[
        JsonlReader(folder, glob_pattern="*.jsonl"),
        LambdaFilter(lambda document: len(document.text) >= 50),
        MinhashDedupSignature(output_folder=output + "/signatures"),
    ],
    logging_dir=output + "/logs",
    tasks=1,
).run()
print("seconds", time.process_time() - begin)
"""


def write_source(path: Path, megabytes: float) -> float:
    """Write documents as JSON Lines; the megabytes of the file."""
    written = copy = 0
    with path.open("w", encoding="utf-8") as stream:
        while written < megabytes * 1e6:
            for document in texts.english(int(megabytes * 1e6) - written):
                text = "\n".join(document.paragraphs)
                line = json.dumps({"text": f"{text} Copy {copy}.", "id": f"{document.id}-{copy}"})
                written += stream.write(line + "\n")
            copy += 1
    return path.stat().st_size / 1e6


def cases(source: Path, scratch: Path, python: str | None) -> Iterator[tuple[str, Callable]]:
    """Each step by name, and a function that does it and gives the seconds it took."""
    block = {"kind": "jsonl", "paths": [str(source)]}
    config = validate(CorpusConfig, {"sources": [block]})
    signed = validate(CorpusConfig, {"sources": [block], "near_duplicates": True})
    ranges = name_ranges(list_ranges(config), config, version=0)
    raw = [list(read_range(each, config)) for each in ranges]
    cleaned = [
        clean_all([document.paragraphs for document in some[at : at + 100]]).text
        for some in raw
        for at in range(0, len(some), 100)
    ]

    def built(rules: CorpusConfig, read: bool) -> None:
        for each, documents in zip(ranges, raw, strict=True):
            source = read_range(each, config) if read else documents
            for _ in RangeBuilder(rules, "text").tables(source):
                pass

    def staged(rules: CorpusConfig) -> None:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            task = RangeTask(rules, Folder(folder), SharedResults(Folder(folder) / "shared"))
            for each in ranges:
                task.read(each)
            for each in ranges:
                task.write_training(each, NO_POSITIONS, HeldOutSplit(threshold=0))
            for each in ranges:
                task.write_held_out(each, NO_POSITIONS, keep_repeats=False)

    def timed(work: Callable[[], object]) -> Callable[[], float]:
        def seconds() -> float:
            begin = time.process_time()
            work()
            return time.process_time() - begin

        return seconds

    def read_all() -> None:
        for each in ranges:
            for _ in read_range(each, config):
                pass

    yield "read", timed(read_all)
    yield (
        "clean",
        timed(
            lambda: [
                clean_all([document.paragraphs for document in some[at : at + 100]])
                for some in raw
                for at in range(0, len(some), 100)
            ]
        ),
    )
    yield "segment", timed(lambda: [segment(text) for text in cleaned])
    yield "clean, segment, digest, tables", timed(lambda: built(config, read=False))
    yield "the same with signatures", timed(lambda: built(signed, read=False))
    yield "read, build, stage, write", timed(lambda: staged(config))
    if python:
        yield "read, build with signatures", timed(lambda: built(signed, read=True))
        yield "datatrove: read, filter, sign", lambda: _datatrove(python, source.parent, scratch)


def _datatrove(python: str, folder: Path, scratch: Path) -> float:
    with tempfile.TemporaryDirectory(dir=scratch) as output:
        finished = subprocess.run(
            [python, "-c", DATATROVE, str(folder), output], capture_output=True, text=True
        )
    if finished.returncode:
        raise SystemExit(f"datatrove failed:\n{finished.stderr[-2000:]}")
    return float(finished.stdout.rsplit("seconds", 1)[1])


@functools.cache
def list_words() -> list[str]:
    """The words of some English text."""
    paragraphs = [text for document in texts.english(2_000_000) for text in document.paragraphs]
    return sorted({word for text in paragraphs for word in text.split()})


def write_drawn(folder: Path, name: str, megabytes: float) -> None:
    """Write a file of documents of words drawn by their rank, of English sentences' length."""
    rng, words = np.random.default_rng(list(name.encode())), list_words()
    size = 0
    with (folder / name).open("w", encoding="utf-8") as stream:
        while size < megabytes * 1e6:
            ranks = rng.zipf(1.3, (40, 15)) % len(words)
            lines = [" ".join(words[rank] for rank in row).capitalize() + "." for row in ranks]
            size += stream.write(json.dumps({"text": "\n".join(lines)}) + "\n")


Seconds = dict[str, tuple[float, float]]  # of the clock and of the processor, by stage


def build_both(source: Path, root: Path, label: str) -> tuple[Seconds, dict[str, Any]]:
    """Build a corpus and its tokens, with the tokenizer of `root`, which the first build trains:
    seconds of each stage, and the digests of its files."""
    block = {"kind": "jsonl", "paths": [str(source)]}
    config = validate(CorpusConfig, {"sources": [block]})
    context = Context()
    seconds: Seconds = {}
    inputs: dict[str, Artifact] = {}
    source_files.stores.cache_folder = lambda: (
        root / "cache"
    )  # a build of its own hashes its sources

    def build(step: StageType[Any, Any], config: Any, label: str = label) -> None:
        begin = time.perf_counter(), time.process_time()
        output = Folder(f"{root}/{step.name}/{label}")
        planned = step.stage(config)
        summary = step.run(planned.config, inputs, output, context)
        inputs[step.name] = texts.finish(step.name, output, summary)
        seconds[step.name] = time.perf_counter() - begin[0], time.process_time() - begin[1]

    build(CORPUS, config)
    tokenizer = artifact.load(Folder(f"{root}/tokenizer/one"))
    if tokenizer:
        inputs["tokenizer"] = tokenizer
    else:
        build(TOKENIZER, WordPieceConfig(vocab_size=3000, sample_megabytes=2), "one")
    build(TOKENS, TokensConfig())
    return seconds, {name: inputs[name].record["files"] for name in ("corpus", "tokens")}


PLACES = {"first": "00-.jsonl", "in the middle": "50-.jsonl", "last": "99-.jsonl"}


def measure_growth(folder: Path, megabytes: float) -> dict[str, Any]:
    """Return the seconds of growing by a file, and of a build from nothing, by its place."""
    source, root = folder / "in", folder / "root"
    for number in range(100):
        write_drawn(source, f"{number:02}.jsonl", megabytes / 100)
    build_both(source, root, "before")
    places = {}
    for place, name in PLACES.items():
        write_drawn(source, name, megabytes / 100)
        grown, files = build_both(source, root, name)
        other = folder / name
        shutil.copytree(root / "tokenizer", other / "tokenizer")
        whole, files_of_new = build_both(source, other, "new")
        places[place] = {"grown": grown, "whole": whole, "equal": files == files_of_new}
        shutil.rmtree(other)
        (source / name).unlink()
    return {"megabytes": megabytes, "places": places}


def list_growth(results: dict[str, Any]) -> list[tuple[str, str]]:
    """The table: shares of the seconds of the clock, and of the processor."""
    table = []
    for place, row in results["places"].items():
        shares = []
        for stages in (["corpus"], ["tokens"], ["corpus", "tokens"]):
            grown, whole = (
                np.sum([row[build][stage] for stage in stages], axis=0)
                for build in ("grown", "whole")
            )
            clock, processor = grown / whole
            name = " and ".join(stages)
            shares.append(f"{name} {clock:.1%} (processor {processor:.1%} of {whole[1]:.1f} s)")
        bytes_are = "equal" if row["equal"] else "OTHER"
        table.append((place, f"{', '.join(shares)}; {bytes_are} bytes"))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="The corpus stage, step by step.")
    parser.add_argument("megabytes", nargs="?", type=float, default=25.0)
    parser.add_argument("--datatrove", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--grow", action="store_true")
    options = parser.parse_args()
    if options.grow:
        # In this process, whose seconds are counted.
        tasks.pack_items = lambda items, _: Packs([list(items)], small=True)
        for megabytes in (0.5, options.megabytes):
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "in").mkdir()
                results = measure_growth(Path(folder), megabytes)
        write_results("growth", results)
        title = (
            f"{options.megabytes:g} MB in 100 files, and one more: share of a build from nothing"
        )
        print_rows(title, list_growth(results))
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").mkdir()
        source = Path(folder) / "in" / "text.jsonl"
        megabytes = write_source(source, options.megabytes)
        steps = dict(cases(source, Path(folder), options.datatrove))
        seconds = {name: [] for name in steps}
        for _ in range(options.rounds):
            for name, step in steps.items():
                seconds[name].append(step())
    print(f"{megabytes:.1f} MB of JSON Lines, a core, the best of {options.rounds}")
    for name, several in seconds.items():
        print(f"  {name:32} {megabytes / min(several):7.1f} MB/s")


if __name__ == "__main__":
    main()
