"""Plots of a ladder: scores of all rungs by operations (FLOP) and parameters, validation curves,
accuracy by layer, learned mixes of layers."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

from rungwise.report import palette, style
from rungwise.report.formats import metric_axis
from rungwise.report.ladder.rows import LayerScore, LayerShare
from rungwise.report.ladder.rungs import Cell, Column, Rung

_COLUMNS = 3
_DECADE = 10
_POINTS = ("accuracy", "correlation")  # shown times 100
_FREQUENT, _SAME_WORD = "most frequent", "same word"  # names from the suites


def draw_by_size(
    rungs: Sequence[Rung], columns: Sequence[Column], axis: str, sizes: Mapping[str, float]
) -> bytes | None:
    """One panel per score, rungs by a size such as operations; None if no rung has the size."""
    columns = [column for column in columns if column.cells.keys() & sizes.keys()]
    return _draw_columns(rungs, columns, sizes, axis) if columns else None


def draw_learning_curves(rungs: Sequence[Rung]) -> bytes | None:
    """Bits per byte of held-out text at each validation, by tokens read and by operations; None if
    fewer than two rungs have such a curve."""
    curves = [
        (rung, run.flops_per_token, rows)
        for rung in rungs
        if (run := rung.pretrain.gradient) is not None
        and (rows := [r for r in run.validation if r["tokens"] and "bits_per_byte" in r])
    ]
    if len(curves) < 2:
        return None
    figure, panels = style.new_panels(2, 2, 3.0, 0.8)
    for axes, unit in zip(panels, ("tokens", "operations"), strict=True):
        for rung, flops_per_token, rows in curves:
            scale = flops_per_token if unit == "operations" else 1.0
            axes.plot(
                [row["tokens"] * scale for row in rows],
                [row["bits_per_byte"] for row in rows],
                color=rung.look.colour,
                marker=rung.look.marker,
                markersize=5,
                label=rung.name,
            )
        style.dress(axes, f"at equal {unit}", unit, metric_axis("bits_per_byte", ""))
        _set_factor_ticks(axes)
    style.add_legend_below(figure, panels, last=[rung.name for rung in rungs])
    return style.png(figure)


def _set_factor_ticks(axes: Axes) -> None:
    """Use a logarithmic axis if the sizes span at least a power of ten."""
    low, high = axes.get_xlim()
    if low > 0 and high / low < _DECADE:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.xaxis.set_major_formatter(EngFormatter())
    else:  # the margin of a wide range starts below 0
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_columns(
    rungs: Sequence[Rung], columns: Sequence[Column], places: Mapping[str, float], x: str
) -> bytes:
    figure, panels = style.new_panels(len(columns), _COLUMNS, 3.0, 0.8)
    for axes, column in zip(panels, columns, strict=True):
        scale = 100 if column.metric in _POINTS else 1
        for rung in rungs:
            cell = column.cells.get(rung.name)
            if cell is None or rung.name not in places:
                continue
            style.draw_estimates(
                axes,
                [places[rung.name]],
                [(scale * cell.value.mean, scale * cell.value.low, scale * cell.value.high)],
                rung.look,
                _legend_name(rung, cell, columns),
                linestyle="none",
                markersize=7,
                # Hollow: a pseudo-likelihood.
                markerfacecolor=rung.look.colour if cell.exact else "white",
                markeredgewidth=1.6,
            )
        axes.margins(x=0.12, y=0.12)
        style.dress(axes, column.name, x, metric_axis(column.metric, ""))
        _set_factor_ticks(axes)
    style.add_legend_below(figure, panels, last=[rung.name for rung in rungs])
    return style.png(figure)


def _legend_name(rung: Rung, cell: Cell, columns: Sequence[Column]) -> str:
    """The rung's name; hollow marks are in the legend only if the rung has no filled one."""
    others = [column.cells[rung.name] for column in columns if rung.name in column.cells]
    if cell.exact or not any(other.exact for other in others):
        return rung.name
    return "_hollow"


def draw_layers(rows: Sequence[LayerScore], rungs: Sequence[Rung]) -> bytes:
    """Accuracy by layer for every rung, one panel per suite and rule; the dashed line is the most
    frequent answer."""
    rules = [(row.suite, row.rule) for row in rows if row.layer is not None]
    rules = list(dict.fromkeys(rules))
    figure, panels = style.new_panels(len(rules), _COLUMNS, 3.0, 0.8)
    for axes, (suite, rule) in zip(panels, rules, strict=True):
        suite_rows = [row for row in rows if row.suite == suite]
        for rung in rungs:
            points = sorted(
                (row.layer or 0, 100 * row.mean, 100 * row.low, 100 * row.high)
                for row in suite_rows
                if (row.rung, row.rule) == (rung.name, rule)
            )
            if points:
                layers, bounds = [point[0] for point in points], [point[1:] for point in points]
                style.draw_estimates(axes, layers, bounds, rung.look, rung.name, capsize=2.5)
        # It reads no states, so it is the same for all rungs.
        baseline = f"{_SAME_WORD} {_FREQUENT}" if rule == _SAME_WORD else _FREQUENT
        frequent = [row.mean for row in suite_rows if row.rule == baseline]
        if frequent:
            axes.axhline(
                100 * frequent[0],
                color=palette.MUTED,
                linestyle=style.DASHED,
                linewidth=1.2,
                label=_FREQUENT,
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.dress(axes, f"{suite}, {rule}" if rule else suite, "layer", "accuracy (%)")
    style.add_legend_below(figure, panels, last=[_FREQUENT])
    return style.png(figure)


def draw_mixes(rows: Sequence[LayerShare], rungs: Sequence[Rung]) -> bytes:
    """The share of every layer, one panel per suite; layer 0 is the token embeddings."""
    suites = list(dict.fromkeys(row.suite for row in rows))
    figure, panels = style.new_panels(len(suites), 2, 3.0, 0.8)
    for axes, suite in zip(panels, suites, strict=True):
        suite_rows = [row for row in rows if row.suite == suite]
        names = {row.rung for row in suite_rows}
        suite_rungs = [rung for rung in rungs if rung.name in names]
        for place, rung in enumerate(suite_rungs):
            shares = [100 * row.share for row in suite_rows if row.rung == rung.name]
            style.draw_bars(axes, place, len(suite_rungs), shares, rung.look, rung.name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.dress(axes, suite, "layer", "share of the mix (%)")
    style.add_legend_below(figure, panels)
    return style.png(figure)
