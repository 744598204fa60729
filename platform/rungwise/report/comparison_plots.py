"""Plots of a task: every seed of every variant, and the first variant minus each other one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from rungwise.evaluation.statistics import Estimate
from rungwise.report import style
from rungwise.report.compared import TaskResult
from rungwise.report.formats import metric_axis, metric_name, points_with_interval, score

_SPREAD = 0.3  # vertical, of a variant's seeds, so that equal scores stay visible
_BELOW = 0.22  # from the mean down to the seeds
_ROW_INCHES = 0.72
_BASELINE_LINES = (style.DASHED, (0, (1, 1.5)), (0, (6, 2, 1, 2)))


def scores(task: TaskResult, looks: Mapping[str, style.Series]) -> bytes:
    """The test score of every seed, with means, 95 % intervals and trivial baselines."""
    variants, metric = task.evaluated.variants, task.metric
    drawn = style.figure((style.HALF[0], max(style.HALF[1], 1.7 + _ROW_INCHES * len(variants))))
    axes = drawn.subplots()
    for place, (name, variant) in enumerate(variants.items()):
        estimate = variant.estimates[metric]
        look = looks[name]
        seeds = [100 * value for value in task.evaluated.scores_of(name)]
        _dots(axes, place, seeds, look)
        _interval(axes, place, estimate, look.colour)
        _label(axes, 100 * estimate.mean, place, score(estimate.mean, metric), look.colour)
    baselines = task.evaluated.trivial()
    for number, (name, value) in enumerate(baselines.items()):
        axes.axvline(
            100 * value,
            color=style.MUTED,
            linestyle=_BASELINE_LINES[number % len(_BASELINE_LINES)],
            linewidth=1.3,
            zorder=1,
            label=f"{name.replace('_', ' ')} {score(value, metric)}",
        )
    if baselines:
        style.legend_below(drawn, [axes], "trivial baselines")
    axes.margins(x=0.1)
    style.dress(axes, _scores_title(task), metric_axis(metric), grid="x")
    _rows(axes, list(variants))
    return style.png(drawn)


def differences(task: TaskResult, looks: Mapping[str, style.Series]) -> bytes:
    """The first variant minus each other one, seed by seed, with both intervals."""
    pairs = task.against_first
    drawn = style.figure((style.HALF[0], max(style.HALF[1], 1.9 + _ROW_INCHES * len(pairs))))
    axes = drawn.subplots()
    axes.axvline(0, color=style.INK, linewidth=1.2, zorder=1)
    for place, row in enumerate(pairs):
        look = looks[row.second]
        first, second = (task.evaluated.scores_of(name) for name in (row.first, row.second))
        gaps = [100 * (ours - theirs) for ours, theirs in zip(first, second, strict=True)]
        _dots(axes, place, gaps, look, "one seed" if not place else None)
        mean = row.seeds
        _interval(
            axes, place, mean, style.INK, "mean, 95% interval over seeds" if not place else None
        )
        both = row.bootstrap
        axes.plot(
            [100 * both.low, 100 * both.high],
            [place - 0.1] * 2,
            color=style.MUTED,
            linewidth=4,
            alpha=0.45,
            solid_capstyle="butt",
            zorder=2,
            label="95% interval over seeds and test examples" if not place else None,
        )
        _label(axes, 100 * mean.mean, place, points_with_interval(mean), style.INK)
    style.legend_below(drawn, [axes], last=["one seed"])
    axes.margins(x=0.16)
    measured = f"test {metric_name(task.metric)}, {pairs[0].first} minus the other (points)"
    style.dress(axes, _differences_title(task), measured, grid="x")
    _rows(axes, [row.second for row in pairs])
    return style.png(drawn)


def _scores_title(task: TaskResult) -> str:
    variants = task.evaluated.variants
    means = {name: variant.estimates[task.metric].mean for name, variant in variants.items()}
    if len(means) == 2:
        said = ", ".join(f"{name} {score(mean, task.metric)}" for name, mean in means.items())
        return f"{task.name}: {said}"
    best = max(means, key=lambda name: means[name])
    return f"{task.name}: highest mean {score(means[best], task.metric)} ({best})"


def _differences_title(task: TaskResult) -> str:
    pairs = task.against_first
    first = pairs[0].first
    if len(pairs) == 1:
        return f"{first} minus {pairs[0].second}, seed by seed"
    resolved = sum(not row.seeds.low <= 0 <= row.seeds.high for row in pairs)
    return f"{first} minus each other variant: {resolved} of {len(pairs)} intervals exclude 0"


def _dots(
    axes: Axes, place: int, values: Sequence[float], look: style.Series, label: str | None = None
) -> None:
    most = max(len(values) - 1, 1)
    axes.scatter(
        values,
        [place + _BELOW + _SPREAD * (seed / most - 0.5) / 2 for seed in range(len(values))],
        s=26,
        color=look.colour,
        marker=look.marker,
        alpha=0.75,
        linewidth=0,
        zorder=2,
        label=label,
    )


def _rows(axes: Axes, names: Sequence[str]) -> None:
    """One labelled row per variant; call it after `style.dress`."""
    axes.set_yticks(range(len(names)), [style.wrapped(name) for name in names], parse_math=False)
    axes.set_ylim(len(names) - 0.45, -0.6)
    axes.tick_params(axis="y", labelsize=10, labelcolor=style.INK, length=0)


def _interval(
    axes: Axes, place: int, estimate: Estimate, colour: str, label: str | None = None
) -> None:
    axes.errorbar(
        [100 * estimate.mean],
        [place - 0.1],
        xerr=[[100 * (estimate.mean - estimate.low)], [100 * (estimate.high - estimate.mean)]],
        fmt="D",
        color=colour,
        markersize=6.5,
        capsize=4,
        linewidth=1.8,
        zorder=3,
        label=label,
    )


def _label(axes: Axes, x: float, place: int, text: str, colour: str) -> None:
    axes.annotate(
        text,
        (x, place - 0.1),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=9.5,
        fontweight="bold",
        color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
        zorder=4,
    )
