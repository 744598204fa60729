"""Plots of pretraining: losses by tokens, loss by context, instance lengths, time by stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rungwise.evaluation.page.surprise import Reach
from rungwise.instances.summary import InstancesSummary
from rungwise.models.losses.objectives import Part
from rungwise.pretraining.summary import GradientRun, PretrainSummary, Row
from rungwise.report import style
from rungwise.report.formats import duration, percent


def loss(pretrain: PretrainSummary, run: GradientRun, tokens: Part) -> bytes:
    """Training and validation loss against tokens, with lines at ln V and the unigram entropy, and
    the learning rate below."""
    key, unigram_entropy = tokens.loss_key, pretrain.unigram_entropy
    uniform = math.log(pretrain.vocab_size)
    drawn = style.figure((style.WIDE[0], 5.2))
    axes, rates = drawn.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    axes.axhline(
        uniform,
        color=style.PURPLE,
        linestyle=(0, (5, 3)),
        linewidth=1.5,
        label=f"ln V = {uniform:.2f}: all tokens equally likely (untrained model)",
    )
    _unigram(axes, unigram_entropy, ": the best guess without context")
    _curves(axes, run, key, "training (mean since the previous point)")
    first, last = run.validation[0][key], pretrain.final[key]
    style.dress(
        axes,
        f"Validation {tokens.name} loss: from {first:.2f} to {last:.2f} nats; unigram entropy "
        f"{unigram_entropy:.2f}",
        y=f"{tokens.name} loss (nats)",
    )
    axes.margins(x=0.02)
    # Between the two lines, where the curves are only at the left.
    lowest, highest = axes.get_ylim()
    below_uniform = (uniform - lowest) / (highest - lowest) - 0.02
    style.legend(axes, "upper right", bbox_to_anchor=(1, below_uniform))
    learning_rates = [row["learning_rate"] for row in run.history]
    rates.plot(_millions(run.history), learning_rates, color=style.ORANGE, linewidth=1.6)
    rates.set_ylim(0, 1.15 * max(learning_rates))
    style.dress(rates, x="tokens read (millions)", y="learning rate")
    for each in (axes, rates):
        for change in run.length_changes:
            place, name = _tokens_at(run, change.from_step), f"{change.sequence_length} tokens"
            style.mark(each, place, name, named=each is axes)
    return style.png(drawn)


def pair(run: GradientRun, task: Part) -> bytes:
    """Loss and accuracy of the pair task against tokens, with chance level."""
    drawn = style.figure(style.HALF)
    upper, lower = drawn.subplots(2, 1, sharex=True)
    for axes, key, scale, chance, bounds, label in (
        (upper, task.loss_key, 1.0, math.log(2), (0.55, 0.75), "chance"),
        (lower, task.accuracy_key, 100.0, 50.0, (40.0, 100.0), "chance (ln 2, 50%)"),
    ):
        drawn_values = _curves(axes, run, key, "training", scale)
        axes.axhline(chance, color=style.PURPLE, linestyle=(0, (5, 3)), linewidth=1.3, label=label)
        # A fixed minimum range, so that noise around chance does not look like learning.
        axes.set_ylim(min(*bounds, *drawn_values), max(*bounds, *drawn_values))
    accuracy = percent(run.validation[-1][task.accuracy_key])
    style.dress(upper, f"{task.name} accuracy ends at {accuracy}; chance is 50%", y="loss (nats)")
    style.dress(lower, x="tokens read (millions)", y="accuracy (%)")
    style.legend(lower, "upper center", ncols=3)
    return style.png(drawn)


def context(reach: Sequence[Reach], unigram_entropy: float) -> bytes:
    """Mean surprisal of held-out tokens by number of tokens of their document read before."""
    drawn = style.figure(style.HALF)
    axes = drawn.subplots()
    _unigram(axes, unigram_entropy)
    places = range(len(reach))
    axes.plot(places, [row.nats for row in reach], color=style.BLUE, marker="o", linewidth=1.8)
    names = [f"{row.low}" if row.low == row.high else f"{row.low} to {row.high}" for row in reach]
    axes.set_xticks(places, names, rotation=30 if len(reach) > 6 else 0)
    style.dress(
        axes,
        f"Mean surprisal: {reach[0].nats:.2f} nats after {names[0]} token, "
        f"{reach[-1].nats:.2f} after {names[-1]}",
        "preceding tokens in the document",
        "mean surprisal (nats)",
    )
    style.legend(axes)
    return style.png(drawn)


def lengths(instances: InstancesSummary) -> bytes:
    """Histogram of instance lengths in tokens."""
    counts, longest = np.array(instances.length_histogram), instances.sequence_length
    assert longest is not None, f"{instances.kind} have no rows"
    edges = np.linspace(0, longest, len(counts) + 1)
    share = 100 * counts / counts.sum()
    drawn = style.figure(style.HALF)
    axes = drawn.subplots()
    axes.bar(edges[:-1], share, width=np.diff(edges) * 0.92, align="edge", color=style.BLUE)
    style.dress(
        axes,
        f"{share[-1]:.0f}% of instances are {edges[-2]:.0f} to {longest} tokens long",
        "instance length (tokens)",
        "instances (%)",
    )
    axes.set_xlim(0, longest)
    return style.png(drawn)


def stages(seconds: Mapping[str, float]) -> bytes:
    """Seconds of each stage, in the order in which they ran."""
    names, values = list(seconds), list(seconds.values())
    total = sum(values)
    longest = max(names, key=seconds.__getitem__)
    drawn = style.figure((9.6, 0.8 + 0.36 * len(names)))
    axes = drawn.subplots()
    colours = [style.BLUE if name == longest else style.SKY for name in names]
    axes.barh(range(len(names)), values, color=colours, height=0.68)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    for place, value in enumerate(values):
        axes.annotate(
            duration(value),
            (value, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=style.INK,
        )
    share = seconds[longest] / total if total else 0.0
    style.dress(
        axes,
        f"{longest} took {duration(seconds[longest])} of {duration(total)} ({percent(share, 0)})",
        "wall-clock time (seconds)",
        grid="x",
    )
    axes.set_xlim(0, 1.12 * max(*values, 1.0))
    return style.png(drawn)


def _tokens_at(run: GradientRun, step: int) -> float:
    """Millions of tokens read after a step, interpolated between logged rows."""
    rows = sorted([*run.history, *run.validation], key=lambda row: row["step"])
    return float(np.interp(step, [row["step"] for row in rows], _millions(rows)))


def _unigram(axes: Axes, entropy: float, meaning: str = "") -> None:
    axes.axhline(
        entropy,
        color=style.GREEN,
        linestyle=(0, (1.5, 1.5)),
        linewidth=2,
        label=f"unigram entropy = {entropy:.2f}{meaning}",
    )


def _curves(
    axes: Axes, run: GradientRun, key: str, training: str, scale: float = 1.0
) -> list[float]:
    """Draw the training curve, labelled `training`, and validation; returns all drawn values."""
    history = [scale * row[key] for row in run.history]
    axes.plot(_millions(run.history), history, color=style.SKY, linewidth=1.4, label=training)
    validation = [scale * row[key] for row in run.validation]
    look: Any = {"color": style.BLUE, "linewidth": 1.8, "marker": "o", "markersize": 5}
    axes.plot(_millions(run.validation), validation, label="validation", **look)
    return history + validation


def _millions(rows: Sequence[Row]) -> list[float]:
    """Millions of tokens read by each row."""
    return [row["tokens"] / 1e6 for row in rows]
