"""Guess by the names that people give: format blocks for records with named fields (choices, pairs,
texts), and the splits of files, columns and values."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from rungwise.core.errors import DataError
from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.records import (
    Column,
    RecordsFormat,
    list_records,
    plain,
    read_objects,
    read_rows,
)
from rungwise.tokens.segmenters import HAN

_SPLIT_WORDS = {
    "train": ("train", "training", "trn", "trainset"),
    "validation": ("validation", "valid", "val", "dev", "devel", "development", "trial", "testa"),
    "test": ("test", "testing", "tst", "testset", "testb"),
}
_SPLITS = {word: split for split, words in _SPLIT_WORDS.items() for word in words}
_COLUMNS = ("split", "splits", "set", "subset", "partition", "fold", "splitset_label")
_MOST_VALUES = 12  # of a column that names splits


def name_split(name: str) -> str | None:
    """The split that a name such as `wnut17train.conll` or `DEV` tells; None if not one."""
    splits = {_SPLITS.get(word) for word in re.findall("[a-z]+", name.lower())} - {None}
    return splits.pop() if len(splits) == 1 else None


def group_by_split(
    files: Sequence[SourceFile], *, classes_in_folders: bool = False
) -> dict[str, list[SourceFile]]:
    """Return the files of each split by their names, else by their folders; "" for the others. A
    folder that is a class names no split."""
    groups: dict[str, list[SourceFile]] = {}
    for file in files:
        parts = file.name.split("/")[: -2 if classes_in_folders else None]
        splits = filter(None, map(name_split, reversed(parts)))
        groups.setdefault(next(splits, ""), []).append(file)
    # A single split that is not train is all that there is, whatever its name.
    return groups if len(groups.keys() - {""}) > 1 or "train" in groups else {"": [*files]}


def names_splits(values: Iterable[Any]) -> bool:
    """Whether all values name splits, and not all of them the same."""
    splits = {name_split(str(value)) for value in values}
    return len(splits) > 1 and None not in splits


def find_split_column(
    form: RecordsFormat, files: Sequence[SourceFile]
) -> tuple[dict[str, Any] | None, str]:
    """Return the block of the column that names the split of each record, None if there is none;
    and a note about it."""
    used = {column for column in form.named_columns().values() if not isinstance(column, tuple)}
    for column, counts in _count_values(form, files).items():
        if column in used:
            continue
        splits: dict[str, list[str]] = {}
        for value in counts:
            splits.setdefault(name_split(value) or "", []).append(value)
        listed = ", ".join(f"{value} {number:,}" for value, number in counts.most_common())
        if "train" in splits and len(splits.keys() - {""}) > 1:
            block = {n: v if len(v) > 1 else v[0] for n, v in splits.items() if n}
            return {"column": column, **block}, f"the column {column!r} names the split: {listed}"
        if str(column).lower() in _COLUMNS and len(counts) > 1:
            return None, (
                f"the column {column!r} may name the split ({listed}); if so, see the key split in "
                "docs/reference/tasks.md"
            )
    return None, ""


def _count_values(
    form: RecordsFormat, files: Sequence[SourceFile]
) -> Mapping[Column, Counter[str]]:
    """How often each value of a column occurs, for columns of few values."""
    counts: dict[Column, Counter[str]] = {}
    many: set[Column] = set()
    for file in files:
        for record in _records(form, file):
            for column, value in record.items():
                if column in many or isinstance(value, list | dict):
                    continue
                values = counts.setdefault(column, Counter())
                values[plain(value)] += 1
                if len(values) > _MOST_VALUES:
                    many.add(column)
                    del counts[column]
    return counts


def _records(form: RecordsFormat, file: SourceFile) -> Iterator[dict[Any, Any]]:
    if form.layout == "delimited":
        names: Sequence[Column] = []
        for _, cells in read_rows(file, form.encoding, form.delimiter, quoting=form.quoting):
            if not names:
                names = [c.strip() for c in cells] if form.header else range(len(cells))
                if form.header:
                    continue
            yield dict(zip(names, cells, strict=False))
        return
    for place, record in read_objects(form, form.layout, file, Counter()):
        try:
            each = list_records(record, form.each, place) if form.each else [(place, record)]
            yield from (fields for _, fields in each)
        except DataError:
            continue


ROWS = 400  # rows of a sample to look at
LABELS = (
    *("label_desc", "label_des", "gold_label", "entailment_label", "label", "labels"),
    *("accept", "category"),
    *("class", "intent", "sentiment", "is_duplicate", "quality", "polarity", "target", "topic"),
    *("genres", "topics", "categories", "emotions"),
)
SCORES = ("score", "similarity", "relatedness_score")
PAIRS = (
    *(("premise", "hypothesis"), ("sentence1", "sentence2"), ("sentence_a", "sentence_b")),
    *(("question1", "question2"), ("context", "hypothesis"), ("question", "passage")),
    *(("question", "sentence"), ("text_a", "text_b"), ("#1 string", "#2 string")),
    *(("premise", "hypo"), ("keyword", "abst")),
)
WRITTEN = (
    *(("source", "target"), ("src", "tgt"), ("input", "output"), ("document", "summary")),
    *(("article", "highlights"), ("dialogue", "summary"), ("prompt", "completion")),
)
TEXTS = (
    *("text", "sentence", "review", "content", "comment", "tweet", "utterance", "body", "message"),
    *("text_a", "source", "data.text", "title"),
)
_CONTEXTS = ("context", "passage", "article", "premise", "ctx", "support", "story")
_QUESTIONS = ("question.stem", "question", "questions", "goal", "sentence", "prompt")
_OPTIONS = (
    *("question.choices.*.text", "choices.*.text", "choices.text", "options", "choices", "endings"),
)
_SERIES_OF_OPTIONS = (
    *("ending", "choice", "option", "options", "answer", "sol", "op", "randomfifthsentencequiz"),
    "",  # the columns A, B, C and D
)
_SERIES_OF_CONTEXTS = ("inputsentence",)
ANSWERS = (
    *("answerkey", "answer_idx", "answerrightending", "correct", "cop", "answer", "answers"),
    *("correct_answer", "label", "gold", "target"),
)
KNOWN_FIELDS = {*LABELS, *SCORES, *TEXTS, *ANSWERS, *chain(*PAIRS, *WRITTEN)}
DECIMAL = re.compile(r"-?\d+\.\d+").fullmatch
_SERIES = re.compile(r"(.*?)([0-9]|[a-h])")
_SPACED = re.compile(rf"[ {HAN}]")
_FEW = 10  # fewer values do not tell whether they recur


def guess_fields(
    fields: Mapping[str, list[Any]], layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield format blocks for records with these fields; `layout` is part of each block."""
    lower = {name.lower(): name for name in fields}
    if crowd := next((name for name in fields if name.endswith("-metadata.class-name")), None):
        lower["label"] = crowd

    def first_named(names: Sequence[str], *, but: Sequence[str | None] = ()) -> str | None:
        present = (lower[name] for name in names if name in lower)
        return next((name for name in present if name not in but), None)

    yield from _choices(fields, lower, layout)
    for pair in WRITTEN:
        before, after = (lower.get(name) for name in pair)
        # Labels recur; texts rarely do.
        if before and after and len({*map(str, fields[after])}) > len(fields[after]) / 2:
            yield {"kind": "table", **layout, "columns": {"text": before, "target": after}}
    values = {name: fields[lower[name]] for name in LABELS if name in lower}
    label = first_named(
        [name for name, v in values.items() if len(v) < _FEW or len({*map(str, v)}) > 1]
    )
    label, score = label or first_named(LABELS), first_named(SCORES)
    if label is None and score is None and "answer" in lower and recurs(fields[lower["answer"]]):
        label = lower["answer"]
    # Numbers that rarely recur are scores.
    target: dict[str, Any] = {"score": score}
    if label and not (score and len({*map(str, fields[label])}) > len(fields[label]) / 2):
        target, keys = label_columns(label, fields[label])
        layout = layout | keys
    pair = next((p for p in PAIRS if all(name in lower for name in p)), None)
    if pair and (label or score):
        columns = {"text": lower[pair[0]], "second": lower[pair[1]], **target}
        if "word" in lower:
            columns["text"] = [lower["word"], columns["text"]]
        skip = {"skip_labels": ["-"]} if label and "-" in fields[label] else {}
        yield {"kind": "table", **layout, "columns": columns, **skip}
    texts = {name: mean_length(values) for name, values in fields.items()}
    text = first_named(
        [name for name in TEXTS if texts.get(lower.get(name, ""))], but=[label]
    ) or max(texts, key=lambda name: texts[name], default=None)
    if text and label and not score and not recurs(fields[label]):
        yield {"kind": "table", **layout, "columns": {"text": text, "target": label}}
    elif text and text != label and (label or score):
        yield {"kind": "table", **layout, "columns": {"text": text, **target}}
    if text and (marks := find_indicators(fields)):
        yield {"kind": "table", **layout, "columns": {"text": text, "labels": marks}}
    few = find_classes(fields, but=text)
    if text and few:
        yield {"kind": "table", **layout, "columns": {"text": text, "label": few}}


def label_columns(name: Any, values: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
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


def _choices(
    fields: Mapping[str, list[Any]], lower: Mapping[str, str], layout: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    series: dict[str, list[str]] = {}
    for name in fields:
        if numbered := _SERIES.fullmatch(name.lower()):
            series.setdefault(numbered[1].rstrip("._ "), []).append(name)

    def find_series(stems: Sequence[str]) -> list[str] | None:
        several = (sorted(series[stem]) for stem in stems if len(series.get(stem, ())) > 1)
        return next((names for names in several if names[0].lower()[-1] in "a01"), None)

    options: Any = next(
        (lower[name] for name in _OPTIONS if name in lower and as_list(fields[lower[name]][0])),
        None,
    )
    options = options or find_series(_SERIES_OF_OPTIONS)
    answer = next((lower[name] for name in ANSWERS if name in lower), None)
    if "distractor1" in lower and answer:
        options = [answer, *(lower[name] for name in sorted(lower) if "distractor" in name)]
    columns: dict[str, Any] = {}
    for key, names in (("context", _CONTEXTS), ("question", _QUESTIONS)):
        if name := next((lower[name] for name in names if name in lower), None):
            columns[key] = name
    if parts := find_series(_SERIES_OF_CONTEXTS):
        columns["context"] = parts
    if "sent1" in lower and "sent2" in lower:
        columns |= {"context": lower["sent1"], "begins": lower["sent2"]}
    if options is None or answer is None or not columns:
        return
    columns |= {"options": options}
    names = re.sub(r"text$", "label", options) if isinstance(options, str) else ""
    if names and names != options and names in fields:
        columns |= {"names": names}
    columns["answer"] = answer
    answers = [str(each) for each in fields[answer]]
    width = len(options) if isinstance(options, list) else max(map(len, fields[options]))
    block: dict[str, Any] = {"kind": "choice", **layout, "columns": columns}
    if isinstance(options, list) and has_empty(fields[name] for name in options):
        block["fewer_options"] = True
    if "names" in columns:
        yield block
    elif all(each.isdecimal() for each in answers):
        yield block | ({"first": 1} if str(width) in answers and "0" not in answers else {})
    elif all(re.fullmatch("[A-Za-z]", each) for each in answers):
        yield block | {"answer": "letter"}
    elif all(re.fullmatch("[A-Ha-h1-8]", each) for each in answers):
        yield block | {"answer": "letter_or_number"}
    else:
        yield block | {"answer": "text"}


def spread(values: Sequence[Any], number: int) -> Sequence[Any]:
    """Return at most `number` values from all over, since a file may be sorted by its labels."""
    return values[:: max(1, -(-len(values) // number))]


def has_empty(columns: Iterable[Sequence[Any]]) -> bool:
    """Whether a cell of the columns is empty."""
    return any(cell is None or not str(cell).strip() for cells in columns for cell in cells)


def recurs(values: Sequence[Any]) -> bool:
    """Whether most values occur more than once, as those of classes do."""
    return len(values) < _FEW or len({*map(str, values)}) <= len(values) / 2


def is_prose(cells: Sequence[str]) -> bool:
    """Whether a column is text of several words; dates and names of files are not."""
    filled = [cell for cell in cells if cell.strip()]
    spaced = [cell for cell in filled if _SPACED.search(cell.strip())]
    if len(spaced) <= 0.5 * len(filled):
        return False
    return fmean(sum(c.isalpha() or c == " " for c in cell) / len(cell) for cell in filled) > 0.6


def mean_length(values: Sequence[Any]) -> float:
    """Mean length in characters; values that are not text count as 0."""
    return fmean(len(value) if isinstance(value, str) else 0 for value in values)


def find_classes(columns: Mapping[Any, list[Any]], but: Any) -> Any:
    """Return the column whose short values recur most, None if none recurs."""
    shares = {
        name: len({*map(str, values)}) / len(values)
        for name, values in columns.items()
        if name != but
        and not names_splits(values)
        and 1 < len({*map(str, values)}) <= max(2, len(values) / 2)
        and max(len(str(value)) for value in values) < 60
    }
    return min(shares, key=lambda name: shares[name], default=None)


def as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
