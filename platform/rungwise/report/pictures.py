"""The masked instance and the blanks as PNG files; the page shows the same as text.

Tokens are text of somebody else's, so no `$` in them is taken for mathematics.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.patches import FancyBboxPatch

from rungwise.report import style
from rungwise.report.fill_in import TOP, Filled
from rungwise.report.formats import percent
from rungwise.report.specimen import Piece, Specimen

_LETTERS_A_LINE = 92
_LONGEST_TOKEN = 24
_FILLS = {"masked": style.ORANGE, "random": style.PURPLE, "kept": style.GREEN, "special": "#c4c9d1"}
_SEGMENTS = ("#dceefa", "#fbf6c6")
_COLUMNS = 2  # of blanks
_CONTEXT_LETTERS, _TITLE_LETTERS = 46, 64
_LINE_INCHES, _LEGEND_INCHES = 0.46, 0.95


def instance(shown: Specimen) -> bytes:
    """Every token in a box: colours say segment and what masking did, the small print what was."""
    lines = _lines(shown.pieces)
    height = len(lines) * _LINE_INCHES + _LEGEND_INCHES
    drawn = style.figure((9.6, height))
    drawn.set_layout_engine("none")
    axes = drawn.add_axes((0.01, 0.0, 0.98, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0, _LETTERS_A_LINE + 2)
    axes.set_ylim(height, 0)
    follows = "B follows A in its document" if shown.is_next else "B is from another document"
    _text(axes, 0, 0.2, f"A held-out pair as the model reads it: {follows}", 11, weight="bold")
    x = 0.0
    for label, colour in (
        ("segment A", _SEGMENTS[0]),
        ("segment B", _SEGMENTS[1]),
        ("[MASK]", _FILLS["masked"]),
        ("random token", _FILLS["random"]),
        ("kept", _FILLS["kept"]),
        ("[CLS] [SEP]", _FILLS["special"]),
    ):
        _box(axes, x, 0.4, 1.6, 0.2, colour)
        _text(axes, x + 2.2, 0.5, label, 8.5)
        x += len(label) * 1.05 + 4.5
    for row, line in enumerate(lines):
        top = _LEGEND_INCHES - 0.15 + row * _LINE_INCHES
        for left, piece in line:
            width = _width(piece) - 0.6
            colour = _FILLS.get(piece.kind, _SEGMENTS[piece.segment])
            _box(axes, left, top, width, 0.24, colour)
            _text(axes, left + width / 2, top + 0.12, _cut(piece.text), 8, align="center")
            if piece.original is not None:
                _text(
                    axes,
                    left + width / 2,
                    top + 0.32,
                    _cut(piece.original),
                    7,
                    align="center",
                    colour=style.MUTED,
                )
    return style.png(drawn)


def blanks(filled: Sequence[Filled]) -> bytes:
    """Each sentence with its blank, and small bars of the best guesses, the right word marked."""
    columns = min(_COLUMNS, len(filled))
    rows = -(-len(filled) // columns)
    drawn = style.figure((9.6, 2.35 * rows + 0.4))
    grid = drawn.subplots(rows, columns, squeeze=False)
    right = sum(found.rank == 1 for found in filled)
    within = sum(found.rank <= TOP for found in filled)
    drawn.suptitle(
        f"First guess right in {right} of {len(filled)} blanks, right word among the first {TOP} "
        f"in {within}",
        x=0.01,
        ha="left",
        fontsize=11,
        fontweight="bold",
        color=style.INK,
    )
    most = max(100 * guess.probability for found in filled for guess in found.guesses)
    for axes, found in zip(grid.flat, filled, strict=False):
        colours = [style.GREEN if guess.right else style.SKY for guess in found.guesses]
        places = range(len(found.guesses))
        axes.barh(places, [100 * g.probability for g in found.guesses], color=colours, height=0.7)
        axes.set_yticks(places, [_cut(guess.text) for guess in found.guesses], parse_math=False)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.05 * most)
        style.dress(axes, x="probability (%)", grid="x")
        axes.set_title(
            f"{_sentence(found)}\nright: {_cut(found.blank.answer)}, guess {found.rank:,} "
            f"({percent(found.probability, 2)})",
            loc="left",
            fontsize=9,
            color=style.INK,
            parse_math=False,
        )
    for axes in list(grid.flat)[len(filled) :]:
        axes.set_axis_off()
    return style.png(drawn)


def _sentence(found: Filled) -> str:
    """The words next to the blank, on two lines."""
    before, after = found.blank.before, found.blank.after
    if len(before) > _CONTEXT_LETTERS:
        before = "… " + before[-_CONTEXT_LETTERS:].partition(" ")[2]
    if len(after) > _CONTEXT_LETTERS:
        after = after[:_CONTEXT_LETTERS].rpartition(" ")[0] + " …"
    return textwrap.fill(f"{before} ______ {after}", _TITLE_LETTERS, max_lines=2, placeholder=" …")


def _lines(pieces: Sequence[Piece]) -> list[list[tuple[float, Piece]]]:
    """Pieces with the place where each begins, in letters, broken into lines."""
    lines: list[list[tuple[float, Piece]]] = [[]]
    x = 0.0
    for piece in pieces:
        if x + _width(piece) > _LETTERS_A_LINE and lines[-1]:
            lines.append([])
            x = 0.0
        lines[-1].append((x, piece))
        x += _width(piece)
    return lines


def _width(piece: Piece) -> float:
    return max(len(_cut(piece.text)), 0.9 * len(_cut(piece.original or ""))) + 1.8


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TOKEN else text[: _LONGEST_TOKEN - 1] + "…"


def _box(axes, x: float, y: float, width: float, height: float, colour: str) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.04",
            facecolor=colour,
            linewidth=0,
        )
    )


def _text(
    axes,
    x: float,
    y: float,
    text: str,
    size: float,
    align: str = "left",
    weight: str = "normal",
    colour: str = style.INK,
) -> None:
    axes.text(
        x,
        y,
        text,
        fontsize=size,
        ha=align,
        va="center",
        color=colour,
        fontweight=weight,
        parse_math=False,
    )
