"""How fast instances are built, masked and read, beside what others do on the same text.

    python -m benchmarks.instances                       everything: about half an hour
    python -m benchmarks.instances --only tokenizer,masks
    python -m benchmarks.instances --quick               a smoke run on a little text

Competitors take turns, round after round, each in a process of its own (instance_workers.py), so
that a busy minute of the machine falls on all of them and no cache is shared. A ratio is the median
of the ratios of the rounds. One-core figures are tokens of text per CPU second with one thread;
figures for several processes are wall time. A full run writes the table to benchmarks/results/,
with every measurement of every round.
"""

import argparse
import datetime
import platform
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import scale, texts
from benchmarks.common import print_rows, write_results
from benchmarks.measuring import PEERS
from benchmarks.turns import Bench, Row, compute_rates, count_shards, format_rate, prepare, ratio
from rungwise.core.stages.provenance import provenance

# The tokens are there, and the same instances have been built before the clock starts.
_ENCODED = {"split": "train", "warm": True, "encoded": True}
_TARGET = "the target is 12"


def tokenizer(bench: Bench) -> list[Row]:
    """Section 1: encoders alone, on text in memory; a warm one has met other text before."""
    competitors: dict[str, tuple[str, dict[str, Any]]] = {
        f"{backend}_{state}": (
            "encoder",
            {"backend": backend, "unit": "sentence", "warm": state == "warm"},
        )
        for backend in ("memo", "nanotoken")
        for state in ("cold", "warm")
    }
    measured = bench.take_turns(
        "tokenizer",
        {
            "rust_documents": ("rust", {"unit": "document"}),
            "rust_sentences": ("rust", {"unit": "sentence"}),
        }
        | competitors,
    )
    same = {rounds[0]["digest"] for name, rounds in measured.items() if name != "rust_documents"}
    assert len(same) == 1, "the encoders disagree"
    rates, reference = compute_rates(measured), "rust_documents"
    return [
        Row(
            "tokenizer: Rust on documents, a core",
            format_rate(rates, reference),
            "the reference of the ratios below",
        ),
        ratio(rates, "tokenizer: Rust by sentence over by document", "rust_sentences", reference),
        *(
            ratio(rates, f"tokenizer: {name.replace('_', ', ')}, over Rust", name, reference)
            for name in competitors
        ),
    ]


def end_to_end(bench: Bench) -> list[Row]:
    """Section 2: Parquet to tokens to checked shards of pairs, V = 30,522, length 128, a core."""
    pairs = {"kind": "masked_pairs", "backend": "nanotoken", "split": "validation"}
    measured = bench.take_turns(
        "end_to_end",
        {
            "rust": ("rust", {"unit": "document"}),
            "ours_cold": ("ours", {**pairs, "warm": False}),
            "ours_cold_seen_part": ("ours", {**pairs, "warm": False, "split": "train"}),
            "ours_warm": ("ours", {**pairs, "warm": True}),
            "memo_cold": ("ours", {**pairs, "backend": "memo", "warm": False}),
            "memo_warm": ("ours", {**pairs, "backend": "memo", "warm": True}),
            "ours_warm_with_masks": ("ours", {**pairs, "warm": True, "masks": True}),
            "from_tokens": ("ours", {**pairs, **_ENCODED}),
            "google_bert": ("google", {}),
            "hugging_face": ("hugging_face", {"kind": "masked", "masks": False}),
            "hugging_face_with_masks": ("hugging_face", {"kind": "masked", "masks": True}),
        },
    )
    rates = compute_rates(measured, measured["rust"][0]["tokens"])
    large = f"{texts.size(bench.base, 'train') / 1e6:.0f} MB"
    small = f"{texts.size(bench.base, 'validation') / 1e6:.0f} MB"
    over_rust = "end to end over Rust tokenizer"
    rows = [
        (f"{over_rust}: warm, {small} unseen", "ours_warm", "rust"),
        (f"{over_rust}: fresh process, {small}", "ours_cold", "rust"),
        (f"{over_rust}: fresh process, {large}", "ours_cold_seen_part", "rust"),
        (f"{over_rust}: memo, cold, {small}", "memo_cold", "rust"),
        (f"{over_rust}: memo, warm, {small}", "memo_warm", "rust"),
        (
            "end to end and masks drawn once over google-research/bert",
            "ours_warm_with_masks",
            "google_bert",
        ),
        ("end to end, fresh process, over google-research/bert", "ours_cold", "google_bert"),
        ("end to end over Hugging Face map and group", "ours_warm", "hugging_face"),
        (
            "end to end and masks over Hugging Face and its collator",
            *("ours_warm_with_masks", "hugging_face_with_masks"),
        ),
    ]
    return [
        *(ratio(rates, *row) for row in rows),
        Row("tokens to instances, pairs, a core", format_rate(rates, "from_tokens"), _TARGET),
    ]


def causal(bench: Bench) -> list[Row]:
    """Section 3: GPT: tokenise, pack blocks of 1,024, write; V = 50,257, a core."""
    blocks = {"kind": "causal", "split": "validation"}
    ways = {
        f"{backend}_{state}": ("ours", {**blocks, "backend": backend, "warm": state == "warm"})
        for backend in ("memo", "gigatoken")
        for state in ("cold", "warm")
    }
    measured = bench.take_turns(
        "causal",
        {
            "rust": ("rust", {"unit": "document", "vocabulary": "bpe"}),
            "hugging_face": ("hugging_face", {"kind": "causal"}),
            **ways,
            "from_tokens": ("ours", {**blocks, "backend": "gigatoken", **_ENCODED}),
        },
    )
    rates = compute_rates(measured, measured["rust"][0]["tokens"])
    return [
        *(
            ratio(
                rates,
                f"GPT end to end, {name.replace('_', ', ')}, over Hugging Face fast BPE",
                *(name, "hugging_face"),
            )
            for name in ways
        ),
        Row("tokens to instances, GPT, a core", format_rate(rates, "from_tokens"), _TARGET),
    ]


def masks(bench: Bench) -> list[Row]:
    """Section 4: masks of a (64, 512) batch, a core."""
    seconds = 0.3 if bench.quick else 3.0
    measured = bench.take_turns(
        "masks",
        {
            f"{system}_{unit}": ("masks", {"system": system, "unit": unit, "for_seconds": seconds})
            for unit in ("token", "whole_word")
            for system in ("ours", "collator", "tensors")
        },
    )
    rates = compute_rates(measured)
    return [
        ratio(rates, f"masks: {unit} over Hugging Face {what}", f"ours_{key}", f"{peer}_{key}")
        for key, unit in (("token", "tokens"), ("whole_word", "whole words"))
        for what, peer in (
            ("collator as a loader calls it", "collator"),
            ("collator's masking step alone", "tensors"),
        )
    ]


def reader(bench: Bench) -> list[Row]:
    """Section 5: rows in training order, batches of 256, a core."""
    seconds = 0.3 if bench.quick else 3.0
    for unit, target in (
        ("token", bench.setup.instances),
        ("whole_word", bench.setup.instances_whole_word),
    ):
        bench.run("build_instances", unit=unit, target=target)
    measured = bench.take_turns(
        "reader",
        {
            name: ("reader", {"unit": unit, "masked": masked, "for_seconds": seconds})
            for name, unit, masked in (
                ("plain", "token", False),
                ("masked", "token", True),
                ("masked whole words", "whole_word", True),
            )
        },
    )
    rates = compute_rates(measured)
    return [Row(f"reader: {name}, a core", format_rate(rates, name)) for name in rates]


def on_ray(bench: Bench) -> list[Row]:
    """Section 6: both stages on Ray beside the same files in one process, wall time."""
    shards = count_shards(bench, 10 if bench.quick else 400)
    measured = bench.take_turns(
        "on_ray",
        {
            "loop": ("loop", {"shards": shards}),
            "ray_1": ("stage", {"shards": shards, "cpus": 1}),
            "ray_2": ("stage", {"shards": shards, "cpus": 2}),
        },
    )
    counts = {rounds[0]["instances"] for rounds in measured.values()}
    assert len(counts) == 1, "Ray and the loop built different instances"
    rates = {
        name: [run["instances"] / run["wall"] for run in rounds]
        for name, rounds in measured.items()
    }
    unit = "instances/s"
    return [
        ratio(rates, "Ray, one CPU, over the loop in one process", "ray_1", "loop", unit),
        ratio(rates, "Ray, two CPUs, over one", "ray_2", "ray_1", unit),
        Row(
            "Ray: seconds of the job on one CPU",
            f"{median(run['wall'] for run in measured['ray_1']):.0f} s",
        ),
    ]


def growth(bench: Bench) -> list[Row]:
    """Section 7: seconds and peak memory of one process as the text grows a hundredfold."""
    sizes = (5, 10, 20) if bench.quick else (10, 30, 100, 300, 1000)
    pairs = {"kind": "masked_pairs", "backend": "nanotoken", "split": "train", "warm": False}
    measured = bench.take_turns(
        "growth",
        {
            f"{size} MB": (
                "ours",
                {**pairs, "corpus": bench.setup.repeated, "shards": count_shards(bench, size)},
            )
            for size in sizes
        },
        rounds=1,
    )
    runs = [rounds[0] for rounds in measured.values()]
    megabytes = np.array([run["text_bytes"] / 1e6 for run in runs])
    seconds = np.array([run["seconds"] for run in runs])
    slope, start = np.polyfit(megabytes, seconds, 1)
    exponent = np.polyfit(np.log(megabytes), np.log(seconds), 1)[0]
    rows = [
        Row(
            f"growth: {run['text_bytes'] / 1e6:,.0f} MB of text",
            f"{1000 * run['seconds'] / (run['text_bytes'] / 1e6):.0f} ms a MB",
            f"{run['seconds']:.1f} s, peak {run['peak_bytes'] / 2**20:.0f} MiB",
        )
        for run in runs
    ]
    rows.append(
        Row(
            "growth: seconds as a line of megabytes",
            f"{1000 * slope:.0f} ms a MB",
            f"and {start:.1f} s; on logarithms the slope is {exponent:.3f}",
        )
    )
    memory = runs[-1]["peak_bytes"] / runs[0]["peak_bytes"]
    rows.append(
        Row(f"growth: peak memory at {megabytes[-1]:,.0f} MB", f"{memory:.2f} of the first")
    )
    return rows


def simulation(bench: Bench) -> list[Row]:
    """Section 8: what benchmarks/scale.py computes for a cluster that is not here."""
    if bench.quick:
        return [Row("simulation", "left out of a quick run: it takes minutes")]
    return [Row(label, value, "simulated") for label, value in scale.rows()]


_SECTIONS = (tokenizer, end_to_end, causal, masks, reader, on_ray, growth, simulation)
SECTIONS: dict[str, Callable[[Bench], list[Row]]] = {each.__name__: each for each in _SECTIONS}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between")
    parser.add_argument("--quick", action="store_true", help="one round on a little text")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    with tempfile.TemporaryDirectory(prefix="rungwise-bench-") as folder:
        bench = prepare(Path(folder), options.quick, 1 if options.quick else options.rounds)
        rows: list[Row] = []
        for name in options.only.split(","):
            section = SECTIONS[name](bench)
            rows += section
            print_rows(name, [(row.label, f"{row.value:<20}{row.absolute}") for row in section])
    if not options.quick:
        _write(bench, options.only.split(","), rows)
    return 0


def _write(bench: Bench, sections: list[str], rows: list[Row]) -> None:
    result = {
        "date": datetime.date.today().isoformat(),
        "made_by": provenance(),
        "processor": platform.processor() or platform.machine(),
        "peers": {name: _version(name) for name in PEERS},
        "sections": sections,
        "rounds": bench.rounds,
        "text_bytes": {
            "seen": texts.size(bench.base, "train"),
            "unseen": texts.size(bench.base, "validation"),
        },
        "real_data": texts.real_data() is not None,
        "rows": [vars(row) for row in rows],
        "measured": bench.measured,
    }
    write_results("instances", result)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    sys.exit(main())
