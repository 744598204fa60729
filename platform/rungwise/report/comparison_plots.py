"""Plots of the comparison: with against without pretraining, and pair by pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from rungwise.artifact import Artifact
from rungwise.report import style
from rungwise.report.formats import percent, points_with_interval

_SPREAD = 0.16  # between the dots of one system, so that equal scores stay visible


def with_without(evaluate: Artifact) -> bytes:
    """Test accuracy of every seed, with means and 95 % intervals, over the majority baseline."""
    summary = evaluate.summary
    systems = summary["systems"]
    names = list(systems)
    scores = {name: _by_seed(summary["rows"], name) for name in names}
    drawn = style.figure(style.HALF)
    axes = drawn.subplots()
    seeds = summary["seeds"]
    offset = {
        seed: _SPREAD * (place / max(len(seeds) - 1, 1) - 0.5) - 0.12
        for place, seed in enumerate(seeds)
    }
    for seed in seeds:
        axes.plot(
            [place + offset[seed] for place in range(len(names))],
            [100 * scores[name][seed] for name in names],
            color=style.FAINT,
            linewidth=1,
            zorder=1,
        )
    for place, name in enumerate(names):
        estimate = systems[name]["accuracy"]
        colour = style.SYSTEM_COLOURS[name]
        axes.scatter(
            [place + offset[seed] for seed in seeds],
            [100 * scores[name][seed] for seed in seeds],
            s=30,
            color=colour,
            marker=style.SYSTEM_MARKERS[name],
            alpha=0.75,
            zorder=2,
        )
        _interval(axes, place + 0.1, estimate, colour)
        axes.annotate(
            percent(estimate["mean"]),
            (place + 0.1, 100 * estimate["mean"]),
            xytext=(11, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
            fontweight="bold",
            color=colour,
        )
    majority = 100 * summary["majority_accuracy"]
    axes.axhline(majority, color=style.MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.annotate(
        f"majority baseline {majority:.1f}%",
        (0.5, majority),
        xytext=(0, 4),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="center",
        fontsize=8.5,
        color=style.MUTED,
    )
    axes.set_xticks(range(len(names)), [style.SYSTEM_NAMES[name] for name in names])
    axes.set_xlim(-0.5, len(names) - 0.5)
    highest = max(100 * score for by_seed in scores.values() for score in by_seed.values())
    axes.set_ylim(0, 1.12 * max(highest, majority))
    style.dress(axes, _comparison_title(summary), y="test accuracy (%)")
    axes.tick_params(axis="x", labelsize=10, labelcolor=style.INK)
    return style.png(drawn)


def difference(evaluate: Artifact) -> bytes:
    """The paired difference of every seed and its mean with interval, beside 0."""
    summary = evaluate.summary
    estimate, seeds = summary["difference"], summary["seeds"]
    pretrained = _by_seed(summary["rows"], "pretrained")
    random = _by_seed(summary["rows"], "random")
    drawn = style.figure(style.HALF)
    axes = drawn.subplots()
    axes.axvline(0, color=style.MUTED, linewidth=1.2)
    for place, seed in enumerate(seeds):
        gap = 100 * (pretrained[seed] - random[seed])
        axes.plot([0, gap], [place, place], color=style.FAINT, linewidth=2, zorder=1)
        axes.scatter([gap], [place], s=30, color=style.SKY, zorder=2)
    axes.errorbar(
        [100 * estimate["mean"]],
        [len(seeds)],
        xerr=[
            [100 * (estimate["mean"] - estimate["low"])],
            [100 * (estimate["high"] - estimate["mean"])],
        ],
        fmt="D",
        color=style.INK,
        markersize=7,
        capsize=5,
        linewidth=2,
        zorder=3,
    )
    axes.set_yticks(range(len(seeds) + 1), [*(f"seed {seed}" for seed in seeds), "mean, 95%"])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    style.dress(
        axes,
        f"Pair by pair: {points_with_interval(estimate)} points",
        "test accuracy, with minus without pretraining (points)",
        grid="x",
    )
    return style.png(drawn)


def _comparison_title(summary: Mapping[str, Any]) -> str:
    if "difference" not in summary:
        return f"Test accuracy of {len(summary['seeds'])} seeds"
    means = {name: percent(found["accuracy"]["mean"]) for name, found in summary["systems"].items()}
    return f"Accuracy: {means['pretrained']} with pretraining, {means['random']} without"


def _interval(axes: Axes, x: float, estimate: Mapping[str, float], colour: str) -> None:
    axes.errorbar(
        [x],
        [100 * estimate["mean"]],
        yerr=[
            [100 * (estimate["mean"] - estimate["low"])],
            [100 * (estimate["high"] - estimate["mean"])],
        ],
        fmt="D",
        color=colour,
        markersize=7,
        capsize=5,
        linewidth=2,
        zorder=3,
    )


def _by_seed(rows: Sequence[Mapping[str, Any]], name: str) -> dict[int, float]:
    return {row["seed"]: row["test"]["accuracy"] for row in rows if row["initialisation"] == name}
