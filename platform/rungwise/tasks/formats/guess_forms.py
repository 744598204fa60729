"""Guess format blocks by content: tables, tagged words in columns, objects of JSON and Parquet. A
column is known by a name that data sets use, else by what it holds: labels recur, texts are long.
"""

import contextlib
import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean, mode
from typing import Any

from rungwise.core.storage.source_files import name_split
from rungwise.tasks.formats.base import split_lines
from rungwise.tasks.formats.records import read_cells
from rungwise.tasks.formats.tagged import CONLLU_WIDTH, are_spans
from rungwise.tokenizer.mask_units import HAN

Form = dict[str, Any]
Columns = Mapping[Any, Sequence[Any]]  # values by the name or the number of the column
Guesses = Iterator[Form]  # blocks, likeliest first

ROWS = 400  # rows of a sample to look at
_TAGGED_LINES = 20 * ROWS  # of a file of sentences to look at
_LABELS = (
    *("label_desc", "label_des", "gold_label", "entailment_label", "label", "labels"),
    *("category", "class", "intent", "sentiment", "is_duplicate", "quality", "polarity"),
    *("target", "topic", "genres", "topics", "categories", "emotions"),
)
_SCORES = ("score", "similarity", "relatedness_score")
_PAIRS = (
    *(("premise", "hypothesis"), ("sentence1", "sentence2"), ("sentence_a", "sentence_b")),
    *(("question1", "question2"), ("context", "hypothesis"), ("question", "passage")),
    *(("question", "sentence"), ("text_a", "text_b"), ("#1 string", "#2 string")),
)
_TEXTS = (
    *("text", "sentence", "review", "content", "comment", "tweet", "utterance", "body", "message"),
    *("text_a", "source", "title"),
)
_NAMES = {*_LABELS, *_SCORES, *_TEXTS, *chain(*_PAIRS)}
_OPTIONS = re.compile(
    r"options|choices|endings|(ending|choice|option|answer|distractor|sol|op)_?[0-9a-h]"
)
_MOST_TEXTS = 3  # more are the options of a question
_SPACED = re.compile(rf"[ {HAN}]")
_ID = re.compile(r"(.*[\W_])?(id|idx|index|uuid|guid)", re.IGNORECASE)
# Whole numbers are written as 1.0 where another of their column is missing.
_DECIMAL, _DECIMAL_COMMA = re.compile(r"-?\d+\.(?!0+$)\d+"), re.compile(r"-?\d+,\d+")
_NO_LABEL = {"", "-"}
_MOST_TAGS = 60  # of words, where they mark no spans
_FEW = 10  # fewer values do not tell whether they recur
_LONGEST_LABEL = 60
_WORDS_OF_A_NAME = 4  # a column name has fewer blanks than this


def guess_lines(text: str) -> Guesses:
    """Yield format blocks that may read a file of lines."""
    lines = split_lines(text)
    yield from _guess_tagged(lines[:_TAGGED_LINES])
    filled = [line for line in lines if line.strip()]
    for delimiter in "\t;,|":
        layout: Form = {} if delimiter == "\t" else {"delimiter": delimiter, "quoting": True}
        try:
            rows = _spread(list(read_cells(filled, delimiter, quoting=delimiter != "\t")))
        except csv.Error:
            continue
        width, same = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        if width > 1 and same > 0.9 * len(rows):
            yield from _guess_table(rows, width, layout)


def guess_json(text: str) -> Guesses:
    """Yield format blocks that may read SQuAD's JSON, an array of objects, or an object a line."""
    layout: Form = {"layout": "json"}
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        layout, data = {"layout": "json_lines"}, []
        for line in _spread(text.split("\n")):
            with contextlib.suppress(ValueError, RecursionError):
                data.append(json.loads(line))
    match data:
        case {"data": [{"paragraphs": _}, *_]}:
            yield {"kind": "squad"}
        case dict() if not all(isinstance(each, list) for each in data.values()):
            yield from guess_records([data], {"layout": "json_lines"})
        case list():
            yield from guess_records([row for row in data if isinstance(row, dict)], layout)


def guess_records(records: Sequence[dict[str, Any]], layout: Form) -> Guesses:
    """Yield format blocks that may read objects: questions with answers, or a table."""
    records = _spread(records)
    columns: dict[str, list[Any]] = {}
    for record in records:
        for name, value in record.items():
            columns.setdefault(name, []).append(value)
    match records[0] if records else {}:
        case {"context": _, "question": _, "answers": {"answer_start": _}}:
            yield {"kind": "squad", **layout}
            return
        case {"tokens": [*_]} | {"words": [*_]}:  # with tags, whose names are stated
            return
    # Beside marks of a labelling tool, what recurs may be the state of its work.
    if not any(_nests(value) for record in records for value in record.values()):
        yield from _guess_columns(columns, layout)


def _nests(value: Any) -> bool:
    each = value if isinstance(value, list) else [value]
    return any(isinstance(one, dict | list) for one in each)


def _guess_table(rows: Sequence[list[str]], width: int, layout: Form) -> Guesses:
    """Yield blocks of a table whose first row has known names, other names, or none."""
    header = [cell.strip() for cell in rows[0]]
    even = [row for row in rows if len(row) == width]
    has_names = len(header) == width and any(cell.lower() in _NAMES for cell in header)
    if len(header) == width and len(even) > 1:
        columns = dict(zip(header, zip(*even[1:], strict=True), strict=True))
        for form in _guess_columns(columns, layout):
            names = form["columns"].values()
            # A label would occur below too, and a text would have more words.
            if has_names or all(
                name.count(" ") < _WORDS_OF_A_NAME and name not in columns[name] for name in names
            ):
                yield form
    if not has_names:
        numbered = dict(enumerate(zip(*even, strict=True)))
        yield from _guess_columns(numbered, layout | {"header": False})


def _guess_columns(columns: Columns, layout: Form) -> Guesses:
    """Yield blocks of a table with these columns."""
    prose = [name for name, values in columns.items() if _is_prose(values)]
    # Tags of words, above which a name may stand: a table does not tell their sentences.
    are_tags = any(are_spans({*map(_cell, values[1:])}) for values in columns.values())
    if are_tags or _are_options(columns, prose):
        return
    lower = {str(name).lower(): name for name in columns}
    lengths = {
        name: fmean(len(each) if isinstance(each, str) else 0 for each in values)
        for name, values in columns.items()
    }
    target = _find_named_target(columns, lower)
    others = [name for name in columns if name != target]
    texts = [name for name in others if name in prose] or [
        name for name in others if not _ID.fullmatch(str(name))
    ]
    longest = max(texts, key=lambda name: lengths[name], default=None)
    if target is None:
        target = _find_classes(columns, but=longest)
    if target is None or longest is None:
        return
    pairs = [pair for pair in _PAIRS if {*pair} <= {*lower}]
    texts = [lower[name] for name in _TEXTS if name in lower]
    choices: list[Form] = [
        *({"text": lower[a], "second": lower[b]} for a, b in pairs),
        *({"text": name} for name in texts if name != target and lengths[name]),
        {"text": longest},
    ]
    key, skip = _choose_key(target, columns[target], layout), {}
    if key == "label" and (marks := sorted(_NO_LABEL & {*map(_cell, columns[target])})):
        skip = {"skip_labels": marks}
    for each in choices:
        yield {"kind": "table", **layout, "columns": each | {key: target}, **skip}


def _are_options(columns: Columns, prose: Sequence[Any]) -> bool:
    """Tell whether these are questions with options, whose block is stated by hand."""
    options = [name for name in columns if _OPTIONS.fullmatch(str(name).lower())]
    lists = any(isinstance(columns[name][0], list) for name in options)
    return lists or len(options) > 1 or len(prose) > _MOST_TEXTS


def _find_named_target(columns: Columns, lower: Mapping[str, Any]) -> Any:
    """Return the column that has the name of labels, else of a score; None if there is none."""
    candidates = [lower[name] for name in _LABELS if name in lower]
    # What rarely recurs are scores, or texts to write.
    labels = [name for name in candidates if len(columns[name]) < _FEW or _recurs(columns[name])]
    scores = [lower[name] for name in _SCORES if name in lower]
    # The first one that has several values.
    return max(labels, key=lambda name: _varies(columns[name]), default=None) or next(
        iter(scores), None
    )


def _find_classes(columns: Columns, but: Any) -> Any:
    """Return the column whose short values recur most, None if none recurs."""
    shares = {
        name: len({*map(str, values)}) / len(values)
        for name, values in columns.items()
        if name != but
        and _varies(values)
        and None in {name_split(str(value)) for value in values}  # else it names the split
        and (len({*map(str, values)}) <= 2 or _recurs(values))
        and max(len(str(value)) for value in values) < _LONGEST_LABEL
    }
    return min(shares, key=lambda name: shares[name], default=None)


def _choose_key(name: Any, values: Sequence[Any], layout: Form) -> str:
    """Return the key of `columns` for a target: a score, labels or a label."""
    cells = [_cell(value) for value in values]
    commas = layout.get("delimiter") == ";" and any(map(_DECIMAL_COMMA.fullmatch, cells))
    if str(name).lower() in _SCORES or commas or any(map(_DECIMAL.fullmatch, cells)):
        return "score"
    lists = [each for each in values if isinstance(each, list)]
    # With at most one label in each, an empty list is an example without its label.
    several = any(len(each) > 1 for each in lists) or 2 * lists.count([]) > len(values)
    return "labels" if several else "label"


def _cell(value: Any) -> str:
    """Return a value as a table without types has it: nothing for null."""
    return "" if value is None else str(value).strip()


def _varies(values: Sequence[Any]) -> bool:
    return len({*map(str, values)}) > 1


def _recurs(values: Sequence[Any]) -> bool:
    return len({*map(str, values)}) <= len(values) / 2


def _spread(values: Sequence[Any]) -> Sequence[Any]:
    """Return a sample from all over, since a file may be sorted by its labels."""
    return values[:: max(1, -(-len(values) // ROWS))]


def _is_prose(values: Sequence[Any]) -> bool:
    """Tell whether a column is text of several words; dates and names of files are not."""
    cells = [value for value in values if isinstance(value, str) and value.strip()]
    spaced = [cell for cell in cells if _SPACED.search(cell.strip())]
    if len(spaced) <= 0.5 * len(cells):
        return False
    return fmean(sum(c.isalpha() or c == " " for c in cell) / len(cell) for cell in cells) > 0.6


def _guess_tagged(lines: Sequence[str]) -> Guesses:
    """Yield blocks for one word and its tags per line, with blank lines between sentences."""
    words = [line for line in lines if line.strip() and not line.startswith("-DOCSTART-")]
    num_ends = sum(not line.strip() for line in lines)
    for separator in ("\t", None) if words else ():
        rows = [line.split(separator) for line in words]
        width = mode([len(row) for row in rows if not row[0].startswith("#")] or map(len, rows))
        comments = [row for row in rows if len(row) != width and row[0].startswith("#")]
        even = [row for row in rows if len(row) == width]
        if width < 2 or len(even) < 0.95 * (len(rows) - len(comments)):
            continue
        columns = [*zip(*even, strict=True)]
        numbered = sum(map(str.isdecimal, columns[0])) > 0.5 * len(even)
        if numbered and width == CONLLU_WIDTH:
            yield {"kind": "conllu"}
        word = int(numbered)  # sentences may number their words
        spans = [n for n in range(word + 1, width) if are_spans({*columns[n]})]
        if not spans and not (2 < num_ends < len(rows) / 2 and len({*columns[-1]}) < _MOST_TAGS):
            continue
        tag = spans[0 if numbered else -1] if spans else width - 1
        form: Form = {"kind": "conll"} | ({"word": word} if word else {})
        form |= ({"tag": tag} if tag != width - 1 else {}) | ({"comment": "#"} if comments else {})
        form |= {"separator": "tab"} if separator else {}
        yield form
        yield form | {"scheme": "as_is"}  # if the tags mark spans in no scheme that is known
