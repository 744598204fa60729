"""Guess format blocks for JSON and JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rungwise.tasks.guess_fields import ROWS, as_list, by_fields, labelled


def of_json(text: str) -> Iterator[dict[str, Any]]:
    """Yield format blocks that may read the text, likeliest first."""
    layout: dict[str, Any] = {"layout": "json"}
    records: Sequence[Any] = []
    try:
        data = json.loads(text)
    except ValueError:
        layout, data = {"layout": "json_lines"}, [*_json_lines(text)]
    match data:
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
            elif "\n" not in text.strip():
                layout = {"layout": "json_lines"}
        case [*records]:
            pass
    records = [record for record in records[:ROWS] if isinstance(record, dict)]
    if records:
        yield from _of_records(records, layout)


def _json_lines(text: str) -> Iterator[Any]:
    for line in text.split("\n")[:ROWS]:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _of_records(
    records: Sequence[dict[str, Any]], layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    first = records[0]
    match first:
        case {"context": _, "question": _, "answers": {"answer_start": _}}:
            yield {"kind": "squad", **layout}
        case {"annotations": [{"result": [{"value": {"choices": _}}, *_]}, *_]}:
            label = "annotations.0.result.0.value.choices"
            columns, _ = labelled(label, [*_chosen(records)])
            yield {"kind": "table", **layout, "columns": {"text": "data.text", **columns}}
        case {"annotations": [{"result": [{"value": {"start": _}}, *_]}, *_]}:
            marks = {"text": "data.text", "marks": "annotations.0.result.*.value"}
            columns = marks | {"start": "start", "end": "end", "label": "labels"}
            yield {"kind": "marks", **layout, "columns": columns}
        case {"text": _, "spans": [*_]}:
            columns = {"marks": "spans", "start": "start", "end": "end", "label": "label"}
            yield {"kind": "marks", **layout, "columns": columns}
        case {"text": str(text), "label": dict()}:
            yield {"kind": "marks", **layout, "end_included": _included(text, first["label"])}
        case {"passage": {"questions": [{"answers": _}, *_]}}:
            columns = {"text": ["passage.text", "question"], "second": "text", "label": "label"}
            each = ["passage.questions.answers"]
            yield {"kind": "table", **layout, "each": each, "columns": columns}
        case {"text": _, "target": {"span1_text": _}, "label": _}:
            spans = ["target.span1_text", "target.span2_text"]
            columns = {"text": "text", "second": spans, "label": "label"}
            yield {"kind": "table", **layout, "columns": columns}
    if any(isinstance(each, list) for record in records for each in as_list(record.get("label"))):
        yield {"kind": "marks", **layout}
    words = next((name for name in ("tokens", "words") if name in first), None)
    tags = next((n for n in first if "tag" in n.lower() and isinstance(first[n], list)), None)
    if words and tags:
        numbers = sorted({tag for r in records for tag in r[tags] if isinstance(tag, int)})
        labels = {"labels": {number: f"tag{number}" for number in numbers}} if numbers else {}
        yield {"kind": "tokens", **layout, "columns": {"words": words, "tags": tags}, **labels}
    yield from by_fields(_fields(records), layout)


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
