"""Plots of the whole ladder: scores by year, operations (FLOP) and parameters of the rungs, and
validation curves by tokens and by operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

from rungwise.report import style
from rungwise.report.formats import metric_axis
from rungwise.report.ladder.rungs import Cell, Column, Rung

_COLUMNS = 3
_DECADE = 10
_APART = 0.45  # years between rungs of the same year
_POINTS = ("accuracy", "correlation")  # shown times 100


def by_year(rungs: Sequence[Rung], columns: Sequence[Column]) -> bytes:
    """One panel per score, rungs by the year of their papers."""
    years = [rung.pretrain.model.year for rung in rungs]
    places = {}
    for index, rung in enumerate(rungs):
        year = years[index]
        # Rungs of the same year stand side by side.
        place = years[:index].count(year) - (years.count(year) - 1) / 2
        places[rung.name] = year + _APART * place

    def dressed(axes: Axes) -> None:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))

    return _panels(rungs, columns, places, "year", dressed)


def by_size(
    rungs: Sequence[Rung], columns: Sequence[Column], axis: str, sizes: Mapping[str, float]
) -> bytes | None:
    """One panel per score, rungs by a size such as operations; None if no rung has the size."""
    shown = [column for column in columns if column.cells.keys() & sizes.keys()]
    if not shown:
        return None

    return _panels(rungs, shown, sizes, axis, _by_factors)


def while_learning(rungs: Sequence[Rung]) -> bytes | None:
    """Bits per byte of held-out text at each validation, by tokens read and by operations; None if
    fewer than two rungs have such a curve."""
    curves = {
        rung.name: [row for row in run.validation if row["tokens"] and "bits_per_byte" in row]
        for rung in rungs
        if (run := rung.pretrain.gradient) is not None
    }
    learning = [rung for rung in rungs if curves.get(rung.name)]
    if len(learning) < 2:
        return None
    drawn, grid = style.panels(2, 2, 3.0, 0.8)
    for axes, unit in zip(grid, ("tokens", "operations"), strict=True):
        for rung in learning:
            rows, run = curves[rung.name], rung.pretrain.gradient
            assert run is not None
            each = run.flops_per_token if unit == "operations" else 1.0
            axes.plot(
                [row["tokens"] * each for row in rows],
                [row["bits_per_byte"] for row in rows],
                color=rung.look.colour,
                marker=rung.look.marker,
                markersize=5,
                label=rung.name,
            )
        style.dress(axes, f"at equal {unit}", unit, metric_axis("bits_per_byte", ""))
        _by_factors(axes)
    style.legend_below(drawn, grid, last=[rung.name for rung in rungs])
    return style.png(drawn)


def _by_factors(axes: Axes) -> None:
    """Use a logarithmic axis if the sizes span at least a power of ten."""
    low, high = axes.get_xlim()
    if low > 0 and high / low < _DECADE:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.xaxis.set_major_formatter(EngFormatter())
    else:  # the margin of a wide range starts below 0
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())


def _panels(
    rungs: Sequence[Rung],
    columns: Sequence[Column],
    places: Mapping[str, float],
    x: str,
    dressed: Callable[[Axes], None],
) -> bytes:
    drawn, grid = style.panels(len(columns), _COLUMNS, 3.0, 0.8)
    for axes, column in zip(grid, columns, strict=True):
        scale = 100 if column.metric in _POINTS else 1
        for rung in rungs:
            cell = column.cells.get(rung.name)
            if cell is None or rung.name not in places:
                continue
            mean, low, high = (
                scale * each for each in (cell.value.mean, cell.value.low, cell.value.high)
            )
            axes.errorbar(
                [places[rung.name]],
                [mean],
                yerr=style.from_mean([mean], low, high),
                color=rung.look.colour,
                marker=rung.look.marker,
                markersize=7,
                # Hollow: a pseudo-likelihood.
                markerfacecolor=rung.look.colour if cell.exact else "white",
                markeredgewidth=1.6,
                linestyle="none",
                elinewidth=1.4,
                capsize=3,
                label=_label(rung, cell, columns),
            )
        axes.margins(x=0.12, y=0.12)
        style.dress(axes, column.name, x, metric_axis(column.metric, ""))
        dressed(axes)
    style.legend_below(drawn, grid, last=[rung.name for rung in rungs])
    return style.png(drawn)


def _label(rung: Rung, cell: Cell, columns: Sequence[Column]) -> str:
    """The rung's name; hollow marks are in the legend only if the rung has no filled one."""
    others = [column.cells[rung.name] for column in columns if rung.name in column.cells]
    if cell.exact or not any(other.exact for other in others):
        return rung.name
    return "_hollow"
