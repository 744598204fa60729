"""Plots of a task: every seed of every variant, the first variant minus each other one, and how
often it is right by its confidence."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rungwise.evaluation.statistics import Estimate
from rungwise.report import palette, style
from rungwise.report.formats import metric_axis, metric_name, points_with_interval, score
from rungwise.report.sections.errors import TaskErrors
from rungwise.report.sections.variants import TaskResult

_SPREAD = 0.3  # vertical, of a variant's seeds, so that equal scores stay visible
_BELOW = 0.22  # from the mean down to the seeds
_ROW_INCHES = 0.72
_BASELINE_LINES = (style.DASHED, (0, (1, 1.5)), (0, (6, 2, 1, 2)))


def draw_scores(task: TaskResult, looks: Mapping[str, palette.Series]) -> bytes:
    """The test score of every seed, with means, 95 % intervals and trivial baselines."""
    variants, metric = task.evaluation.variants, task.metric
    figure, axes = _new_rows(len(variants), 1.7)
    for place, (name, variant) in enumerate(variants.items()):
        estimate, look = variant.estimates[metric], looks[name]
        _draw_seeds(axes, place, [100 * value for value in task.evaluation.scores(name)], look)
        _draw_mean(axes, place, estimate, score(estimate.mean, metric), look.colour)
    baselines = task.evaluation.trivial()
    for number, (name, value) in enumerate(baselines.items()):
        axes.axvline(
            100 * value,
            color=palette.MUTED,
            linestyle=_BASELINE_LINES[number % len(_BASELINE_LINES)],
            linewidth=1.3,
            zorder=1,
            label=f"{name.replace('_', ' ')} {score(value, metric)}",
        )
    if baselines:
        style.add_legend_below(figure, [axes], "trivial baselines")
    axes.margins(x=0.1)
    style.dress(axes, _scores_title(task), metric_axis(metric), grid="x")
    _name_rows(axes, list(variants))
    return style.png(figure)


def draw_differences(task: TaskResult, looks: Mapping[str, palette.Series]) -> bytes:
    """The first variant minus each other one, seed by seed (pretraining by pretraining if both have
    several), with both intervals."""
    pairs = task.against_first
    figure, axes = _new_rows(len(pairs), 1.9)
    axes.axvline(0, color=palette.INK, linewidth=1.2, zorder=1)
    for place, pair in enumerate(pairs):
        scores = task.evaluation.pair_scores(pair.first, pair.second)
        gaps = [100 * (a - b) for a, b in zip(*scores, strict=True)]
        _draw_seeds(axes, place, gaps, looks[pair.second], "one seed")
        axes.plot(
            [100 * pair.bootstrap.low, 100 * pair.bootstrap.high],
            [place - 0.1] * 2,
            color=palette.MUTED,
            linewidth=4,
            alpha=0.45,
            solid_capstyle="butt",
            zorder=2,
            label="95% interval over seeds and test examples",
        )
        label, text = "mean, 95% interval over seeds", points_with_interval(pair.seeds)
        _draw_mean(axes, place, pair.seeds, text, palette.INK, label)
    style.add_legend_below(figure, [axes], last=["one seed"])
    axes.margins(x=0.16)
    axis = f"test {metric_name(task.metric)}, {pairs[0].first} minus the other (points)"
    style.dress(axes, _differences_title(task), axis, grid="x")
    _name_rows(axes, [pair.second for pair in pairs])
    return style.png(figure)


def draw_reliability(errors: TaskErrors) -> bytes:
    """Reliability diagram: accuracy against confidence; the diagonal is perfect calibration."""
    bins = errors.analysis.reliability
    figure, axes = style.new_axes()
    axes.plot([0, 100], [0, 100], color=palette.MUTED, linestyle=style.DASHED, linewidth=1.2)
    colour = palette.series(0).colour
    sizes = [20 + 180 * each.count / max(b.count for b in bins) for each in bins]
    confidence = [100 * each.confidence for each in bins]
    accuracy = [100 * each.right for each in bins]
    axes.plot(confidence, accuracy, color=colour, linewidth=1.4)
    axes.scatter(confidence, accuracy, s=sizes, color=colour, alpha=0.75)
    axes.set_xlim(0, 103)
    axes.set_ylim(0, 103)
    style.dress(axes, f"{errors.task}: accuracy by confidence", "confidence (%)", "accuracy (%)")
    return style.png(figure)


def _scores_title(task: TaskResult) -> str:
    variants = task.evaluation.variants
    means = {name: variant.estimates[task.metric].mean for name, variant in variants.items()}
    if len(means) == 2:
        scores = ", ".join(f"{name} {score(mean, task.metric)}" for name, mean in means.items())
        return f"{task.name}: {scores}"
    best = max(means, key=lambda name: means[name])
    return f"{task.name}: highest mean {score(means[best], task.metric)} ({best})"


def _differences_title(task: TaskResult) -> str:
    pairs = task.against_first
    first = pairs[0].first
    if len(pairs) == 1:
        return f"{first} minus {pairs[0].second}, seed by seed"
    resolved = sum(pair.seeds.low > 0 or pair.seeds.high < 0 for pair in pairs)
    return f"{first} minus each other variant: {resolved} of {len(pairs)} intervals exclude 0"


def _new_rows(count: int, margin_inches: float) -> tuple[Figure, Axes]:
    height = max(style.HALF[1], margin_inches + _ROW_INCHES * count)
    return style.new_axes((style.HALF[0], height))


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """One labelled row per variant; call it after `style.dress`."""
    axes.set_yticks(range(len(names)), [style.wrap_name(name) for name in names], parse_math=False)
    axes.set_ylim(len(names) - 0.45, -0.6)
    axes.tick_params(axis="y", labelsize=10, labelcolor=palette.INK, length=0)


def _draw_seeds(
    axes: Axes, place: int, values: Sequence[float], look: palette.Series, label: str | None = None
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


def _draw_mean(
    axes: Axes, place: int, estimate: Estimate, text: str, colour: str, label: str | None = None
) -> None:
    """The mean with its interval, and `text` above it."""
    mean, height = 100 * estimate.mean, place - 0.1
    axes.errorbar(
        [mean],
        [height],
        xerr=[[mean - 100 * estimate.low], [100 * estimate.high - mean]],
        fmt="D",
        color=colour,
        markersize=6.5,
        capsize=4,
        linewidth=1.8,
        zorder=3,
        label=label,
    )
    box: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}
    axes.annotate(
        text,
        (mean, height),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=9.5,
        fontweight="bold",
        color=colour,
        bbox=box,
        zorder=4,
    )
