"""The look of plots: axes and PNG output; palette.py has the colours.

Figures use matplotlib's objects and the Agg canvas, never pyplot, which keeps global state.
"""

import io
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rungwise.report.palette import FAINT, INK, MUTED, Series

Place = Literal["best", "upper left", "upper center", "upper right"]

DASHED = (0, (4, 3))
DOTTED = (0, (2, 2))

WIDE = (9.6, 4.2)  # inches: the page's width; HALF fits twice
MIDDLE = (6.8, 4.0)
HALF = (5.2, 3.9)
BAR_GROUP = 0.8  # fraction of a slot that its bars fill
_NAME_LETTERS = 16  # of a variant beside an axis, before it wraps
_DOTS_PER_INCH = 160
_LETTERS_PER_INCH = 11.2  # of a title, which starts at the axis
_AXIS_INCHES = 0.9
_PAD_INCHES = 0.12


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty white figure with constrained layout."""
    figure = Figure(figsize=size, dpi=_DOTS_PER_INCH, facecolor="white")
    # Padding, since on a dark page the plot is a white card.
    figure.set_layout_engine("constrained", w_pad=_PAD_INCHES, h_pad=_PAD_INCHES)
    FigureCanvasAgg(figure)
    return figure


def new_axes(size: tuple[float, float] = HALF) -> tuple[Figure, Axes]:
    """A figure with one panel."""
    figure = new_figure(size)
    return figure, figure.subplots()


def new_panels(
    count: int, columns: int, row_inches: float, margin_inches: float
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, in rows of `columns`; `margin_inches` high above and below."""
    columns = min(count, columns)
    rows = -(-count // columns)
    width = WIDE[0] if columns > 1 else MIDDLE[0]
    figure = new_figure((width, margin_inches + row_inches * rows))
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in panels[count:]:
        empty.set_visible(False)
    return figure, panels[:count]


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
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color=FAINT, linewidth=0.7)


def draw_estimates(
    axes: Axes,
    x: Any,
    bounds: Iterable[tuple[float, float, float]],
    look: Series,
    label: str,
    **options: Any,
) -> None:
    """Draw (mean, low, high) at each `x` as marks with intervals, joined by the series' line.

    A bootstrap's interval may end short of the mean, if only by a rounding error.
    """
    mean, low, high = np.array(list(bounds), float).T
    usual: dict[str, Any] = {
        "linestyle": look.line,
        "markersize": 6,
        "linewidth": 1.7,
        "capsize": 3,
    }
    axes.errorbar(
        x,
        mean,
        yerr=(np.maximum(mean - low, 0), np.maximum(high - mean, 0)),
        color=look.colour,
        marker=look.marker,
        elinewidth=1.2,
        label=label,
        **usual | options,
    )


def draw_bars(
    axes: Axes,
    place: int,
    count: int,
    heights: Sequence[float],
    look: Series,
    label: str,
    **more: Any,
) -> None:
    """Draw the bars of a series, the number `place` of `count` that share each whole number."""
    width = BAR_GROUP / count
    x = np.arange(len(heights)) + width * (place - (count - 1) / 2)
    axes.bar(x, heights, width=0.92 * width, color=look.colour, label=label, **more)


def draw_trial(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    look: Series,
    label: str,
    wins: bool,
    stopped: bool,
    **options: Any,
) -> None:
    """Draw the scores of a trial as it learnt: thick if it wins, a cross where it was stopped."""
    x, y = zip(*points, strict=True)
    options |= {"linewidth": 2.6} if wins else {"linewidth": 1.1, "alpha": 0.6}
    axes.plot(x, y, color=look.colour, zorder=3 if wins else 2, label=label, **options)
    if stopped:
        cross: dict[str, Any] = {"marker": "x", "linewidth": 1.8, "label": "stopped early"}
        axes.scatter(x[-1], y[-1], 46, color=look.colour, zorder=4, **cross)


def add_legend(axes: Axes, place: Place = "best", **options: Any) -> None:
    axes.legend(
        loc=place,
        fontsize=9,
        frameon=True,
        framealpha=0.9,
        edgecolor="none",
        labelcolor=INK,
        **options,
    )


def add_legend_below(
    figure: Figure, panels: Sequence[Axes], title: str = "", last: Sequence[str] = ()
) -> None:
    """One legend below all panels, each name once; those in `last` come last, in that order."""
    handles_by_name: dict[str, Any] = {}
    for axes in panels:
        handles, names = axes.get_legend_handles_labels()
        handles_by_name = dict(zip(names, handles, strict=True)) | handles_by_name
    order = sorted(handles_by_name, key=lambda name: last.index(name) + 1 if name in last else 0)
    add_key_below(figure, {name: handles_by_name[name] for name in order}, title)


def add_key_below(figure: Figure, handles: Mapping[str, Any], title: str = "") -> None:
    """A legend of {name: handle} below all panels, in as many columns as fit."""
    names = list(handles)
    if title:
        names[0] = f"{title}: {names[0]}"
    room = int(figure.get_size_inches()[0] * _LETTERS_PER_INCH)
    columns = max(1, min(len(names), room // (max(map(len, names)) + 7)))
    legend = figure.legend(
        handles.values(),
        names,
        loc="outside lower left",
        ncols=columns,
        fontsize=9,
        frameon=False,
        labelcolor=INK,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def wrap_name(name: str) -> str:
    """A variant's name, wrapped if long."""
    return (
        textwrap.fill(name.replace("_", "_ ").replace("-", "- "), _NAME_LETTERS)
        .replace("_ ", "_")
        .replace("- ", "-")
    )


def mark_change(axes: Axes, x: float, text: str = "") -> None:
    """Mark a change with a thin vertical line and `text` beside it."""
    axes.axvline(x, color=INK, linestyle=(0, (1, 2)), linewidth=1.1, zorder=1)
    axes.annotate(
        text,
        (x, 0),
        xytext=(3, 4),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        fontsize=8,
        color=MUTED,
        rotation=90,
        va="bottom",
    )


def png(figure: Figure) -> bytes:
    """The figure as a PNG; the same numbers give the same bytes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Glyphs that the font lacks become boxes; the page has the same as text.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
