"""Guess format blocks by content: tables, tagged words in columns, objects of JSON and Parquet. A
column is known by a name that data sets use, else by what it holds: labels recur, texts are long.
"""

import contextlib
import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import pyarrow as pa

from rungwise.core.storage.source_files import name_split
from rungwise.core.wording import list_first
from rungwise.tasks.formats.base import split_lines
from rungwise.tasks.formats.records import read_cells, read_table
from rungwise.tasks.formats.table import split_list
from rungwise.tasks.formats.tagged import CONLLU_WIDTH, are_spans
from rungwise.tokenizer.mask_units import HAN

Form = dict[str, Any]
Columns = Mapping[Any, list[Any]]  # values by the name or the number of the column

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
_OPTIONS = ("options", "choices", "endings")
_OPTION_SERIES = re.compile(r"(ending|choice|option|answer|distractor|sol|op)_?[0-9a-h]")
_SPACED = re.compile(rf"[ {HAN}]")
# Whole numbers are written as 1.0 where another of their column is missing.
_DECIMALS, _DECIMAL_COMMAS = re.compile(r"-?\d+\.(?!0+$)\d+"), re.compile(r"-?\d+,\d+")
_ID = re.compile(r"(?:.*[\W_]|.*[a-z](?=I))?(?:[Ii][Dd]|(?i:idx|index|uuid|guid))")
NO_LABEL = "-1"  # where classes are numbered
_MOST_NAMES = 8
_RECUR = "its values recur"
_REASONS = {"label": _RECUR, "labels": _RECUR, "score": "its values are numbers"}
_FEW = 10  # fewer values do not tell whether they recur
_LONGEST_LABEL = 60
_MOST_TEXTS = 3
_WORDS_OF_A_NAME = 4  # a column name has fewer blanks than this
# Decimal commas may stand between semicolons.
_DELIMITERS: tuple[Form, ...] = ({}, *({"delimiter": each, "quoting": True} for each in ";,|"))
_HEAD = 3  # rows, one of which may hold the names of columns
_NAMES = {*_LABELS, *_SCORES, *_TEXTS, *itertools.chain(*_PAIRS)}


def guess_lines(text: str, stated: Form) -> Iterator[Form]:
    """Yield format blocks that may read a file of lines, likeliest first; `stated` are the columns
    that the user names."""
    lines = split_lines(text)
    filled = [line for line in lines if line.strip()]
    if not stated:
        yield from _guess_tagged(lines[:_TAGGED_LINES])
    for layout in _DELIMITERS:
        try:
            delimiter, quoting = layout.get("delimiter", "\t"), layout.get("quoting", False)
            cells = list(read_cells(filled, delimiter, quoting=quoting))
        except csv.Error:
            continue
        rows = _spread(cells)
        width, same = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        if width > 1 and same > 0.9 * len(rows):
            head = [each for each in cells[:_HEAD] if len(each) == width]
            names = [each for each in head if _has_names(each, rows)]
            if all(each is cells[0] for each in names):
                yield from _guess_table(rows, width, layout, stated, has_names=bool(names))


def guess_json(text: str, stated: Form) -> Iterator[Form]:
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
            return
        case dict() if not all(isinstance(each, list) for each in data.values()):  # columns
            layout, data = {"layout": "json_lines"}, [data]
    rows = _spread(data) if isinstance(data, list) else []
    if records := [row for row in rows if isinstance(row, dict)]:
        yield from _guess_records(records, layout, stated)


def guess_parquet(content: bytes, stated: Form) -> Iterator[Form]:
    """Yield format blocks that may read the file, likeliest first; none if it is damaged."""
    try:
        rows = read_table(content)
        names = _class_names(rows.schema.metadata or {})
        # One by one: Arrow's `take` knows no views.
        records = [rows.slice(n, 1).to_pylist()[0] for n in _spread(range(len(rows)))]
    except (pa.ArrowException, OSError, ValueError, OverflowError):
        return
    for form in _guess_records(records, {"layout": "parquet"}, stated) if records else ():
        columns = form.get("columns", {})
        target = next((columns[key] for key in ("label", "labels", "tags") if key in columns), "")
        classes = names.get(target) if isinstance(target, str) else None
        if classes:
            unlabelled = {"skip_labels": [NO_LABEL]} if form["kind"] == "table" else {}
            form |= {"labels": dict(enumerate(classes)), **unlabelled}
        yield form


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the names of the classes by column, as Hugging Face's datasets keep them."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"].items()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    names = {}
    for column, feature in features:
        inner = feature.get("feature", feature) if isinstance(feature, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("names"), list):
            names[column] = inner["names"]
    return names


def _guess_records(records: Sequence[dict[str, Any]], layout: Form, stated: Form) -> Iterator[Form]:
    """Yield format blocks for objects: questions with answers, tagged words, or a table."""
    columns: dict[str, list[Any]] = {}
    for record in records:
        for name, value in record.items():
            columns.setdefault(name, []).append(value)
    match records[0]:
        case _ if stated:
            pass
        case {"context": _, "question": _, "answers": {"answer_start": _}}:
            yield {"kind": "squad", **layout}
            return
        case {"tokens": [*_]} | {"words": [*_]}:
            yield from _guess_lists(columns, layout)
    flat = {name: values for name, values in columns.items() if not any(map(_nests, values))}
    if not flat or (not stated and _has_options(flat)):
        return
    # Beside marks of a labelling tool, what recurs may be the state of its work.
    yield from _guess_columns(flat, layout, stated, by_contents=len(flat) == len(columns))


def _nests(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(each, dict | list) for each in value)
    )


def _guess_lists(columns: Columns, layout: Form) -> Iterator[Form]:
    """Yield the block for lists of words and of tags, the names of entities first."""
    lists = [name for name, rows in columns.items() if all(isinstance(r, list) for r in rows)]
    tags = [name for name in lists if "tag" in name.lower()]
    if not tags:
        return
    name = min(tags, key=lambda name: "ner" not in name.lower())
    numbers = sorted({tag for row in columns[name] for tag in row if isinstance(tag, int)})
    labels = {"labels": {number: f"tag{number}" for number in numbers}} if numbers else {}
    words = "tokens" if "tokens" in columns else "words"
    yield {"kind": "tokens", **layout, "columns": {"words": words, "tags": name}, **labels}


def _guess_table(
    rows: Sequence[list[str]], width: int, layout: Form, stated: Form, *, has_names: bool
) -> Iterator[Form]:
    """Yield blocks of a table whose first row has known names, other names, or none."""
    header = [cell.strip() for cell in rows[0]]
    even = [row for row in rows if len(row) == width]
    if len(even) < len(rows):
        layout = layout | {"extra_columns": all(len(row) >= width for row in rows)}
    columns: dict[str, list[str]] = {}
    if len(even) > 1 and len(header) >= width:
        columns = dict(zip(header, map(list, zip(*even[1:], strict=True)), strict=False))
    if not stated and _has_options(columns):
        return
    numbers = {str(number): name for number, name in enumerate(columns)}
    by_name = {k: n if n in columns else numbers.get(n, n) for k, n in stated.items()}
    for form in _guess_columns(columns, layout, by_name) if columns else ():
        # A label would occur below too, and a text would have more words.
        names = [n for each in form["columns"].values() for n in _as_list(each)]
        if all(n.count(" ") < _WORDS_OF_A_NAME and n not in columns[n] for n in names):
            yield form
    if has_names:  # the first row is no example
        return
    numbered = dict(enumerate(map(list, zip(*even, strict=True))))
    by_number = {k: int(name) if name.isdecimal() else name for k, name in stated.items()}
    yield from _guess_columns(numbered, layout | {"header": False}, by_number)


def _has_names(cells: Sequence[str], rows: Sequence[list[str]]) -> bool:
    """Whether a row has the name of a column that data sets use, and no other row has it."""
    names = [cell for cell in cells if cell.strip().lower() in _NAMES]
    return any(not any(name in row for row in rows if row != cells) for name in names)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _guess_columns(
    columns: Columns, layout: Form, stated: Form, *, by_contents: bool = True
) -> Iterator[Form]:
    """Yield tables, likeliest first. Without `by_contents`, only a name tells the labels."""
    if any(name not in columns for name in stated.values()):
        return
    # Tags of words, whose sentences a table does not tell; a name may stand above them.
    if not stated and any(are_spans({*map(_cell, each[1:])}) for each in columns.values()):
        return
    lower = {str(name).lower(): name for name in columns}
    lengths = {
        name: fmean(len(value) if isinstance(value, str) else 0 for value in values)
        for name, values in columns.items()
    }
    prose = [name for name, values in columns.items() if _is_prose(values)]
    texts = prose or [name for name, values in columns.items() if not _are_ids(name, values)]
    longest = stated.get("text", max(texts or columns, key=lambda name: lengths[name]))
    indicators = [name for name, values in columns.items() if {*map(str, values)} <= {"0", "1"}]
    likeliest = stated.get("label", _find_target(columns, lower))
    targets = dict.fromkeys(
        [likeliest, _find_classes(columns, but=longest) if by_contents else None]
    )
    if by_contents and len(indicators) > 2 and not stated:
        yield {"kind": "table", **layout, "columns": {"text": longest, "labels": indicators}}
    for name in targets:
        if name is None:
            continue
        target, keys = _target_columns(name, columns[name], layout)
        table = {"kind": "table", **layout, **keys}
        # The columns that have the names of a pair, and of a text.
        pairs = [names for names in _PAIRS if {*names} <= {*lower}][:1]
        forms: list[Form] = [{"text": lower[a], "second": lower[b]} for a, b in pairs]
        texts = [lower[each] for each in _TEXTS if each in lower]
        forms += [{"text": each} for each in texts if lengths[each] and each != name][:1]
        if name == likeliest and longest != name and not _are_ids(longest, columns[longest]):
            forms.append({"text": longest})
        forms += _find_texts(columns, prose, lengths, longest, name)
        marks = _no_labels(columns[name]) if "label" in target else []
        skip = {"skip_labels": marks} if marks else {}
        for each in [{"text": longest}] if "text" in stated else forms:
            yield {**table, "columns": {**each, **target}, **skip}


def _no_labels(values: Sequence[Any]) -> list[str]:
    """Return what stands for no label: nothing, -, and -1 beside three classes or more, numbered
    from 0."""
    different = {_cell(value) for value in values}
    others = different - {"", NO_LABEL}
    numbered = all(map(str.isdecimal, others)) and len(others) > 2 and "0" in others
    marks = {"", "-"} | ({NO_LABEL} if numbered else set())
    return sorted(marks & different)


def explain_columns(form: Form, columns: Sequence[Any]) -> str:
    """Say which columns a table's block reads and why, and which it does not."""
    parts, used = [], []
    for key, value in form["columns"].items():
        reason = _REASONS.get(key, "its texts are the longest")
        for name in _as_list(value):
            used.append(name)
            why = "by its name" if str(name).lower() in _NAMES else reason
            parts.append(f"{key} from the column {name} ({why})")
    rest = list_first((str(name) for name in columns if name not in used), _MOST_NAMES)
    return ", ".join(parts) + (f"; not read: {rest}" if rest else "")


def _are_ids(name: Any, values: Sequence[Any]) -> bool:
    """Tell whether a column numbers or names its rows."""
    cells = [str(value).strip() for value in values]
    different = len({*cells}) == len(cells) > 1 and not any(map(_SPACED.search, cells))
    digits = sum(any(map(str.isdigit, cell)) for cell in cells) > 0.5 * len(cells)
    return bool(_ID.fullmatch(str(name))) or (different and digits)


def _find_target(columns: Columns, lower: Mapping[str, Any]) -> Any:
    """Return the column that has the name of labels, else of a score; None if there is none."""
    labels = []
    for name in [lower[name] for name in _LABELS if name in lower]:
        values = columns[name]
        are_few, are_lists = len(values) < _FEW, any(isinstance(value, list) for value in values)
        # What rarely recurs are scores, or texts to write.
        if are_few or are_lists or _mostly_recurs(values):
            labels.append((are_few or _varies(values), name))
    # The first one that has several values, or too few to tell.
    scores = [lower[name] for name in _SCORES if name in lower]
    return max(labels, key=lambda pair: pair[0])[1] if labels else next(iter(scores), None)


def _find_texts(
    columns: Columns, prose: Sequence[Any], lengths: Mapping[Any, float], longest: Any, target: Any
) -> Iterator[Form]:
    """Yield the columns of text by what they hold."""
    texts = [
        name
        for name in columns
        if name != target
        and (name == longest or (name in prose and not _mostly_recurs(columns[name])))
    ]
    if not texts or len(texts) > _MOST_TEXTS:  # the options of a question
        return
    # A second text is about as long as the first; a title is shorter, and a part of the text.
    if len(texts) == 2 and min(lengths[name] for name in texts) > 0.2 * lengths[longest]:
        yield {"text": texts[0], "second": texts[1]}
    yield {"text": texts if len(texts) > 1 else texts[0]}


def _has_options(columns: Columns) -> bool:
    """Tell whether these are questions with options, whose block is stated by hand."""
    lower = {name.lower(): values for name, values in columns.items()}
    if any(isinstance(lower[name][0], list) for name in _OPTIONS if name in lower):
        return True
    stems = [match[1] for match in map(_OPTION_SERIES.fullmatch, lower) if match]
    return len(stems) > len({*stems}) or lower.keys() >= {*"abc"}


def _target_columns(name: Any, values: Sequence[Any], layout: Form) -> tuple[Form, Form]:
    """Return the column of a score, a label or labels, and the format keys that it needs."""
    cells = [_cell(value) for value in values]
    commas = sum(bool(_DECIMAL_COMMAS.fullmatch(cell)) for cell in cells)
    are_commas = commas > (0 if layout.get("delimiter") == ";" else 0.5 * len(cells))
    is_score = str(name).lower() in _SCORES or are_commas
    if is_score or any(map(_DECIMALS.fullmatch, cells)):
        return {"score": name}, {}
    several = [split_list(each) if isinstance(each, str) else each for each in values]
    lists = [each for each in several if isinstance(each, list)]
    # With at most one label in each, an empty list is an example without its label.
    if any(len(each) > 1 for each in lists) or 2 * lists.count([]) > len(values):
        return {"labels": name}, {}
    for separator in ",;|":
        # Lists of labels take more different values than labels do.
        parts = {part.strip() for each in cells for part in each.split(separator)}
        if len(parts) < len({*cells}):
            return {"labels": name}, {} if separator == "," else {"label_separator": separator}
    return {"label": name}, {}


def _cell(value: Any) -> str:
    """Return a value as a table without types has it: nothing for null."""
    return "" if value is None else str(value).strip()


def _find_classes(columns: Columns, but: Any) -> Any:
    """Return the column whose short values recur most, None if none recurs."""
    shares = {
        name: len({*map(str, values)}) / len(values)
        for name, values in columns.items()
        if name != but
        and _varies(values)
        and None in {name_split(str(value)) for value in values}  # else it names the split
        and (len({*map(str, values)}) <= 2 or _mostly_recurs(values))
        and max(len(str(value)) for value in values) < _LONGEST_LABEL
    }
    return min(shares, key=lambda name: shares[name], default=None)


def _varies(values: Sequence[Any]) -> bool:
    return len({*map(str, values)}) > 1


def _mostly_recurs(values: Sequence[Any]) -> bool:
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


def _guess_tagged(lines: Sequence[str]) -> Iterator[Form]:
    """Yield blocks for one word and its tags per line, with blank lines between sentences."""
    words = [line for line in lines if line.strip() and not line.startswith("-DOCSTART-")]
    num_ends = sum(not line.strip() for line in lines)
    for separator in ("\t", None) if words else ():
        rows = [line.split(separator) for line in words]
        widths = Counter(len(row) for row in rows if not row[0].startswith("#"))
        width, _ = (widths or Counter(map(len, rows))).most_common(1)[0]
        rows = [row for row in rows if len(row) == width or not row[0].startswith("#")]
        same = sum(len(row) == width for row in rows)
        comments = len(rows) < len(words)
        if width < 2 or same < 0.95 * len(rows):
            continue
        columns = [*zip(*(row for row in rows if len(row) == width), strict=True)]
        form = _guess_tag_columns(columns, are_sentences=2 < num_ends < len(rows) / 2)
        if form and form["kind"] == "conll":
            form |= {"separator": "tab"} if separator else {}
            form |= {"comment": "#"} if comments else {}
        if form:
            yield form


def _guess_tag_columns(columns: Sequence[Sequence[str]], *, are_sentences: bool) -> Form | None:
    """Return the block for the columns of words and of tags, None if there are none."""
    width = len(columns)
    # A column that numbers the words of each sentence, from 0 or 1.
    number = None
    for place, cells in enumerate(columns[:3]):
        if cells[0] in ("0", "1") and sum(map(str.isdecimal, cells)) > 0.5 * len(cells):
            number = place
            break
    if number == 0 and width == CONLLU_WIDTH:
        return {"kind": "conllu"}
    word = 0 if number is None else number + 1
    if word >= width or fmean(cell.count(" ") for cell in columns[word]) > 0.1:
        return None
    spans = [n for n, cells in enumerate(columns) if n > word and are_spans({*cells})]
    tag = width - 1
    if spans:
        tag = spans[-1] if number is None else spans[0]
    elif are_spans({*columns[word]}):
        word, tag, spans = width - 1, word, [word]
    tags = _spread(columns[tag])
    if not spans and not (are_sentences and len({*tags}) < max(60, len(tags) / 4)):
        return None
    form: Form = {"kind": "conll"} | ({"word": word} if word else {})
    return form | ({"tag": tag} if tag != width - 1 else {})
