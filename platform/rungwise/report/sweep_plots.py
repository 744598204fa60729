"""Plots of the sweep: where the good settings lie, and how trials went epoch by epoch."""

from __future__ import annotations

import math

from matplotlib.ticker import MaxNLocator

from rungwise.artifact import Artifact
from rungwise.report import style
from rungwise.report.formats import percent
from rungwise.report.tables import swept_keys


def scatter(sweep: Artifact) -> bytes:
    """Validation accuracy of every trial against the setting that the sweep varied."""
    key, logarithmic = _x_axis(sweep)
    scored = [trial for trial in sweep.summary["trials"] if "score" in trial]
    best = {winner["name"] for winner in sweep.summary["best"].values()}
    drawn = style.figure(style.HALF)
    axes = drawn.subplots()
    if logarithmic:
        axes.set_xscale("log")
    for name in sweep.summary["best"]:
        for early in (False, True):
            here = [
                trial
                for trial in scored
                if trial["initialisation"] == name and trial["stopped_early"] == early
            ]
            if not here:
                continue
            colour = style.SYSTEM_COLOURS[name]
            axes.scatter(
                [trial["finetune"][key] for trial in here],
                [100 * trial["score"] for trial in here],
                s=52,
                marker=style.SYSTEM_MARKERS[name],
                facecolor="white" if early else colour,
                edgecolor=colour,
                linewidth=1.6,
                zorder=3,
                label=style.SYSTEM_NAMES[name] + (", stopped early" if early else ""),
            )
    winners = [trial for trial in scored if trial["name"] in best]
    axes.scatter(
        [trial["finetune"][key] for trial in winners],
        [100 * t["score"] for t in winners],
        s=190,
        facecolor="none",
        edgecolor=style.INK,
        linewidth=1.2,
        zorder=4,
        label="winner",
    )
    searched = sweep.record["config"]["sweep"]["space"].get(key, {})
    if "low" in searched:
        for bound in (searched["low"], searched["high"]):
            axes.axvline(bound, color=style.FAINT, linestyle=(0, (2, 2)), linewidth=1.2, zorder=0)
    top = " and ".join(
        f"{percent(winner['score'])} {style.SYSTEM_NAMES[name].partition(' ')[0]}"
        for name, winner in sweep.summary["best"].items()
    )
    style.dress(axes, f"Best of the sweep: {top}", key.replace("_", " "), "validation accuracy (%)")
    style.legend(axes)
    return style.png(drawn)


def curves(sweep: Artifact) -> bytes:
    """Validation accuracy by epoch of every trial; a cross where ASHA stopped it."""
    summary, settings = sweep.summary, sweep.record["config"]["sweep"]
    scored = [trial for trial in summary["trials"] if "score" in trial]
    drawn = style.figure(style.HALF)
    axes = drawn.subplots()
    longest = max(trial["finetune"]["epochs"] for trial in scored)
    rung = settings["grace_epochs"]
    while rung < longest:
        axes.axvline(rung, color=style.FAINT, linestyle=(0, (2, 2)), linewidth=1.2, zorder=0)
        rung *= settings["reduction_factor"]
    named: set[str] = set()
    for trial in scored:
        name = trial["initialisation"]
        colour = style.SYSTEM_COLOURS[name]
        curve = [100 * value for value in trial["curve"]]
        axes.plot(
            range(1, len(curve) + 1),
            curve,
            color=colour,
            linewidth=1.4,
            alpha=0.8,
            linestyle="-" if name == "pretrained" else "--",
            label=style.SYSTEM_NAMES[name] if name not in named else None,
        )
        named.add(name)
        if trial["stopped_early"]:
            axes.scatter(
                [len(curve)],
                [curve[-1]],
                marker="x",
                s=60,
                color=colour,
                linewidth=2.2,
                zorder=3,
                label="stopped by ASHA" if "stopped" not in named else None,
            )
            named.add("stopped")
    ran, asked = summary["epochs_run"], summary["epochs_asked"]
    style.dress(
        axes,
        f"{summary['stopped_early']} of {len(summary['trials'])} trials stopped early: {ran} of "
        f"{asked} epochs run",
        "epoch (dotted: where ASHA compares)",
        "validation accuracy (%)",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.legend(axes, "upper left")
    return style.png(drawn)


def _x_axis(sweep: Artifact) -> tuple[str, bool]:
    """The learning rate, or if the sweep did not vary it the first number that it did."""
    space = sweep.record["config"]["sweep"]["space"]
    key = "learning_rate"
    if key not in space:
        numbers = [
            name
            for name in [*swept_keys(sweep), "epochs"]
            if isinstance(sweep.summary["trials"][0]["finetune"][name], int | float)
        ]
        key = numbers[0] if numbers else key
    values = [trial["finetune"][key] for trial in sweep.summary["trials"]]
    wide = min(values) > 0 and math.log10(max(values) / min(values)) > 0.5
    return key, wide
