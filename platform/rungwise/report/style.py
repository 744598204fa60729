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
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

from rungwise.evaluation.suites.section import Panel
from rungwise.report.palette import FAINT, INK, MUTED, Series

Place = Literal["best", "upper left", "upper center", "upper right"]

DASHED = (0, (4, 3))
DOTTED = (0, (2, 2))

WIDE = (9.6, 4.2)  # inches: the page's width; HALF fits twice
MIDDLE = (6.8, 4.0)
HALF = (5.2, 3.9)
_NAME_LETTERS = 16  # of a variant beside an axis, before it wraps
_DOTS_PER_INCH = 160
_LETTERS_PER_INCH = 11.2  # of a title, which starts at the axis
_AXIS_INCHES = 0.9
_PAD_INCHES = 0.12
_DECADE = 10


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


def draw_panels(panels: Sequence[Panel], looks: Mapping[str, Series], columns: int = 3) -> bytes:
    """A picture of panels, with one legend below in the order of `looks`."""
    figure, all_axes = new_panels(len(panels), columns, 3.0, 0.8)
    for axes, panel in zip(all_axes, panels, strict=True):
        for name, points in panel.lines.items():
            x, *bounds = zip(*points, strict=True)
            options: dict[str, Any] = {"capsize": 2.5}
            if len(points) == 1:
                colour = "white" if name in panel.hollow else looks[name].colour
                options |= {"markersize": 7, "markerfacecolor": colour, "markeredgewidth": 1.6}
            elif bounds[1] == bounds[2]:  # no interval
                options |= {"capsize": 0}
            draw_estimates(axes, x, zip(*bounds, strict=True), looks[name], name, **options)
        if panel.level is not None:
            label, value = panel.level
            axes.axhline(value, color=MUTED, linestyle=DASHED, linewidth=1.2, label=label)
        dress(axes, panel.title, panel.x, panel.y)
        if panel.is_size:
            axes.margins(x=0.12, y=0.12)
            _set_size_axis(axes)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    levels = [panel.level[0] for panel in panels if panel.level is not None]
    add_legend_below(figure, all_axes, last=[*looks, *levels])
    return png(figure)


def _set_size_axis(axes: Axes) -> None:
    """Use a logarithmic axis if the sizes span at least a power of ten."""
    low, high = axes.get_xlim()
    if low > 0 and high / low < _DECADE:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.xaxis.set_major_formatter(EngFormatter())
    else:  # the margin of a wide range starts below 0
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())


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
