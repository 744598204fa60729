"""Guess format blocks for line-based files: tables with and without a header, tagged words."""

import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from statistics import fmean
from typing import Any

from rungwise.tasks.formats.base import split_lines
from rungwise.tasks.formats.guess_columns import (
    KNOWN_NAMES,
    ROWS,
    find_classes,
    find_indicators,
    guess_columns,
    is_prose,
    mean_length,
    spread,
    target_columns,
)
from rungwise.tasks.formats.records import read_cells
from rungwise.tasks.formats.schemes import are_spans
from rungwise.tasks.formats.texts import PREFIX

_TAGGED_LINES = 20 * ROWS  # of a file of sentences to look at
_MOST_TEXTS = 3
_WORDS_OF_A_NAME = 4  # a column name has fewer blanks than this
# (delimiter, whether cells are quoted); decimal commas may stand between semicolons.
_DELIMITERS = (("\t", False), (";", True), (",", True), ("\t", True), ("|", False))
_CONLLU_WIDTH = 10
_DEFAULTS = {"delimiter": "\t", "quoting": False}


def guess_lines(text: str) -> Iterator[dict[str, Any]]:
    """Yield format blocks that may read the text, likeliest first."""
    lines = split_lines(text)
    filled = [line for line in lines if line.strip()]
    marked = [sum(w.startswith(PREFIX) for w in line.split()) for line in spread(filled, ROWS)]
    if marked and all(marked):
        yield {"kind": "fasttext"} | ({"several_labels": True} if max(marked) > 1 else {})
    yield from _guess_tagged(lines[:_TAGGED_LINES])
    for delimiter, quoting in _DELIMITERS:
        rows = _rows(filled, delimiter, quoting)
        width, same = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        if width > 1 and same > 0.9 * len(rows):
            layout = {"delimiter": delimiter, "quoting": quoting}
            keys = {key: value for key, value in layout.items() if value != _DEFAULTS[key]}
            yield from _guess_table(rows, width, keys)


def _guess_table(
    rows: Sequence[list[str]], width: int, layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield blocks of a table whose first row has known names, other names, or none."""
    header = [cell.strip() for cell in rows[0]]
    even = [row for row in rows if len(row) == width]
    if len(even) < len(rows):
        layout = layout | {"extra_columns": all(len(row) >= width for row in rows)}
    if len(even) > 1:
        cells = map(list, zip(*even[1:], strict=True))
        columns = dict(zip(header, cells, strict=False))
        if not KNOWN_NAMES.isdisjoint(map(str.lower, header)) and len(columns) == len(header):
            yield from guess_columns(columns, layout)
        if len(header) >= width:
            forms = _guess_contents(columns, layout)
            yield from (form for form in forms if _has_names(form, columns))
    numbered = dict(enumerate(map(list, zip(*even, strict=True))))
    yield from _guess_contents(numbered, layout | {"header": False})


def _rows(lines: Sequence[str], delimiter: str, quoting: bool) -> list[list[str]]:
    try:
        step = max(1, -(-len(lines) // ROWS))
        return list(islice(read_cells(lines, delimiter, quoting=quoting), 0, None, step))
    except csv.Error:
        return []


def _has_names(form: dict[str, Any], columns: Mapping[str, Sequence[str]]) -> bool:
    """Tell whether the first row names the columns of the block: a label would occur below too, a
    text would have more words."""
    names = [name for each in form["columns"].values() for name in _as_list(each)]
    return all(name.count(" ") < _WORDS_OF_A_NAME and name not in columns[name] for name in names)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _guess_contents(
    columns: Mapping[Any, list[str]], layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield tables by what the columns hold, whatever their names."""
    lengths = {name: mean_length(cells) for name, cells in columns.items()}
    prose = [name for name, cells in columns.items() if is_prose(cells)]
    text = max(prose or columns, key=lambda name: lengths[name])
    label = find_classes(columns, but=text)
    table = {"kind": "table", **layout}
    if indicators := find_indicators(columns):
        yield table | {"columns": {"text": text, "labels": indicators}}
    if label is None:
        return
    target, keys = target_columns(label, columns[label], layout)
    table |= keys
    different = {name for name in prose if 2 * len({*columns[name]}) > len(columns[name])}
    texts = [name for name in columns if name == text or name in different - {label}]
    if len(texts) > _MOST_TEXTS:  # the options of a question
        return
    # A second text is about as long as the first; a title is shorter, and a part of the text.
    if len(texts) == 2 and min(lengths[name] for name in texts) > 0.2 * lengths[text]:
        yield table | {"columns": {"text": texts[0], "second": texts[1], **target}}
    yield table | {"columns": {"text": texts if len(texts) > 1 else text, **target}}


def _guess_tagged(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield blocks for one word and its tags per line, with blank lines between sentences."""
    words = [line for line in lines if line.strip() and not line.startswith("-DOCSTART-")]
    num_ends = sum(not line.strip() for line in lines)
    for separator in ("\t", None) if words else ():
        comments = _find_comments(lines, words, separator)
        rows = [line.split(separator) for line in words if line not in comments]
        width, same = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
        if width < 2 or same < 0.95 * len(rows):
            continue
        columns = [*zip(*(row for row in rows if len(row) == width), strict=True)]
        form = _guess_tag_columns(columns, are_sentences=2 < num_ends < len(rows) / 2)
        if form is None:
            continue
        if form["kind"] == "conll":
            form |= {"separator": "tab"} if separator else {}
            form |= {"comment": "#"} if comments else {}
        yield form


def _find_comments(lines: Sequence[str], words: Sequence[str], separator: str | None) -> set[str]:
    """Return the lines that begin with # before a sentence and are no words of it."""
    starts = {
        line
        for before, line in itertools.pairwise(["", *lines])
        if line.startswith("#") and (not before.strip() or before.startswith("#"))
    }
    cells = {line: line.split(separator) for line in words}
    width = Counter(map(len, cells.values())).most_common(1)[0][0]
    # At the beginning of a sentence, # is a word where a tag follows that another word has too.
    tagged = {(row[0], row[-1]) for row in cells.values() if len(row) == width}
    counts = Counter(tag for _, tag in tagged)
    tags = {tag for word, tag in tagged if not word.startswith("#") or counts[tag] > 1}
    return {line for line in starts if len(cells[line]) != width or cells[line][-1] not in tags}


def _guess_tag_columns(
    columns: Sequence[Sequence[str]], *, are_sentences: bool
) -> dict[str, Any] | None:
    """Return the block for the columns of words and of tags, None if there are none."""
    width = len(columns)
    number = next((n for n, cells in enumerate(columns[:3]) if _running(cells)), None)
    if number == 0 and width == _CONLLU_WIDTH:
        return {"kind": "conllu"}
    word = 0 if number is None else number + 1
    if word >= width or fmean(cell.count(" ") for cell in columns[word]) > 0.1:
        return None
    # WebAnno's first columns are places, such as 1-2 and 4-9.
    if not any(character.isalpha() for cell in columns[word] for character in cell):
        return None
    spans = [n for n, cells in enumerate(columns) if n > word and are_spans({*cells})]
    tag = width - 1
    if spans:
        tag = spans[-1] if number is None else spans[0]
    elif are_spans({*columns[word]}):
        word, tag, spans = width - 1, word, [word]
    tags = spread(columns[tag], ROWS)
    if not spans and not (are_sentences and len({*tags}) < max(60, len(tags) / 4)):
        return None
    glued = [cell for cell in columns[word] if re.fullmatch(r"\D\d", cell)]
    form: dict[str, Any] = {"kind": "conll"}
    form |= {"word": word} if word else {}
    form |= {"tag": tag} if tag != width - 1 else {}
    return form | ({"glued_digit": True} if len(glued) > 0.5 * len(columns[word]) else {})


def _running(cells: Sequence[str]) -> bool:
    """Tell whether a column numbers the words of each sentence, from 0 or 1."""
    if cells[0] not in ("0", "1"):
        return False
    # CoNLL-U also numbers what is between words.
    numbers = [int(cell) for cell in cells if cell.isdecimal()]
    steps = [b - a == 1 or b == numbers[0] for a, b in itertools.pairwise(numbers)]
    runs = len(cells) == 1 or {*numbers} != {numbers[0]}
    return len(numbers) > 0.5 * len(cells) and all(steps) and runs
