"""Guess format blocks for JSON, JSON Lines and Parquet."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rungwise.tasks.formats.guess_fields import ROWS, as_list, guess_fields, label_columns, spread
from rungwise.tasks.formats.records import read_table

_DECISIONS = {"accept", "reject", "ignore"}  # Prodigy's
_MARKED_TEXTS = ("text", "content")
_MARKS = {
    "start": ("start", "start_offset", "begin"),
    "end": ("end", "end_offset"),
    "label": ("label", "labels", "tag"),
}


def guess_json(text: str) -> Iterator[dict[str, Any]]:
    """Yield format blocks that may read the text, likeliest first."""
    layout: dict[str, Any] = {"layout": "json"}
    records: Sequence[Any] = []
    try:
        data = json.loads(text)
    except ValueError:
        layout, data = {"layout": "json_lines"}, [*_json_lines(text)]
    match data:
        case [[str(), {"entities": [*_]}], *_]:
            yield {"kind": "marks", **layout, "columns": {"text": "0", "marks": "1.entities"}}
            return
        case {"data": [{"paragraphs": _}, *_]}:
            yield {"kind": "squad"}
            return
        case [[[*_], [{"choice": _}, *_], _], *_]:
            yield {"kind": "dream"}
            return
        case dict():
            lists = {name: each for name, each in data.items() if isinstance(each, list) and each}
            records = [data]
            if lists and len(lists) == len(data):  # {split: rows}
                name = "train" if "train" in lists else next(iter(lists))
                records = lists[name]
                layout |= {"each": [name]}
                if isinstance(records[0], list):
                    yield {"kind": "table", **layout, "columns": {"text": "0", "label": "1"}}
            elif len({*map(len, lists.values())}) == 1 < len(lists) and "tokens" not in lists:
                rows = zip(*lists.values(), strict=True)
                records = [data | dict(zip(lists, row, strict=True)) for row in rows]
                layout |= {"each": [*lists]}
            elif wrapped := [
                name
                for name, each in lists.items()
                if len(each) > 1 and all(isinstance(item, dict) and len(item) > 2 for item in each)
            ]:
                records = lists[wrapped[0]]
                layout |= {"each": wrapped[:1]}
            elif "\n" not in text.strip():
                layout = {"layout": "json_lines"}
        case [*records]:
            pass
    records = [record for record in spread(records, ROWS) if isinstance(record, dict)]
    if records:
        yield from guess_records(records, layout)


def guess_parquet(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield format blocks that may read the file, likeliest first; none if it is damaged."""
    try:
        rows = read_table(content)
        names = _class_names(rows.schema.metadata or {})
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError):
        return
    records = rows.take([*spread(range(len(rows)), ROWS)]).to_pylist()
    for form in guess_records(records, {"layout": "parquet"}):
        columns = form.get("columns", {})
        target = next((columns[key] for key in ("label", "labels", "tags") if key in columns), "")
        classes = names.get(target) if isinstance(target, str) else None
        yield form | ({"labels": dict(enumerate(classes))} if classes else {})


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """The names of the classes by column, as Hugging Face's datasets keep them."""
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


def list_parts(content: bytes) -> dict[str, int]:
    """Return the number of items of each list of a JSON object of lists, {} for other content."""
    try:
        data = json.loads(content)
    except ValueError:
        return {}
    lists = isinstance(data, dict) and all(isinstance(each, list) for each in data.values())
    return {name: len(each) for name, each in data.items() if each} if lists else {}


def _json_lines(text: str) -> Iterator[Any]:
    for line in spread(text.split("\n"), ROWS):
        try:
            yield json.loads(line)
        except ValueError:
            continue


def guess_records(
    records: Sequence[dict[str, Any]], layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield format blocks that may read records with these fields, likeliest first."""
    if not records:
        return
    fields = _fields(records)
    if {*map(str, fields.get("answer", ["?"]))} <= _DECISIONS:
        # Prodigy's decisions on one label: each text has it or not.
        if "text" in fields and len({*map(str, fields.get("label", []))}) == 1:
            columns = {"text": "text", "label": "answer"}
            yield {"kind": "table", **layout, "columns": columns, "skip_labels": ["ignore"]}
        layout = layout | {"only": {"answer": "accept"}}
    if any(each[0] is True for each in fields.get("annotations.*.was_cancelled", ())):
        layout = layout | {"only": {"annotations.0.was_cancelled": False}}
    # Records without a label may come first.
    shapes = ([*_of_shape(record, records, layout)] for record in records)
    yield from next(filter(None, shapes), [])
    if any(isinstance(each, list) for record in records for each in as_list(record.get("label"))):
        yield {"kind": "marks", **layout}
    first = records[0]
    words = next((name for name in ("tokens", "words") if name in first), None)
    tagged = [n for n in first if "tag" in n.lower() and isinstance(first[n], list)]
    tags = next((n for n in tagged if "ner" in n.lower()), tagged[0] if tagged else None)
    if words and tags:
        numbers = sorted({tag for r in records for tag in r[tags] if isinstance(tag, int)})
        labels = {"labels": {number: f"tag{number}" for number in numbers}} if numbers else {}
        yield {"kind": "tokens", **layout, "columns": {"words": words, "tags": tags}, **labels}
    yield from guess_fields(fields, layout)


def _of_shape(
    record: dict[str, Any], records: Sequence[dict[str, Any]], layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield format blocks for a record with the nesting of a known tool or data set."""
    match record:
        case {"context": str(), "qas": [{"detected_answers": _}, *_]}:
            yield {"kind": "squad", "layout": "mrqa"}
        case {"paragraphs": [{"sentences": [{"tokens": [{"orth": _, "ner": _}, *_]}, *_]}, *_]}:
            columns = {"words": "tokens.*.orth", "tags": "tokens.*.ner"}
            yield {"kind": "tokens", **layout, "each": ["paragraphs.sentences"], "columns": columns}
        case {"context": _, "question": _, "answers": {"answer_start": _}}:
            yield {"kind": "squad", **layout}
        case {"annotations": [{"result": [{"value": {"choices": _}}, *_]}, *_]}:
            label = "annotations.0.result.0.value.choices"
            columns, _ = label_columns(label, [*_chosen(records)])
            yield {"kind": "table", **layout, "columns": {"text": "data.text", **columns}}
        case {"annotations": [{"result": [{"value": {"start": _}}, *_]}, *_]}:
            marks = {"text": "data.text", "marks": "annotations.0.result.*.value"}
            columns = marks | {"start": "start", "end": "end", "label": "labels"}
            yield {"kind": "marks", **layout, "columns": columns}
        case {"text": str(text), "label": dict(marks)} if marks:
            yield {"kind": "marks", **layout, "end_included": _included(text, marks)}
        case {"passage": {"questions": [{"answers": _}, *_]}}:
            columns = {"text": ["passage.text", "question"], "second": "text", "label": "label"}
            each = ["passage.questions.answers"]
            yield {"kind": "table", **layout, "each": each, "columns": columns}
        case {"text": _, "target": {"span1_text": _}, "label": _}:
            spans = ["target.span1_text", "target.span2_text"]
            columns = {"text": "text", "second": spans, "label": "label"}
            yield {"kind": "table", **layout, "columns": columns}
        case _:
            yield from _of_marks(record, layout)


def _of_marks(record: dict[str, Any], layout: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the block for a list of objects that each have a start, an end and a label."""
    text = next((name for name in _MARKED_TEXTS if isinstance(record.get(name), str)), None)
    for name, marks in record.items():
        if text is None or not isinstance(marks, list) or not marks:
            continue
        keys = {
            key: next((n for n in names if isinstance(marks[0], dict) and n in marks[0]), None)
            for key, names in _MARKS.items()
        }
        if None not in keys.values():
            yield {"kind": "marks", **layout, "columns": {"text": text, "marks": name, **keys}}


def _chosen(records: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """The choices of each record as Label Studio exports them."""
    for record in records:
        match record:
            case {"annotations": [{"result": [{"value": {"choices": [*chosen]}}, *_]}, *_]}:
                yield chosen


def _included(text: str, marks: Mapping[str, Any]) -> bool:
    """Whether the ends of marks are the last character, judged by the words they mark."""
    for words in marks.values():
        for word, places in words.items() if isinstance(words, dict) else ():
            match places:
                case [[int(start), int(end), *_], *_]:
                    return text[start : end + 1] == word
    return False


def _fields(records: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """The values of each field, with dots for nested objects."""
    values: dict[str, list[Any]] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for inner, each in value.items():
                add(f"{name}.{inner}" if name else inner, each)
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            for inner in value[0]:
                add(f"{name}.*.{inner}", [each.get(inner) for each in value])
        else:
            values.setdefault(name, []).append(value)

    for record in records:
        add("", record)
    return values
