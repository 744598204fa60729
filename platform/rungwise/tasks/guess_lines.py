"""Guess format blocks for line-based files: tables with and without a header, tagged words."""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import fmean
from typing import Any

from rungwise.tasks.formats.columns import BARE, SPANS
from rungwise.tasks.guess_fields import (
    ANSWERS,
    DECIMAL,
    LABELS,
    PAIRS,
    ROWS,
    SCORES,
    TEXTS,
    WRITTEN,
    as_list,
    by_fields,
    fewest,
    labelled,
    marked,
    mean_length,
)

_WORDS_OF_A_NAME = 4  # a column name has fewer blanks than this


def of_lines(text: str) -> Iterator[dict[str, Any]]:
    """Yield format blocks that may read the text, likeliest first."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[: 20 * ROWS]
    yield from _conll(lines)
    filled = [line for line in lines if line.strip()][:ROWS]
    tables = []
    for delimiter, quoting in (("\t", False), (",", True), ("\t", True), (";", True), ("|", False)):
        rows = _rows(filled, delimiter, quoting)
        width, same = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        if width > 1 and same > 0.9 * len(rows):
            tables.append(({"delimiter": delimiter, "quoting": quoting}, rows, width))
    for layout, rows, width in tables:
        plain = {k: v for k, v in layout.items() if v != {"delimiter": "\t", "quoting": False}[k]}
        header = [cell.strip() for cell in rows[0]]
        known = {
            *LABELS,
            *SCORES,
            *TEXTS,
            *ANSWERS,
            *(name for pair in (*PAIRS, *WRITTEN) for name in pair),
        }
        even = [row for row in rows if len(row) == width]
        if len(even) < len(rows):
            plain["extra_columns"] = all(len(row) >= width for row in rows)
        if known.intersection(cell.lower() for cell in header) and len({*header}) == len(header):
            columns = dict(zip(header, map(list, zip(*even[1:], strict=True)), strict=False))
            if columns:
                yield from by_fields(columns, plain)
        if len(header) >= width:
            yield from _with_names(header, even[1:], plain)
        yield from _without_names(even, plain)
    first = [line.partition(" ") for line in filled]
    if first and len({label for label, _, _ in first}) <= max(2, len(first) / 3):
        form = {"kind": "table", "columns": {"text": 1, "label": 0}, "delimiter": " "}
        yield form | {"header": False, "rest_of_line": True}


def _rows(lines: Sequence[str], delimiter: str, quoting: bool) -> list[list[str]]:
    how = csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE
    try:
        return list(islice(csv.reader(lines, delimiter=delimiter, quoting=how, strict=True), ROWS))
    except csv.Error:
        return []


def _with_names(
    header: Sequence[str], rows: Sequence[Sequence[str]], layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield tables with unknown header names. A header cell that occurs as a label is data."""
    for form in _without_names(rows, layout) if rows else ():
        columns = form["columns"]
        target = columns.get("label", columns.get("labels", columns.get("score")))
        targets = as_list(target) or [target]
        if target is None or any(header[n] in {row[n] for row in rows} for n in targets):
            continue
        names = {
            key: [header[n] for n in place] if isinstance(place, list) else header[place]
            for key, place in columns.items()
        }
        words = (each for name in names.values() for each in as_list(name) or [name])
        if all(each.count(" ") < _WORDS_OF_A_NAME for each in words):
            yield {k: v for k, v in form.items() if k != "header"} | {"columns": names}


def _without_names(
    rows: Sequence[Sequence[str]], layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    columns = {place: list(cells) for place, cells in enumerate(zip(*rows, strict=True))}
    lengths = {place: mean_length(cells) for place, cells in columns.items()}
    text = max(lengths, key=lambda place: lengths[place])
    label = fewest(columns, but=text)
    plain = {"kind": "table", **layout, "header": False}
    last = max(columns)
    for written, extra in (("ABCDE", {"answer": "letter"}), ("0123", {}), ("1234", {"first": 1})):
        count = len({*columns[last]})
        if 3 <= count < last and {*columns[last]} == {*written[:count]}:
            options = list(range(last - count, last))
            asked = {"question": options[0] - 1, "options": options, "answer": last}
            if min(lengths[place] for place in options) > 3:
                yield {**plain, "kind": "choice", "columns": asked, **extra}
    if marks := marked(columns):
        yield plain | {"columns": {"text": text, "labels": marks}}
    if label is None:
        return
    about, keys = {"score": label}, {}
    if not any(map(DECIMAL, columns[label])):
        about, keys = labelled(label, columns[label])
    plain |= keys
    # A second text is about as long as the first and rarely repeats.
    second = [
        place
        for place, length in lengths.items()
        if place not in (text, label)
        and length > max(10, 0.2 * lengths[text])
        and len({*columns[place]}) > 0.5 * len(rows)
        and any(" " in cell for cell in columns[place])
    ]
    if second:
        a, b = sorted([text, max(second, key=lambda place: lengths[place])])
        yield plain | {"columns": {"text": a, "second": b, **about}}
    yield plain | {"columns": {"text": text, **about}}


def _conll(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield blocks for one word and its tags per line, with blank lines between sentences."""
    filled = [line for line in lines if line.strip()]
    ends = sum(not line.strip() for line in lines)
    if not filled:
        return
    body = [line for line in filled if not line.startswith(("# ", "#\t", "-DOCSTART-"))][:ROWS]
    for separator in ("\t", None):
        rows = [line.split(separator) for line in body]
        width, same = Counter(map(len, rows)).most_common(1)[0]
        if width < 2 or same < 0.95 * len(rows):
            continue
        numbered = rows[0][0] == "1"
        if separator and numbered and width == 10:
            yield {"kind": "conllu"}
            return
        columns = [*zip(*(row for row in rows if len(row) == width), strict=True)]
        if fmean(cell.count(" ") for cell in columns[int(numbered)]) > 0.1:
            continue
        marks = [n for n, each in enumerate(columns) if n and _marks(each)]
        tag = marks[0] if numbered and marks else marks[-1] if marks else width - 1
        form: dict[str, Any] = {"kind": "conll"}
        form |= {"word": 1} if numbered else {}
        form |= {"tag": tag} if tag != width - 1 else {}
        form |= {"separator": "tab"} if separator else {}
        # Inside a sentence, # is a word.
        starts = {
            before.strip() == "" and line[:2].strip()
            for before, line in itertools.pairwise(["", *lines])
            if line.startswith(("# ", "#\t"))
        }
        form |= {"comment": "#"} if starts == {"#"} else {}
        glued = [cell for cell in columns[0] if re.fullmatch(r"\D\d", cell)]
        form |= {"glued_digit": True} if len(glued) > 0.5 * len(rows) else {}
        apart = 2 < ends < len(filled) / 2
        if marks or (apart and len({*columns[tag]}) < max(60, len(rows) / 4)):
            yield form


def _marks(tags: Sequence[str]) -> bool:
    different = {*tags}
    bare = BARE.issuperset(different) and not {"B", "S"}.isdisjoint(different)
    return bare or (different != {"O"} and all(map(SPANS.fullmatch, different)))
