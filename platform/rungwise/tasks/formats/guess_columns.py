"""Guess the table block of named columns: rows of a table, or objects of JSON and Parquet.

A column is known by a name that data sets use, or else by what it holds: the labels recur, the text
is the longest.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

import pyarrow as pa

from rungwise.tasks.formats.records import read_table
from rungwise.tasks.formats.splits import names_splits
from rungwise.tokens.segmenters import HAN

ROWS = 400  # rows of a sample to look at
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
_WRITTEN = (
    *(("source", "target"), ("src", "tgt"), ("input", "output"), ("document", "summary")),
    *(("article", "highlights"), ("dialogue", "summary"), ("prompt", "completion")),
)
_TEXTS = (
    *("text", "sentence", "review", "content", "comment", "tweet", "utterance", "body", "message"),
    *("text_a", "source", "title"),
)
KNOWN_NAMES = {*_LABELS, *_SCORES, *_TEXTS, *chain(*_PAIRS, *_WRITTEN)}
_OPTIONS = ("options", "choices", "endings")
_OPTION_SERIES = re.compile(r"(ending|choice|option|answer|distractor|sol|op)_?[0-9a-h]")
_OPTION_LETTERS = {*"abc"}
_SPACED = re.compile(rf"[ {HAN}]")
_DECIMALS = re.compile(r"-?\d+\.\d+")
_DECIMAL_COMMAS = re.compile(r"-?\d+[.,]\d+")  # between semicolons
_FEW = 10  # fewer values do not tell whether they recur
_LONGEST_LABEL = 60


def guess_columns(
    columns: Mapping[str, list[Any]], layout: dict[str, Any], *, by_contents: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield format blocks for records with these columns, likeliest first; `layout` is part of each
    block. Without `by_contents` only a name tells the labels."""
    lower = {name.lower(): name for name in columns}
    if not columns or _has_options(columns, lower):
        return
    for names in _WRITTEN:
        before, after = map(lower.get, names)
        if before and after and not _mostly_recurs(columns[after]):
            yield {"kind": "table", **layout, "columns": {"text": before, "target": after}}
    label, score = _find_label(columns, lower), _first_named(_SCORES, lower)
    if label and score and not _mostly_recurs(columns[label]):
        label = None  # numbers that rarely recur are scores
    target, keys = _label_columns(label, columns[label]) if label else ({"score": score}, {})
    table = {"kind": "table", **layout, **keys}
    pair = next((names for names in _PAIRS if all(name in lower for name in names)), None)
    if pair and (label or score):
        skip = {"skip_labels": ["-"]} if label and "-" in columns[label] else {}
        texts = {"text": lower[pair[0]], "second": lower[pair[1]]}
        yield {**table, "columns": {**texts, **target}, **skip}
    lengths = {name: mean_length(values) for name, values in columns.items()}
    texts = [name for name in _TEXTS if lengths.get(lower.get(name, "")) and lower[name] != label]
    text = _first_named(texts, lower) or max(columns, key=lambda name: lengths[name])
    if label and text != label and not score and not _recurs(columns[label]):
        yield {"kind": "table", **layout, "columns": {"text": text, "target": label}}
    elif text != label and (label or score):
        yield {**table, "columns": {"text": text, **target}}
    if not by_contents:
        return
    if indicators := find_indicators(columns):
        yield {**table, "columns": {"text": text, "labels": indicators}}
    if few := find_classes(columns, but=text):
        target, keys = target_columns(few, columns[few], layout)
        yield {**table, **keys, "columns": {"text": text, **target}}


def _first_named(names: Iterable[str], lower: Mapping[str, str]) -> str | None:
    return next((lower[name] for name in names if name in lower), None)


def _find_label(columns: Mapping[str, list[Any]], lower: Mapping[str, str]) -> str | None:
    """Return the first column with the name of a label that has several values, or only a few."""
    label_columns = [lower[name] for name in _LABELS if name in lower]
    several = (
        n for n in label_columns if len(columns[n]) < _FEW or len({*map(str, columns[n])}) > 1
    )
    return next(several, label_columns[0] if label_columns else None)


def _has_options(columns: Mapping[str, list[Any]], lower: Mapping[str, str]) -> bool:
    """Tell whether these are questions with options, whose block is stated by hand."""
    if any(isinstance(columns[lower[name]][0], list) for name in _OPTIONS if name in lower):
        return True
    stems = [match[1] for match in map(_OPTION_SERIES.fullmatch, lower) if match]
    return len(stems) > len({*stems}) or lower.keys() >= _OPTION_LETTERS


def guess_records(
    records: Sequence[dict[str, Any]], layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield format blocks for objects: questions with answers, tagged words, or a table."""
    columns: dict[str, list[Any]] = {}
    for record in records:
        for name, value in record.items():
            columns.setdefault(name, []).append(value)
    match records[0]:
        case {"context": _, "question": _, "answers": {"answer_start": _}}:
            yield {"kind": "squad", **layout}
            return
        case {"tokens": [*_]} | {"words": [*_]}:
            yield from _guess_tags(columns, layout)
    flat = {name: values for name, values in columns.items() if not any(map(_nests, values))}
    # Beside marks of a labelling tool, what recurs may be the state of its work.
    yield from guess_columns(flat, layout, by_contents=len(flat) == len(columns))


def _nests(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(each, dict | list) for each in value)
    )


def _guess_tags(
    columns: Mapping[str, list[Any]], layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    words = "tokens" if "tokens" in columns else "words"
    lists = [name for name, values in columns.items() if isinstance(values[0], list)]
    tags = [name for name in lists if "tag" in name.lower()]
    tags.sort(key=lambda name: "ner" not in name.lower())
    if not tags:
        return
    numbers = sorted({tag for row in columns[tags[0]] for tag in row if isinstance(tag, int)})
    labels = {"labels": {number: f"tag{number}" for number in numbers}} if numbers else {}
    yield {"kind": "tokens", **layout, "columns": {"words": words, "tags": tags[0]}, **labels}


def guess_json(text: str) -> Iterator[dict[str, Any]]:
    """Yield format blocks that may read SQuAD's JSON, an array of objects, or an object a line."""
    layout: dict[str, Any] = {"layout": "json"}
    try:
        data = json.loads(text)
    except ValueError:
        layout, data = {"layout": "json_lines"}, [*_parse_lines(text)]
    match data:
        case {"data": [{"paragraphs": _}, *_]}:
            yield {"kind": "squad"}
            return
        case dict():
            layout, data = {"layout": "json_lines"}, [data]
    rows = spread(data, ROWS) if isinstance(data, list) else []
    if records := [row for row in rows if isinstance(row, dict)]:
        yield from guess_records(records, layout)


def _parse_lines(text: str) -> Iterator[Any]:
    for line in spread(text.split("\n"), ROWS):
        try:
            yield json.loads(line)
        except ValueError:
            continue


def guess_parquet(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield format blocks that may read the file, likeliest first; none if it is damaged."""
    try:
        rows = read_table(content)
        names = _class_names(rows.schema.metadata or {})
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError):
        return
    records = rows.take([*spread(range(len(rows)), ROWS)]).to_pylist()
    for form in guess_records(records, {"layout": "parquet"}) if records else ():
        columns = form.get("columns", {})
        target = next((columns[key] for key in ("label", "labels", "tags") if key in columns), "")
        classes = names.get(target) if isinstance(target, str) else None
        yield form | ({"labels": dict(enumerate(classes))} if classes else {})


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the names of the classes by column, as Hugging Face's datasets keep them."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    names = {}
    for column, feature in features.items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("names"), list):
            names[column] = inner["names"]
    return names


def target_columns(
    name: Any, values: Sequence[Any], layout: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the column of a score where there are decimals, else that of labels; and the format
    keys it needs."""
    decimal = _DECIMAL_COMMAS if layout.get("delimiter") == ";" else _DECIMALS
    if any(decimal.fullmatch(str(value).strip()) for value in values):
        return {"score": name}, {}
    return _label_columns(name, values)


def _label_columns(name: Any, values: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the column of one or several labels per example, and the format keys it needs."""
    lists = [each for each in values if isinstance(each, list)]
    # With at most one label in each, an empty list is an example without its label.
    if any(len(each) > 1 for each in lists) or 2 * lists.count([]) > len(values):
        return {"labels": name}, {}
    for separator in ",;|":
        # Lists of labels take more different values than labels do.
        parts = {part.strip() for each in values for part in str(each).split(separator)}
        if len(parts) < len({*map(str, values)}):
            return {"labels": name}, {} if separator == "," else {"label_separator": separator}
    return {"label": name}, {}


def find_indicators(columns: Mapping[Any, Sequence[Any]]) -> list[Any]:
    """Return the columns of 0 and 1, one per label, if there are three or more."""
    names = [name for name, each in columns.items() if {*map(str, each)} <= {"0", "1"}]
    return names if len(names) > 2 else []


def find_classes(columns: Mapping[Any, list[Any]], but: Any) -> Any:
    """Return the column whose short values recur most, None if none recurs."""
    shares = {
        name: len({*map(str, values)}) / len(values)
        for name, values in columns.items()
        if name != but
        and not names_splits(values)
        and 1 < len({*map(str, values)}) <= max(2, len(values) / 2)
        and max(len(str(value)) for value in values) < _LONGEST_LABEL
    }
    return min(shares, key=lambda name: shares[name], default=None)


def spread(values: Sequence[Any], number: int) -> Sequence[Any]:
    """Return at most `number` values from all over, since a file may be sorted by its labels."""
    return values[:: max(1, -(-len(values) // number))]


def _mostly_recurs(values: Sequence[Any]) -> bool:
    return len({*map(str, values)}) <= len(values) / 2


def _recurs(values: Sequence[Any]) -> bool:
    """Tell whether most values occur more than once, as those of classes do."""
    return len(values) < _FEW or _mostly_recurs(values)


def is_prose(cells: Sequence[str]) -> bool:
    """Tell whether a column is text of several words; dates and names of files are not."""
    filled = [cell for cell in cells if cell.strip()]
    spaced = [cell for cell in filled if _SPACED.search(cell.strip())]
    if len(spaced) <= 0.5 * len(filled):
        return False
    return fmean(sum(c.isalpha() or c == " " for c in cell) / len(cell) for cell in filled) > 0.6


def mean_length(values: Sequence[Any]) -> float:
    """Return the mean length in characters; values that are not text count as 0."""
    return fmean(len(value) if isinstance(value, str) else 0 for value in values)
