"""Look at a file of labelled data, and guess the format block that reads it.

    content ──> blocks that may read it, the likeliest first ──> the first that reads nearly all

A guess goes by the names of fields, as data sets and labelling tools have them, and by what stands
in a column where there are no names. It is made for a person to read beside the examples.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from statistics import fmean
from typing import Any

from rungwise.core.archives import Member
from rungwise.core.config import Config, validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.outside import matching
from rungwise.core.storage import SourceFile
from rungwise.corpus.streams import guessed, packing_of, pieces
from rungwise.tasks.examples import Example
from rungwise.tasks.formats import TaggedFormat
from rungwise.tasks.formats.base import DROPPED
from rungwise.tasks.formats.columns import BARE, SPANS

_SAMPLE_BYTES = 1 << 20  # of a file that is read by lines
_ROWS = 400
_MOST_DAMAGED = 0.3
_LABELS = (
    *("label_desc", "gold_label", "entailment_label", "label", "labels", "accept", "category"),
    *("class", "intent", "sentiment", "is_duplicate", "quality", "polarity", "target", "topic"),
)
_SCORES = ("score", "similarity", "relatedness_score")
_PAIRS = (
    *(("premise", "hypothesis"), ("sentence1", "sentence2"), ("sentence_a", "sentence_b")),
    *(("question1", "question2"), ("context", "hypothesis"), ("question", "passage")),
    *(("question", "sentence"), ("text_a", "text_b"), ("#1 string", "#2 string")),
)
_TEXTS = (
    *("text", "sentence", "review", "content", "comment", "tweet", "utterance", "body", "message"),
    *("text_a", "source", "data.text", "title"),
)
_CONTEXTS = ("context", "passage", "article", "premise", "ctx", "support", "story")
_QUESTIONS = ("question.stem", "question", "questions", "goal", "sentence", "prompt")
_OPTIONS = (
    *("question.choices.*.text", "choices.*.text", "choices.text", "options", "choices", "endings"),
)
_ANSWERS = ("answerkey", "answer", "answers", "correct_answer", "label", "gold", "target")
_DECIMAL = re.compile(r"-?\d+\.\d+").fullmatch
_SERIES = re.compile(r"(.*?)([0-9]|[A-H])")


class _Block(Config):
    format: TaggedFormat


@dataclass(frozen=True)
class Guess:
    """The format block that was found, the examples that it read from a sample, and how many of
    the sample it could not use."""

    form: dict[str, Any]
    examples: list[Example]
    damaged: int


def look(path: str) -> Guess:
    """Guess how to read what `path` matches, by the first file of it.

    Raises ConfigError where nothing is there, DataError where no block reads it.
    """
    files = matching([path], "FILE")
    for form in _forms(files):
        guess = _tried(form, files)
        if guess is not None:
            return guess
    raise DataError(
        f"{path}: no format reads this; docs/reference/layouts.md has blocks for public layouts"
    )


def label_counts(examples: Sequence[Example]) -> Counter[str]:
    """How often each label stands in them, a tag for each word."""
    return Counter(
        label
        for each in map(asdict, examples)
        for label in each.get("tags") or [each.get("target")]
        if isinstance(label, str)
    )


def _forms(files: Sequence[SourceFile]) -> Iterator[dict[str, Any]]:
    """Blocks that may read the files, the likeliest first."""
    folders = {file.uri.rpartition("/")[0] for file in files}
    content = b"".join(pieces(files[0]))
    encoding, text = _decoded(content)
    named = {} if encoding == "utf-8" else {"encoding": encoding}
    several = len(folders) > 1 and not text.lstrip().startswith(("{", "["))
    forms = (
        iter([{"kind": "folders"}])
        if several
        else _of_json(text)
        if text.lstrip()[:1] in "{["
        else _of_lines(text)
    )
    yield from (form | named for form in forms)


def _tried(form: dict[str, Any], files: Sequence[SourceFile]) -> Guess | None:
    """What a block reads of the files; None if it cannot, or if too much of it is damaged."""
    counts: Counter[str] = Counter()
    examples: list[Example] = []
    try:
        block = validate(_Block, {"format": form | {"on_error": "drop"}})
        shown = files if form["kind"] == "folders" else files[:1]
        for file in shown:
            examples += islice(block.format.read(_sample(file, form), "train", counts), 2 * _ROWS)
    except (ConfigError, DataError):
        return None
    damaged = sum(number for reason, number in counts.items() if reason.startswith(DROPPED))
    if not examples or damaged > _MOST_DAMAGED * (len(examples) + damaged):
        return None
    return Guess(form | ({"on_error": "drop"} if damaged else {}), examples, damaged)


def _sample(file: SourceFile, form: Mapping[str, Any]) -> SourceFile:
    """The whole of a JSON file, and the first lines of others."""
    content = b"".join(pieces(file))
    if form.get("layout") != "json" and form["kind"] not in ("squad", "dream", "folders"):
        kept = content[:_SAMPLE_BYTES]
        content = content if len(kept) == len(content) else kept[: kept.rfind(b"\n") + 1]
    name = file.name.removesuffix(packing_of(file.name))
    uri = file.uri.removesuffix(packing_of(file.uri))
    return Member(uri, name, len(content), content=content)


def _decoded(content: bytes) -> tuple[str, str]:
    # Of text that is mostly ASCII too little is seen to guess by.
    try:
        return "utf-8", content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        head = content[:_SAMPLE_BYTES]
        western = sum(byte > 127 for byte in head) < 0.1 * len(head)
    encoding = "latin-1" if western else guessed(head) or "latin-1"
    return encoding, content.decode(encoding, "replace")


# ---- JSON


def _of_json(text: str) -> Iterator[dict[str, Any]]:
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
    records = [record for record in records[:_ROWS] if isinstance(record, dict)]
    if records:
        yield from _of_records(records, layout)


def _json_lines(text: str) -> Iterator[Any]:
    for line in text.split("\n")[:_ROWS]:
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
            label = "annotations.0.result.0.value.choices.0"
            yield {"kind": "table", **layout, "columns": {"text": "data.text", "label": label}}
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
    if any(isinstance(each, list) for record in records for each in _list(record.get("label"))):
        yield {"kind": "marks", **layout}
    words = next((name for name in ("tokens", "words") if name in first), None)
    tags = next((n for n in first if "tag" in n.lower() and isinstance(first[n], list)), None)
    if words and tags:
        numbers = sorted({tag for r in records for tag in r[tags] if isinstance(tag, int)})
        labels = {"labels": {number: f"tag{number}" for number in numbers}} if numbers else {}
        yield {"kind": "tokens", **layout, "columns": {"words": words, "tags": tags}, **labels}
    yield from _by_fields(_fields(records), layout)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _included(text: str, marks: Mapping[str, Any]) -> bool:
    """Whether marks with their words name their last character, and not the one after it."""
    for words in marks.values():
        for word, [[start, end], *_] in words.items() if isinstance(words, dict) else ():
            return text[start : end + 1] == word
    return False


def _fields(records: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """The values of each field, those of nested objects with a dot."""
    values: dict[str, list[Any]] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for inner, each in value.items():
                add(f"{name}.{inner}" if name else inner, each)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for inner in value[0]:
                add(f"{name}.*.{inner}", [each.get(inner) for each in value])
        else:
            values.setdefault(name, []).append(value)

    for record in records:
        add("", record)
    return values


# ---- Fields by their names


def _by_fields(fields: Mapping[str, list[Any]], layout: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Blocks for records with named fields: choices, pairs, texts."""
    lower = {name.lower(): name for name in fields}
    if crowd := next((name for name in fields if name.endswith("-metadata.class-name")), None):
        lower["label"] = crowd

    def named(names: Sequence[str], *, but: Sequence[str | None] = ()) -> str | None:
        found = (lower[name] for name in names if name in lower)
        return next((name for name in found if name not in but), None)

    yield from _choices(fields, lower, layout)
    label, score = named(_LABELS), named(_SCORES)
    if label is None and score is None:
        label = named(("answer",))
    # A number that seldom recurs is a score.
    target = {"label": label} if label else {"score": score}
    if score and (not label or len({*map(str, fields[label])}) > len(fields[label]) / 2):
        target = {"score": score}
    pair = next((p for p in _PAIRS if all(name in lower for name in p)), None)
    if pair and (label or score):
        columns = {"text": lower[pair[0]], "second": lower[pair[1]], **target}
        if "word" in lower:
            columns["text"] = [lower["word"], columns["text"]]
        skip = {"skip_labels": ["-"]} if label and "-" in fields[label] else {}
        yield {"kind": "table", **layout, "columns": columns, **skip}
    texts = {name: _mean_length(values) for name, values in fields.items()}
    text = named([name for name in _TEXTS if texts.get(lower.get(name, ""))], but=[label]) or max(
        texts, key=lambda name: texts[name], default=None
    )
    if text and text != label and (label or score):
        yield {"kind": "table", **layout, "columns": {"text": text, **target}}
    few = _fewest(fields, but=text)
    if text and few:
        yield {"kind": "table", **layout, "columns": {"text": text, "label": few}}


def _choices(
    fields: Mapping[str, list[Any]], lower: Mapping[str, str], layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    series = [name for name in fields if _SERIES.fullmatch(name)]
    stems = Counter(_SERIES.sub(r"\1", name) for name in series)
    options: Any = next(
        (lower[name] for name in _OPTIONS if name in lower and _list(fields[lower[name]][0])), None
    )
    stem = next(
        (stem for stem in ("ending", "choice", "option", "answer", "sol") if stems[stem] > 1), ""
    )
    if options is None and stem:
        options = sorted(name for name in series if _SERIES.sub(r"\1", name) == stem)
    answer = next((lower[name] for name in _ANSWERS if name in lower), None)
    about = {
        key: next((lower[name] for name in names if name in lower), None)
        for key, names in (("context", _CONTEXTS), ("question", _QUESTIONS))
    }
    if "distractor1" in lower and answer:
        options = [answer, *(lower[name] for name in sorted(lower) if "distractor" in name)]
    columns: dict[str, Any] = {key: name for key, name in about.items() if name}
    if "sent1" in lower and "sent2" in lower:
        columns |= {"context": lower["sent1"], "begins": lower["sent2"]}
    if options is None or answer is None or not columns:
        return
    columns |= {"options": options}
    names = re.sub(r"text$", "label", options) if isinstance(options, str) else ""
    if names and names != options and names in fields:
        columns |= {"names": names}
    columns["answer"] = answer
    given = [str(each) for each in fields[answer]]
    width = len(options) if isinstance(options, list) else max(map(len, fields[options]))
    block: dict[str, Any] = {"kind": "choice", **layout, "columns": columns}
    if "names" in columns:
        yield block
    elif all(each.isdecimal() for each in given):
        yield block | ({"first": 1} if str(width) in given and "0" not in given else {})
    elif all(re.fullmatch("[A-Za-z]", each) for each in given):
        yield block | {"answer": "letter"}
    else:
        yield block | {"answer": "text"}


def _mean_length(values: Sequence[Any]) -> float:
    return fmean(len(value) if isinstance(value, str) else 0 for value in values)


def _fewest(columns: Mapping[Any, list[Any]], but: Any) -> Any:
    """The column whose short values recur most, if there is one."""
    shares = {
        name: len({*map(str, values)}) / len(values)
        for name, values in columns.items()
        if name != but
        and 1 < len({*map(str, values)}) <= max(2, len(values) / 2)
        and max(len(str(value)) for value in values) < 60
    }
    return min(shares, key=lambda name: shares[name], default=None)


# ---- Lines


def _of_lines(text: str) -> Iterator[dict[str, Any]]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[: 20 * _ROWS]
    yield from _conll(lines)
    filled = [line for line in lines if line.strip()][:_ROWS]
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
            *_LABELS,
            *_SCORES,
            *_TEXTS,
            *_ANSWERS,
            *(name for pair in _PAIRS for name in pair),
        }
        even = [row for row in rows if len(row) == width]
        if len(even) < len(rows):
            plain["extra_columns"] = all(len(row) >= width for row in rows)
        if known.intersection(cell.lower() for cell in header) and len({*header}) == len(header):
            columns = dict(zip(header, map(list, zip(*even[1:], strict=True)), strict=False))
            if columns:
                yield from _by_fields(columns, plain)
        yield from _with_names(header, even[1:], plain)
        yield from _without_names(even, plain)
    first = [line.partition(" ") for line in filled]
    if first and len({label for label, _, _ in first}) <= max(2, len(first) / 3):
        form = {"kind": "table", "columns": {"text": 1, "label": 0}, "delimiter": " "}
        yield form | {"header": False, "rest_of_line": True}


def _rows(lines: Sequence[str], delimiter: str, quoting: bool) -> list[list[str]]:
    how = csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE
    try:
        return list(islice(csv.reader(lines, delimiter=delimiter, quoting=how, strict=True), _ROWS))
    except csv.Error:
        return []


def _with_names(
    header: Sequence[str], rows: Sequence[Sequence[str]], layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """A table whose header has names of its own: none is a label of the column that it heads."""
    for form in _without_names(rows, layout) if rows else ():
        columns = form["columns"]
        target = columns.get("label", columns.get("score"))
        if target is None or header[target] in {row[target] for row in rows}:
            continue
        if not any(" " in header[place] for place in columns.values()):
            names = {name: header[place] for name, place in columns.items()}
            yield {k: v for k, v in form.items() if k != "header"} | {"columns": names}


def _without_names(
    rows: Sequence[Sequence[str]], layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """A table without a header, by what stands in its columns."""
    columns = {place: list(cells) for place, cells in enumerate(zip(*rows, strict=True))}
    lengths = {place: _mean_length(cells) for place, cells in columns.items()}
    text = max(lengths, key=lambda place: lengths[place])
    label = _fewest(columns, but=text)
    plain = {"kind": "table", **layout, "header": False}
    target = "score" if label is not None and any(map(_DECIMAL, columns[label])) else "label"
    last = max(columns)
    for written, extra in (("ABCDE", {"answer": "letter"}), ("0123", {}), ("1234", {"first": 1})):
        count = len({*columns[last]})
        if 3 <= count < last and {*columns[last]} == {*written[:count]}:
            options = list(range(last - count, last))
            asked = {"question": options[0] - 1, "options": options, "answer": last}
            if min(lengths[place] for place in options) > 3:
                yield {**plain, "kind": "choice", "columns": asked, **extra}
    if label is None:
        return
    # A second text is about as long as the first, and as seldom twice the same.
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
        yield plain | {"columns": {"text": a, "second": b, target: label}}
    yield plain | {"columns": {"text": text, target: label}}


def _conll(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A word a line with tags beside it, sentences apart by blank lines."""
    filled = [line for line in lines if line.strip()]
    ends = sum(not line.strip() for line in lines)
    if not filled:
        return
    body = [line for line in filled if not line.startswith(("# ", "#\t", "-DOCSTART-"))][:_ROWS]
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
        # A # within a sentence is a word.
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
