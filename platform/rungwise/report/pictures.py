"""The masked instance, the passage and the blanks as PNG files; the page has the same as text.

Tokens come from arbitrary text, so `$` must not start matplotlib's math mode.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from rungwise.evaluation.page.fill_in import TOP, Filled
from rungwise.evaluation.page.surprise import LEVELS, Passage
from rungwise.report import style
from rungwise.report.formats import percent, small_percent
from rungwise.report.specimen import Specimen

_LETTERS_A_LINE = 92
_LONGEST_TOKEN = 24
_FILLS = {"masked": style.ORANGE, "random": style.PURPLE, "kept": style.GREEN, "special": "#c4c9d1"}
_SEGMENTS = ("#dceefa", "#fbf6c6")
_SURPRISE = ("#eef1f4", "#fde8cf", "#f9c48a", "#ec9450", "#d55e00")  # pale to strong
_COLUMNS = 2  # of blanks
_CONTEXT_LETTERS, _TITLE_LETTERS = 46, 64
_LINE_INCHES, _LEGEND_INCHES = 0.46, 0.95


@dataclass(frozen=True)
class _Box:
    """A token in a box, with small print below it."""

    text: str
    below: str
    colour: str

    @property
    def width(self) -> float:  # in letters
        return max(len(self.text), 0.9 * len(self.below)) + 1.8


def instance(shown: Specimen) -> bytes:
    """Every token in a box, coloured by segment and masking, with the original in small print."""
    return _boxes(
        "Held-out text as the model reads it" + (f": {shown.answer}" if shown.answer else ""),
        (
            ("segment A", _SEGMENTS[0]),
            ("segment B", _SEGMENTS[1]),
            ("[MASK]", _FILLS["masked"]),
            ("random token", _FILLS["random"]),
            ("kept", _FILLS["kept"]),
            ("[CLS] [SEP]", _FILLS["special"]),
        ),
        [
            _Box(
                _cut(piece.text),
                _cut(piece.original or ""),
                _FILLS.get(piece.kind, _SEGMENTS[piece.segment]),
            )
            for piece in shown.pieces
        ],
    )


def passage(seen: Passage) -> bytes:
    """Every token in a box, with its probability as colour and in small print."""
    below = [percent(least, 0 if least >= 0.01 else 1) for least in LEVELS]
    names = [f"{below[0]} or more", *(f"down to {share}" for share in below[1:]), "less"]
    return _boxes(
        f"Held-out text and the model's probability of each token: "
        f"{seen.mean_surprise:.2f} nats per token",
        tuple(zip(names, _SURPRISE, strict=True)),
        [
            _Box(_cut(token.text), small_percent(token.probability), _SURPRISE[token.level])
            for token in seen.tokens
        ],
    )


def _boxes(title: str, key: Sequence[tuple[str, str]], boxes: Sequence[_Box]) -> bytes:
    lines = _lines(boxes)
    height = len(lines) * _LINE_INCHES + _LEGEND_INCHES
    drawn = style.figure((9.6, height))
    drawn.set_layout_engine("none")
    axes = drawn.add_axes((0.01, 0.0, 0.98, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0, _LETTERS_A_LINE + 2)
    axes.set_ylim(height, 0)
    _text(axes, 0, 0.2, title, 11, fontweight="bold")
    x = 0.0
    for label, colour in key:
        _box(axes, x, 0.4, 1.6, 0.2, colour)
        _text(axes, x + 2.2, 0.5, label, 8.5)
        x += len(label) * 1.05 + 4.5
    for row, line in enumerate(lines):
        top = _LEGEND_INCHES - 0.15 + row * _LINE_INCHES
        for left, box in line:
            width = box.width - 0.6
            middle = left + width / 2
            _box(axes, left, top, width, 0.24, box.colour)
            _text(axes, middle, top + 0.12, box.text, 8, ha="center")
            _text(axes, middle, top + 0.32, box.below, 7, ha="center", color=style.MUTED)
    return style.png(drawn)


def blanks(filled: Sequence[Filled]) -> bytes:
    """Each sentence with its blank, and bars of the best guesses, the right word marked."""
    drawn, panels = style.panels(len(filled), _COLUMNS, 2.35, 0.4)
    right = sum(blank.rank == 1 for blank in filled)
    within = sum(blank.rank <= TOP for blank in filled)
    drawn.suptitle(
        f"First guess correct in {right} of {len(filled)} blanks, answer among the top {TOP} in "
        f"{within}",
        x=0.01,
        ha="left",
        fontsize=11,
        fontweight="bold",
        color=style.INK,
    )
    most = max(100 * guess.probability for blank in filled for guess in blank.guesses)
    for axes, blank in zip(panels, filled, strict=True):
        colours = [style.GREEN if guess.right else style.SKY for guess in blank.guesses]
        places = range(len(blank.guesses))
        axes.barh(places, [100 * g.probability for g in blank.guesses], color=colours, height=0.7)
        axes.set_yticks(places, [_cut(guess.text) for guess in blank.guesses], parse_math=False)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.05 * most)
        style.dress(axes, x="probability (%)", grid="x")
        axes.set_title(
            f"{_sentence(blank)}\nanswer: {_cut(blank.blank.answer)}, rank {blank.rank:,} "
            f"({percent(blank.probability, 2)})",
            loc="left",
            fontsize=9,
            color=style.INK,
            parse_math=False,
        )
    return style.png(drawn)


def _sentence(blank: Filled) -> str:
    """The words around the blank, on at most two lines."""
    before, after = blank.blank.before, blank.blank.after
    if len(before) > _CONTEXT_LETTERS:
        before = "… " + before[-_CONTEXT_LETTERS:].partition(" ")[2]
    if len(after) > _CONTEXT_LETTERS:
        after = after[:_CONTEXT_LETTERS].rpartition(" ")[0] + " …"
    return textwrap.fill(f"{before} ______ {after}", _TITLE_LETTERS, max_lines=2, placeholder=" …")


def _lines(boxes: Sequence[_Box]) -> list[list[tuple[float, _Box]]]:
    """Boxes broken into lines, each with its left edge in letters."""
    lines: list[list[tuple[float, _Box]]] = [[]]
    x = 0.0
    for box in boxes:
        if x + box.width > _LETTERS_A_LINE and lines[-1]:
            lines.append([])
            x = 0.0
        lines[-1].append((x, box))
        x += box.width
    return lines


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TOKEN else text[: _LONGEST_TOKEN - 1] + "…"


def _box(axes: Axes, x: float, y: float, width: float, height: float, colour: str) -> None:
    rounded = "round,pad=0,rounding_size=0.04"
    axes.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle=rounded, facecolor=colour, linewidth=0)
    )


def _text(axes: Axes, x: float, y: float, text: str, size: float, **look: Any) -> None:
    """Write `text` with its middle at height `y`, in ink unless `look` has another colour."""
    look = {"color": style.INK} | look
    axes.text(x, y, text, fontsize=size, va="center", parse_math=False, **look)
