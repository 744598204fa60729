"""The look of plots, without pyplot, which keeps global state."""

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

from rungwise.evaluation.statistics import Estimate
from rungwise.evaluation.suites.base import Panel
from rungwise.report.formats import FAINT, INK, MUTED, Looks, scale, score

DASHED = (0, (4, 3))
DOTTED = (0, (2, 2))

# Widths in inches: of the page, of a panel alone, of half a page, of a telephone.
WIDE, MIDDLE, HALF, NARROW = 9.6, 6.8, 5.2, 3.7
ROW_INCHES, MARGIN_INCHES = 0.38, 1.15  # the height of a bar, and above and below all bars
_DOTS_PER_INCH = 160
_LETTERS_PER_INCH = 11.2  # of a title, which starts at the axis
_AXIS_INCHES = 0.9
_PAD_INCHES = 0.12
_DECADE = 10


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure with constrained layout."""
    figure = Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, facecolor="white")
    # Padding, since on a dark page the plot is a white card.
    figure.set_layout_engine("constrained", w_pad=_PAD_INCHES, h_pad=_PAD_INCHES)
    FigureCanvasAgg(figure)
    return figure


def new_strip(heights: Sequence[float], *, narrow: bool) -> tuple[Figure, list[Axes]]:
    """A figure of panels side by side; one below the other for narrow screens."""
    if narrow:
        figure = new_figure(NARROW, sum(heights))
        panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
    else:
        figure = new_figure(WIDE, max(heights))
        panels = figure.subplots(1, len(heights), squeeze=False)
    return figure, list(panels.flat)


def draw_adaptive(name: str, draw: Callable[..., bytes | None]) -> dict[str, bytes | None]:
    """A picture, and a `narrow` one that telephones show instead, by name."""
    return {name: draw(narrow=False), f"{name}-narrow": draw(narrow=True)}


def dress(
    axes: Axes, title: str = "", x: str = "", y: str = "", grid: Literal["x", "y"] = "y"
) -> None:
    """Set the title (the finding), labels with units and a light grid, and remove the box."""
    if title:
        figure = axes.get_figure(root=True)
        assert figure is not None
        width = figure.get_size_inches()[0]
        lines = textwrap.fill(title, int((width - _AXIS_INCHES) * _LETTERS_PER_INCH))
        axes.set_title(
            lines, loc="left", fontsize=11, fontweight="bold", color=INK, pad=10, parse_math=False
        )
    axes.set_xlabel(x, fontsize=9.5, color=MUTED)
    axes.set_ylabel(y, fontsize=9.5, color=MUTED)
    axes.tick_params(colors=MUTED, labelsize=9, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color=FAINT, linewidth=0.7)


def draw_panels(
    panels: Sequence[Panel], looks: Looks, columns: int = 3, *, narrow: bool = False
) -> bytes:
    """A picture of panels, with one legend below in the order of `looks`."""
    columns = min(len(panels), 1 if narrow else columns)
    rows = -(-len(panels) // columns)
    width = NARROW if narrow else WIDE if columns > 1 else MIDDLE
    figure = new_figure(width, 0.8 + (2.4 if narrow else 3.0) * rows)
    all_axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in all_axes[len(panels) :]:
        empty.set_visible(False)
    for axes, panel in zip(all_axes, panels, strict=False):
        for name, points in panel.lines.items():
            x, mean, low, high = np.array(points, float).T
            look = looks[name]
            axes.errorbar(
                x,
                mean,
                yerr=_spread(mean, low, high),
                color=look.colour,
                marker=look.marker,
                linestyle=look.line,
                linewidth=1.7,
                elinewidth=1.2,
                markersize=7 if len(points) == 1 else 6,
                capsize=0 if (low == high).all() else 2.5,
                label=name,
            )
        dress(axes, panel.title, panel.x, panel.y)
        if panel.is_size:
            axes.margins(x=0.12, y=0.12)
        low, high = axes.get_xlim()
        if not panel.is_size:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        elif low > 0 and high / low < _DECADE:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
            axes.xaxis.set_major_formatter(EngFormatter())
        else:  # the margin of a wide range starts below 0
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
    add_legend_below(figure, all_axes, last=[*looks])
    return png(figure)


def _spread(mean: Any, low: Any, high: Any) -> Any:
    """The lengths of whiskers; a bootstrap's interval may end short of the mean."""
    return np.maximum([mean - low, high - mean], 0)


def draw_bars(
    axes: Axes,
    values: Mapping[str, Estimate],
    rows: Sequence[str],
    metric: str,
    higher_is_better: bool,
    looks: Looks,
    floors: Mapping[str, float],
) -> None:
    """Draw a mark for each row that has a value, the first row at the bottom, with interval and
    value, and with a bar from 0 where more is better; a dotted line through the best so far, dashed
    ones at the floors."""
    factor = scale(metric)
    bars = {place: values[name] for place, name in enumerate(rows) if name in values}
    bounds = [each for bar in bars.values() for each in (bar.low, bar.high, bar.mean)]
    ends = [factor * each for each in (*bounds, *floors.values()) if not math.isnan(each)]
    room = max(ends) - min(ends) or abs(ends[0]) or 1.0
    has_zero = higher_is_better and min(ends) >= 0
    worst = min(ends) - 0.12 * room if higher_is_better else max(ends) + 0.12 * room
    worst = 0.0 if has_zero else worst
    best = max(ends) + 0.3 * room if higher_is_better else min(ends) - 0.3 * room
    for place, bar in bars.items():
        look, value = looks[rows[place]], factor * bar.mean
        if has_zero:
            axes.plot([0, value], [place, place], color=look.colour, linewidth=5, alpha=0.35)
        axes.errorbar(
            value,
            place,
            xerr=_spread(value, factor * bar.low, factor * bar.high).reshape(2, 1),
            color=look.colour,
            marker=look.marker,
            markersize=7,
            capsize=3,
            elinewidth=1.2,
        )
        right = factor * (bar.high if higher_is_better else bar.low)
        axes.annotate(
            score(bar.mean, metric),
            (value if math.isnan(right) else right, place),
            xytext=(7, 0),
            textcoords="offset points",
            fontsize=9,
            color=INK,
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    means = [factor * bar.mean for bar in bars.values()]
    so_far = (np.maximum if higher_is_better else np.minimum).accumulate(means)
    line: dict[str, Any] = {"color": MUTED, "linewidth": 1, "linestyle": DOTTED}
    axes.plot(so_far, list(bars), drawstyle="steps-post", zorder=1, **line)
    for value in floors.values():
        axes.axvline(factor * value, color=INK, linewidth=1, linestyle="--", zorder=1)
    axes.set_xlim(worst, best)
    axes.set_ylim(-0.6, len(rows) - 0.4)


def add_legend_below(figure: Figure, panels: Sequence[Axes], last: Sequence[str] = ()) -> None:
    """One legend below all panels, each name once; those in `last` come last, in that order."""
    handles_by_name: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        handles_by_name = dict(zip(labels, handles, strict=True)) | handles_by_name
    if not handles_by_name:
        return
    names = sorted(handles_by_name, key=lambda name: last.index(name) + 1 if name in last else 0)
    room = int(figure.get_size_inches()[0] * _LETTERS_PER_INCH)
    legend = figure.legend(
        [handles_by_name[name] for name in names],
        names,
        loc="outside lower left",
        ncols=max(1, min(len(names), room // (max(map(len, names)) + 7))),
        fontsize=9,
        frameon=False,
        labelcolor=INK,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def png(figure: Figure) -> bytes:
    """The figure as a PNG; the same numbers give the same bytes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Glyphs that the font lacks become boxes; the page has the same as text.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()
