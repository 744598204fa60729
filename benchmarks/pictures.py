"""Draws the pictures of docs/results from the dated files of benchmarks/results.

python -m benchmarks.pictures
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RESULTS = Path("benchmarks/results")
PICTURES = Path("docs/pictures")
# Okabe and Ito's colours, told apart without red and green.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"]
NAMES = {
    "ngram3": "3-gram",
    "ngram5": "5-gram",
    "brown": "Brown clusters",
    "lstm": "LSTM",
    "rnn": "RNN",
    "gpt": "GPT",
    "llama": "Llama",
    "nnlm": "neural n-gram",
}


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text("utf-8"))


def draw_lines(axes: Axes, lines: dict[str, list[tuple[float, float]]]) -> None:
    """One line of points a rung, x on a logarithmic axis, its name beside its last point."""
    colours = COLOURS * (len(lines) // len(COLOURS) + 1)
    for (name, points), colour in zip(lines.items(), colours, strict=False):
        x, y = zip(*sorted(points), strict=True)
        axes.plot(x, y, marker="o", markersize=4, color=colour, label=name)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))


def draw_text_sizes(axes: Axes) -> None:
    lines = defaultdict(list)
    for name, part in read("2026-11-26-text-sizes.json")["found"].items():
        if "all pairs" in name:
            continue
        for rung, scores in part["rungs"].items():
            if rung in NAMES and "perplexity" in scores:
                lines[NAMES[rung]].append((part["words"] / 1e6, scores["perplexity"]))
    draw_lines(axes, lines)
    axes.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes.set_xlabel("million words of text; networks take the same steps on each")
    axes.set_ylabel("bits per byte, held out")


def draw_forecast_points(axes: Axes) -> None:
    lines = defaultdict(list)
    for point in read("2026-11-29-forecast-points.json"):
        whole = point["corpus"] == "docs" and point["seed"] == 0
        if whole and point["measure"] == "bits_per_byte" and point["rung"] in NAMES:
            lines[NAMES[point["rung"]]].append((point["tokens"], point["bits"]))
    draw_lines(axes, lines)
    axes.set_xlabel("tokens read, docstrings of Python")
    axes.set_ylabel("bits per byte, held out")


def draw_seconds(axes: Axes) -> None:
    lines = defaultdict(list)
    runs = read("2026-11-26-tuning.json")["found"]
    for name, value in runs.items():
        text, rung, *settings = name.split(", ")
        if text == "quick_ladder" and rung in NAMES and settings[0] == "suggested":
            lines[NAMES[rung]] += [(run["seconds"], run["loss"]) for run in value]
    axes.axhline(runs["quick_ladder, Kneser-Ney of order 4"], linestyle="--", color="#555555")
    axes.text(30, 4.83, "Kneser-Ney, 4-gram, 5 s", fontsize=9, color="#555555")
    draw_lines(axes, lines)
    axes.set_xticks([30, 60, 120, 300, 600], ["30", "60", "120", "300", "600"])
    axes.set_xlabel("seconds of one core")
    axes.set_ylabel("nats a token, held out")


def draw_steps(axes: Axes) -> None:
    rows = read("2026-11-24-training.json")["sections"]["step"]["rows"]
    end = ": ours over transformers"
    ratios = {
        row["label"].removesuffix(end): float(row["value"])
        for row in rows
        if row["label"].endswith(end)
    }
    bars = axes.barh(list(ratios), list(ratios.values()), color=COLOURS[0])
    axes.bar_label(bars, fmt=" %.2f", fontsize=9)
    axes.axvline(1, color="#555555", linestyle="--")
    axes.invert_yaxis()
    axes.set_xlabel("tokens a second over transformers as it is used, one thread")


def draw_starting(axes: Axes) -> None:
    rows = read("2026-11-26-startup.json")["found"]
    ratios = {name: row["ratio"] for name, row in rows.items() if row.get("ratio")}
    bars = axes.barh(list(ratios), list(ratios.values()), color=COLOURS[0])
    axes.bar_label(bars, fmt=" %.2f", fontsize=9)
    limits = [rows[name].get("most") for name in ratios]
    for height, limit in enumerate(limits):
        if limit:
            axes.plot([limit, limit], [height - 0.4, height + 0.4], color=COLOURS[1])
    axes.invert_yaxis()
    axes.set_xlabel("times the seconds of the floor; mark: the limit asked for")


def main() -> None:
    # SVG text stays text, and the same numbers give the same bytes.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rungwise"})
    for draw in (draw_text_sizes, draw_forecast_points, draw_seconds, draw_steps, draw_starting):
        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        name = draw.__name__.removeprefix("draw_").replace("_", "-")
        figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
