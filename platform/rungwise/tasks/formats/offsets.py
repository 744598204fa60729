"""Places in a text as files state them: in code points, or in the units of the program that wrote
them. Browsers count UTF-16 units, of which a character beyond U+FFFF, such as an emoji, has two;
programs in Go and Rust often count bytes of UTF-8.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Literal, get_args

Units = Literal["code_points", "utf_16", "utf_8"]
UNITS: tuple[Units, ...] = get_args(Units)
_WIDTHS: Mapping[Units, Callable[[str], int]] = {
    "code_points": lambda _: 1,
    "utf_16": lambda character: 1 + (character > "\uffff"),
    "utf_8": lambda character: len(character.encode()),
}


def code_point(text: str, offset: int, units: Units) -> int | None:
    """Return the code point at an offset in `units`, or the end of the text; None if the offset is
    beyond it or inside of a character."""
    return _code_points(text, units).get(offset)


@lru_cache(maxsize=8)  # a context has many questions
def _code_points(text: str, units: Units) -> Mapping[int, int]:
    places = accumulate(map(_WIDTHS[units], text), initial=0)
    return {place: number for number, place in enumerate(places)}


def suggest_units(text: str, offset: int, stated: str) -> str:
    """Return advice on the units in which the stated text begins at the offset; "" if none fits."""
    for units in UNITS:
        start = code_point(text, offset, units)
        if start is not None and text.startswith(stated, start):
            return f" (in other units it is there: set data.format.offsets to {units})"
    return ""
