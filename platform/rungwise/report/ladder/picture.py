"""The ladder as a picture: a rung for each model, the newest on top, longer the more it learnt.

    2018  gpt    ├──────────────●      ├────────●
    2012  lstm   ├─────────●           ├─────●
    1948  ngram  ├────●
                  bits per byte         mean of tasks

Panels are side by side, or one below the other for narrow screens.
"""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from rungwise.evaluation.suites.items import METRICS
from rungwise.evaluation.suites.section import Cell, Column, MeasuredRung
from rungwise.report import palette, style
from rungwise.report.formats import metric_axis, scale, score
from rungwise.report.ladder.rungs import TASKS_MEAN
from rungwise.report.palette import Series

_INCHES = 0.34  # of height per rung
_MARGIN = 1.15  # inches above and below a panel
_NARROW = 3.7  # inches: the width of a telephone
_BITS = "bits_per_byte"


def picture_columns(columns: Sequence[Column]) -> list[Column]:
    """How well text is predicted, and what else was learnt: the mean of tasks, or else the score
    that most rungs have."""
    exact = [column for column in columns if any(cell.exact for cell in column.cells.values())]
    text = [column for column in exact if column.metric == _BITS][:1]
    others = [column for column in exact if column.metric not in (_BITS, "perplexity")]
    others.sort(key=lambda column: (column.name != TASKS_MEAN, -len(column.cells)))
    return text + others[:1]


def draw_ladder(
    rungs: Sequence[MeasuredRung],
    columns: Sequence[Column],
    looks: Mapping[str, Series],
    *,
    narrow: bool = False,
) -> bytes | None:
    """The picture as a PNG; None if no rung has a score that can be compared."""
    scored = [rung for rung in rungs if any(_exact(column, rung.name) for column in columns)]
    if not scored:
        return None
    # Side by side the panels have the same rungs; below each other, their own.
    by_panel = [
        [rung for rung in scored if not narrow or _exact(column, rung.name)] for column in columns
    ]
    heights = [_MARGIN + _INCHES * len(panel) for panel in by_panel]
    if narrow:
        figure = style.new_figure((_NARROW, sum(heights)))
        panels = figure.subplots(len(columns), 1, squeeze=False, height_ratios=heights).flat
    else:
        figure = style.new_figure((style.WIDE[0], heights[0]))
        panels = figure.subplots(1, len(columns), squeeze=False).flat
    for place, (axes, column, panel) in enumerate(zip(panels, columns, by_panel, strict=True)):
        _draw_panel(axes, column, [rung.name for rung in panel], looks)
        names = [f"{rung.name}  {rung.pretrain.origin.year}" for rung in panel]
        axes.set_yticks(range(len(panel)), names if narrow or place == 0 else [""] * len(panel))
        for label in axes.get_yticklabels():
            label.set_parse_math(False)
    return style.png(figure)


def _exact(column: Column, rung: str) -> Cell | None:
    cell = column.cells.get(rung)
    return cell if cell is not None and cell.exact and not math.isnan(cell.value.mean) else None


def _draw_panel(
    axes: Axes, column: Column, rungs: Sequence[str], looks: Mapping[str, Series]
) -> None:
    """One score: a bar per rung from the worst end, interval, value, a line through the best."""
    higher, factor = METRICS[column.metric].higher_is_better, scale(column.metric)
    cells = {place: cell for place, rung in enumerate(rungs) if (cell := _exact(column, rung))}
    ends = [
        factor * bound
        for cell in cells.values()
        for bound in (cell.value.low, cell.value.high, cell.value.mean)
        if not math.isnan(bound)
    ]
    ends += [factor * value for value in column.floors.values()]
    room = max(ends) - min(ends) or abs(ends[0]) or 1.0
    worst = min(ends) - 0.12 * room if higher else max(ends) + 0.12 * room
    best = max(ends) + 0.3 * room if higher else min(ends) - 0.3 * room
    so_far: float | None = None
    steps: list[tuple[float, int]] = []
    for place, cell in cells.items():
        look, value = looks[rungs[place]], factor * cell.value.mean
        axes.plot([worst, value], [place, place], color=look.colour, linewidth=5, alpha=0.35)
        axes.errorbar(
            value,
            place,
            xerr=[
                [max(0.0, value - factor * cell.value.low)],
                [max(0.0, factor * cell.value.high - value)],
            ],
            color=look.colour,
            marker=look.marker,
            markersize=7,
            capsize=3,
            elinewidth=1.2,
        )
        right = factor * (cell.value.high if higher else cell.value.low)
        axes.annotate(
            score(cell.value.mean, column.metric),
            (value if math.isnan(right) else right, place),
            xytext=(7, 0),
            textcoords="offset points",
            fontsize=9,
            color=palette.INK,
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
        if so_far is None or (value > so_far if higher else value < so_far):
            so_far = value
        steps.append((so_far, place))
    axes.plot(
        *zip(*steps, strict=True),
        color=palette.MUTED,
        linewidth=1,
        linestyle=style.DOTTED,
        drawstyle="steps-post",
        zorder=1,
    )
    for value in column.floors.values():
        axes.axvline(factor * value, color=palette.INK, linewidth=1, linestyle="--", zorder=1)
    axes.set_xlim(worst, best)
    axes.set_ylim(-0.6, len(rungs) - 0.4)
    unit = metric_axis(column.metric, "")
    better = "higher is better" if higher else "lower is better"
    style.dress(axes, column.name, f"{unit}; {better}", grid="x")
