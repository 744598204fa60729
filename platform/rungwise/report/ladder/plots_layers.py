"""Plots of a rung's layers: accuracy by layer, learned mixes of layers, maps of word senses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from rungwise.report import style
from rungwise.report.ladder.rungs import Rung

_COLUMNS = 3
_MAPS = 4  # per row
_GROUP = 0.8  # fraction of a layer's slot that its bars fill
_NO_SENSE = "sense not in training"
_FREQUENT, _SAME_WORD = "most frequent", "same word"  # names from the suites


def layers(rows: Sequence[Mapping[str, Any]], rungs: Sequence[Rung]) -> bytes:
    """Accuracy by layer for every rung, one panel per suite and rule; the dashed line is the most
    frequent answer."""
    rules = [(row["suite"], row["rule"]) for row in rows if row["layer"] is not None]
    rules = list(dict.fromkeys(rules))
    drawn, panels = style.panels(len(rules), _COLUMNS, 3.0, 0.8)
    for axes, (suite, rule) in zip(panels, rules, strict=True):
        of_suite = [row for row in rows if row["suite"] == suite]
        for rung in rungs:
            own = [row for row in of_suite if (row["rung"], row["rule"]) == (rung.name, rule)]
            if own:
                _line(axes, rung, own)
        # It reads no states, so it is the same for all rungs.
        known = [row["mean"] for row in of_suite if row["rule"] == _baseline(rule)]
        if known:
            axes.axhline(
                100 * known[0],
                color=style.MUTED,
                linestyle=style.DASHED,
                linewidth=1.2,
                label=_FREQUENT,
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.dress(axes, f"{suite}, {rule}" if rule else suite, "layer", "accuracy (%)")
    style.legend_below(drawn, panels, last=[_FREQUENT])
    return style.png(drawn)


def _baseline(rule: str) -> str:
    return f"{_SAME_WORD} {_FREQUENT}" if rule == _SAME_WORD else _FREQUENT


def _line(axes: Axes, rung: Rung, rows: Sequence[Mapping[str, Any]]) -> None:
    ordered = sorted(rows, key=lambda row: row["layer"])
    mean, low, high = 100 * np.array([(row["mean"], row["low"], row["high"]) for row in ordered]).T
    axes.errorbar(
        [row["layer"] for row in ordered],
        mean,
        yerr=style.from_mean(mean, low, high),
        color=rung.look.colour,
        marker=rung.look.marker,
        linestyle=rung.look.line,
        markersize=6,
        linewidth=1.6,
        elinewidth=1.1,
        capsize=2.5,
        label=rung.name,
    )


def mixes(rows: Sequence[Mapping[str, Any]], rungs: Sequence[Rung]) -> bytes:
    """The share of every layer, one panel per suite; layer 0 is the token embeddings."""
    suites = list(dict.fromkeys(row["suite"] for row in rows))
    drawn, panels = style.panels(len(suites), 2, 3.0, 0.8)
    for axes, suite in zip(panels, suites, strict=True):
        of_suite = [row for row in rows if row["suite"] == suite]
        shown = [rung for rung in rungs if any(row["rung"] == rung.name for row in of_suite)]
        bar = _GROUP / len(shown)
        for place, rung in enumerate(shown):
            own = [row for row in of_suite if row["rung"] == rung.name]
            axes.bar(
                [row["layer"] + bar * (place - (len(shown) - 1) / 2) for row in own],
                [100 * row["share"] for row in own],
                width=0.92 * bar,
                color=rung.look.colour,
                label=rung.name,
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.dress(axes, suite, "layer", "share of the mix (%)")
    style.legend_below(drawn, panels)
    return style.png(drawn)


def senses(maps: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Sentences with one word in the plane, one panel per rung, one mark and colour per sense."""
    drawn, panels = style.panels(len(maps), _MAPS, 2.5, 0.7)
    for axes, (rung, each) in zip(panels, maps.items(), strict=True):
        points = each["points"]
        for sense, name in [*enumerate(each["senses"]), (-1, _NO_SENSE)]:
            own = [point for point in points if point["sense"] == sense]
            if not own:
                continue
            look = style.series(sense)
            axes.scatter(
                [point["x"] for point in own],
                [point["y"] for point in own],
                s=22,
                color=look.colour if sense >= 0 else style.MUTED,
                marker=look.marker if sense >= 0 else "x",
                alpha=0.7,
                linewidth=0 if sense >= 0 else 1,
                label=name,
            )
        right = each["accuracy_in_folds_of_train"][each["layer"]]
        style.dress(axes, rung, f"layer {each['layer']}, accuracy {right:.0%}")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.margins(0.08)
    style.legend_below(drawn, panels, last=[_NO_SENSE])
    return style.png(drawn)
