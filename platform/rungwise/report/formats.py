"""Numbers, names and series as readers see them, on the page and in plots; every function is a
template filter. Colours are those of Okabe and Ito 2008, distinguishable with any colour vision."""

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup, escape

from rungwise.evaluation.comparison.summary import RowDifference, TaskScore
from rungwise.evaluation.statistics import Difference, Estimate
from rungwise.forecast.curves import Interval
from rungwise.tasks.scoring.metrics import CORRELATIONS, OWN_UNITS, format_metric

BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
ORANGE, VERMILLION, PURPLE = "#E69F00", "#D55E00", "#CC79A7"
INK, MUTED, FAINT = "#1f2430", "#5b6472", "#d9dde3"
_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, "#7b8494")
_MARKERS = ("o", "^", "s", "v", "P", "X", "p", "*")
_LINES = ("-", "--", "-.", ":")
_MINUS = "\N{MINUS SIGN}"
_NO_BREAK = "\N{NO-BREAK SPACE}"
_METRICS = {
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
    "f1": "F1",
    "chrf": "chrF",
    "matthews": "Matthews correlation",
    "correlation": "Spearman correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
}
_ACRONYMS = re.compile(r"\b(ltr|mlm|nsp|sop)\b")
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
Bounds = Estimate | Difference | Interval | TaskScore | RowDifference


@dataclass(frozen=True)
class Series:
    """How a variant or rung is drawn, the same in every plot and on the page."""

    colour: str
    marker: str
    line: str


Looks = Mapping[str, Series]  # by variant or rung


def series(position: int) -> Series:
    """The look at a position from 0. Colours repeat after seven, with another marker and line."""
    return Series(
        _COLOURS[position % len(_COLOURS)],
        _MARKERS[position % len(_MARKERS)],
        _LINES[position % len(_LINES)],
    )


def percent(share: float, digits: int = 1) -> str:
    """0.217 -> `21.7%`."""
    return f"{100 * share:.{digits}f}%".replace("-", _MINUS)


def small_percent(share: float) -> str:
    """A short probability: `62%`, `3.1%`, `0.04%`, `<0.01%`."""
    if share >= 0.0995:
        return f"{100 * share:.0f}%"
    if share >= 0.0001:
        return f"{100 * share:.1f}%" if share >= 0.001 else f"{100 * share:.2f}%"
    return "<0.01%"


def points(share: float) -> str:
    """A difference of shares in percentage points, always with its sign: 0.074 -> `+7.4`."""
    return f"{100 * share:+.1f}".replace("-", _MINUS)


def format_signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", _MINUS)


def number(value: float, digits: int = 0) -> str:
    """7546 -> `7,546`."""
    return f"{value:,.{digits}f}".replace("-", _MINUS)


def compact(value: float) -> str:
    """1503746 -> `1.5 M`; below 1,000 the number itself."""
    for size, letter in _STEPS:
        if abs(value) >= 0.99995 * size:  # which rounds to 1.0
            return f"{value / size:.1f}{_NO_BREAK}{letter}"
    return f"{value:.0f}"


def duration(seconds: float, digits: int = 1) -> str:
    """2.37 -> `2.4 s`, 155.5 -> `2 min 36 s`, 8000 -> `2 h 13 min`. `digits` applies below 60 s."""
    if round(seconds, 1) < 60:
        return f"{seconds:.{digits}f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def money(value: float) -> str:
    """Below one with two significant digits. No currency, since the price has none."""
    return f"{value:.2g}" if 0 < value < 0.995 else f"{value:,.2f}"


def metric_name(metric: str) -> str:
    """`macro_f1` -> `macro-F1`, `exact_match` -> `exact match`."""
    return _METRICS.get(metric, spoken(metric))


def metric_axis(metric: str, split: str = "test") -> str:
    """`test accuracy (%)`, `test Pearson correlation (times 100)`."""
    name = f"{split} {metric_name(metric)}".strip()
    if metric in OWN_UNITS:
        return name
    return f"{name} ({'times 100' if metric in CORRELATIONS else '%'})"


def score(value: float, metric: str) -> str:
    """As `tasks.scoring.metrics.format_metric`, with a minus sign."""
    return format_metric(value, metric).replace("-", _MINUS)


def scale(metric: str) -> int:
    """The factor of a metric where it is shown: 100 for shares and correlations."""
    return 1 if metric in OWN_UNITS else 100


def interval(estimate: Bounds, metric: str) -> str:
    """`[76.1, 80.3]`, in the unit of `score`; "" if it is unknown."""
    if math.isnan(estimate.low):
        return ""
    factor, digits = scale(metric), OWN_UNITS.get(metric, 1)
    low, high = (number(factor * bound, digits) for bound in (estimate.low, estimate.high))
    return f"[{low}, {high}]"


def points_interval(estimate: Bounds) -> str:
    """`[+5.1, +9.7]`."""
    return f"[{points(estimate.low)}, {points(estimate.high)}]"


def p_value(p: float) -> str:
    """`p = 0.013`, or `p < 0.001`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def setting(value: object) -> str:
    """A hyperparameter: small floats in scientific notation, a block as `kind key=value`."""
    if isinstance(value, Mapping):
        kind = [str(value["kind"])] if "kind" in value else []
        rest = [f"{key}={setting(each)}" for key, each in value.items() if key != "kind"]
        return " ".join(kind + rest)
    if isinstance(value, float) and 0 < abs(value) < 0.01:
        return f"{value:.1e}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def spoken(name: str) -> str:
    """A key as words: `minimal_pairs` -> `minimal pairs`."""
    return _ACRONYMS.sub(lambda match: match[0].upper(), name.replace("_", " "))


def breakable(name: str) -> Markup:
    """A name that may wrap after `-` and `.`."""
    return Markup(re.sub(r"([.-])", r"\1<wbr>", str(escape(spoken(name)))))


def data_uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"


def css_width(data: bytes) -> int:
    """The full width of a PNG in CSS pixels, 100 per inch, so that all plots' text is alike."""
    return round(int.from_bytes(data[16:20]) / 1.6)
