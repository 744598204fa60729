"""Colours, and how each variant or rung is drawn; needs no matplotlib.

Colours are from Okabe and Ito 2008 ("Color universal design"), distinguishable with any kind of
colour vision; series differ in marker or line as well.
"""

from dataclasses import dataclass

BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
ORANGE, VERMILLION, PURPLE = "#E69F00", "#D55E00", "#CC79A7"
INK, MUTED, FAINT = "#1f2430", "#5b6472", "#d9dde3"

# Looks of variants go by position, since their names are free.
_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, "#7b8494")
_MARKERS = ("o", "^", "s", "v", "P", "X", "p", "*")
_LINES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Series:
    """How a variant or rung is drawn, the same in every plot and on the page."""

    colour: str
    marker: str
    line: str


def series(position: int) -> Series:
    """The look at a position from 0. Colours repeat after seven, with another marker and line."""
    return Series(
        _COLOURS[position % len(_COLOURS)],
        _MARKERS[position % len(_MARKERS)],
        _LINES[position % len(_LINES)],
    )
