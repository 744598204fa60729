"""BLiMP by phenomenon, of a rung beside the models that its authors published.

    python -m benchmarks.minimal_pairs artifacts/measure/NAME-FINGERPRINT

The folder is a measure stage with the suite `minimal_pairs`; the published accuracies of each
paradigm are in BLiMP's own file (Warstadt et al. 2020).
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

import pyarrow.parquet as pq

PUBLISHED = Path("data/tasks/en/BLiMP/published_models_summary.jsonl")
MODELS = ("ngram", "lstm", "txl", "gpt2")


def read_accuracies(folder: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Return the accuracy of each paradigm, half credit for ties, and its phenomenon."""
    pairs, phenomena = defaultdict[str, list[float]](list), dict[str, str]()
    for row in pq.read_table(folder / "items.parquet").to_pylist():
        if row["suite"] == "minimal_pairs" and not row["part"]:
            paradigm = row["name"].split("/")[0]
            pairs[paradigm].append(row["first"])
            phenomena[paradigm] = row["group"]
    return {paradigm: fmean(values) for paradigm, values in pairs.items()}, phenomena


def main() -> None:
    """Print a table of phenomena, then the paradigms from furthest below the LSTM to above it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--published", type=Path, default=PUBLISHED)
    options = parser.parse_args()
    own, phenomena = read_accuracies(options.folder)
    rows = map(json.loads, options.published.read_text(encoding="utf-8").splitlines())
    published = {row["UID"]: row for row in rows}

    def print_mean(name: str, paradigms: Iterable[str]) -> None:
        paradigms = list(paradigms)
        means = [fmean(own[each] for each in paradigms)]
        means += [fmean(published[each][model] for each in paradigms) for model in MODELS]
        below = sum(own[each] < published[each]["lstm"] for each in paradigms)
        cells = " ".join(f"{mean:7.1%}" for mean in means)
        print(f"{name:<26} {len(paradigms):3} {cells} {below:3}")

    print(f"{'':<26}   n     own " + " ".join(f"{model:>7}" for model in MODELS) + "  below lstm")
    for phenomenon in sorted(set(phenomena.values())):
        print_mean(phenomenon, (each for each in own if phenomena[each] == phenomenon))
    print_mean("all", own)
    for paradigm in sorted(own, key=lambda each: own[each] - published[each]["lstm"]):
        print(f"{paradigm:<48} {own[paradigm] - published[paradigm]['lstm']:+7.1%}")


if __name__ == "__main__":
    main()
