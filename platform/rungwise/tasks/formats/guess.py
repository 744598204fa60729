"""Guess the task block that reads files of labelled data: of the blocks that fit their content, the
first that reads nearly all; and the splits, by the names of files. A column of a table is known by
a name that data sets use, else by what it holds: labels recur, texts are long."""

import contextlib
import csv
import json
import os.path
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from statistics import fmean, mode
from typing import Any

from rungwise.core.configuration.config import Config, validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.storage.folder import is_remote
from rungwise.core.storage.source_files import (
    SourceFile,
    list_matching_files,
    name_split,
    split_of_path,
)
from rungwise.corpus.cleaning.text import describe_lost_characters
from rungwise.corpus.readers.streams import archive_kind, decode
from rungwise.tasks.config import TaggedFormat
from rungwise.tasks.formats import base
from rungwise.tasks.formats.base import DROPPED
from rungwise.tasks.formats.tagged import CONLLU_WIDTH, are_spans
from rungwise.tasks.kinds.examples import SPLITS, Example, join_parts
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
_MOST_DAMAGED = 0.3
_FILES_TRIED = 3
_SHARES = {"validation": 0.1, "test": 0.2}  # of the training part, where there are no files
_TABLES = (".csv", ".tsv", ".conll", ".conllu", ".parquet", ".arrow")  # one is no text of a class


class _Block(Config):
    format: TaggedFormat


@dataclass
class Guess:
    """A block of a task, the examples of its training part, and the counters of all parts. `sizes`
    are those of parts with files of their own; `notes` are lines for the user."""

    block: dict[str, Any]
    examples: list[Example]
    counts: Counter[str]
    notes: list[str]
    sizes: dict[str, int]

    @property
    def form(self) -> Form:
        return self.block["format"]

    @property
    def damaged(self) -> int:
        return self.counts[DROPPED]

    @property
    def labels(self) -> Counter[str]:
        """How often each label occurs; tags count once per word."""
        golds = (example.gold for example in self.examples)
        each = chain.from_iterable(g if isinstance(g, tuple) else [g] for g in golds)
        return Counter(label for label in each if isinstance(label, str))


def guess_format(path: str) -> Guess:
    """Guess how to read the files that `path` matches, and which of them are which split. Raises
    ConfigError if nothing matches, DataError if no block reads the largest files."""
    files = list_matching_files([path], "FILE")
    first = next(iter(_group_by_split(files).values()))
    largest = sorted(first, key=lambda each: -each.size_bytes)
    for file in largest[:_FILES_TRIED]:  # a README may be first
        for form in _guess_forms(file, first):
            is_folders = form["kind"] == "folders"
            if _read_examples(form, first if is_folders else [file]):
                groups = _group_by_split(files, classes_in_folders=is_folders)
                if guess := _read_task(path, form, groups):
                    return guess
    kind = archive_kind(base.read_bytes(largest[0]))
    raise DataError(
        f"{path}: no format reads this; expected a table (CSV or TSV, with the names of "
        "its columns, each once, in the first line, or none), tagged words in columns, objects of "
        "JSON, JSON Lines or Parquet, SQuAD's JSON, or a folder for each class; for other layouts "
        "write data.format yourself: docs/reference/layouts.md has blocks for public ones, "
        f"docs/reference/tasks.md all keys{f'; this is {kind}' if kind else ''}"
    )


def _guess_forms(file: SourceFile, files: Sequence[SourceFile]) -> Guesses:
    """Yield format blocks, likeliest first."""
    folders = {each.uri.rpartition("/")[0] for each in files}
    content = base.read_bytes(file)
    if base.is_columnar(content):
        yield from guess_records([*base.read_parquet(file)], {"layout": "parquet"})
        return
    text, encoding = decode(content)
    if text.lstrip().startswith(("{", "[")):
        guesses = guess_json(text)
    elif len(folders) > 1 and not file.name.endswith(_TABLES):
        # Most of the texts may be ASCII, and only some tell the encoding.
        others = (decode(base.read_bytes(each))[1] for each in files)
        encoding = next((each for each in others if each != "utf-8"), encoding)
        # aclImdb keeps its unlabelled reviews beside the classes.
        unlabelled = any(folder.endswith("/unsup") for folder in folders)
        skip = {"skip_labels": ["unsup"]} if unlabelled else {}
        guesses = iter([{"kind": "folders"} | skip])
    else:
        guesses = guess_lines(text)
    keys = {} if encoding == "utf-8" else {"encoding": encoding}
    yield from (form | keys for form in guesses)


def _read_examples(
    form: Form, files: Sequence[SourceFile], most: int | None = 2 * ROWS
) -> tuple[list[Example], Counter[str]] | None:
    """Read so many examples of each file, or all; return None if too much of them is damaged."""
    counts: Counter[str] = Counter()
    examples: list[Example] = []
    try:
        block = validate(_Block, {"format": form | {"on_error": "drop"}}).format
        for file in block.select_files(files, counts):
            examples += islice(block.read(file, "train", counts), most)
    except (ConfigError, DataError):
        return None
    if counts[DROPPED] > _MOST_DAMAGED * (len(examples) + counts[DROPPED]):
        return None
    return (examples, counts) if examples else None


def _read_task(path: str, form: Form, groups: Mapping[str, list[SourceFile]]) -> Guess | None:
    """Read all splits by a block; return None if it reads no file to train on."""
    files: dict[str, list[SourceFile]] = {}
    examples: dict[str, list[Example]] = {}
    counts, left, notes = Counter[str](), list[str](), list[str]()
    for number, (name, group) in enumerate(groups.items()):
        split = "train" if number == 0 else name
        for unit in [group] if form["kind"] == "folders" else [[file] for file in group]:
            if not split or (result := _read_examples(form, unit, None)) is None:
                left += [file.name for file in unit]
                continue
            files.setdefault(split, []).extend(unit)
            examples.setdefault(split, []).extend(result[0])
            counts += result[1]
    if "train" not in files:
        return None
    if next(iter(groups)) not in ("train", ""):
        notes.append(f"no file is named as one to train on; the block takes {next(iter(groups))}")
    if left:
        notes.append(
            "left out, since the block does not read it or its name tells no split: "
            f"{base.join_names(left)}"
        )
    if "test" not in files and "validation" in files:
        files["test"], examples["test"] = files.pop("validation"), examples.pop("validation")
        notes.append("no other file with labels is named as a test; validation is taken")
    if counts[DROPPED]:
        form = form | {"on_error": "drop"}
    block = {"kind": "files", "format": form}
    block |= {split: _list_paths(path, form, each) for split, each in files.items()}
    block |= {f"{split}_fraction": n for split, n in _SHARES.items() if split not in files}
    if len(groups) == 1 and not left:
        block["train"] = path
    notes += describe_lost_characters("\n".join(map(join_parts, examples["train"])))
    sizes = {split: len(each) for split, each in examples.items()}
    guess = Guess(block, examples["train"], counts, notes, sizes)
    if len(guess.labels) == 1:
        notes.append(f"all examples have one label, {next(iter(guess.labels))!r}; a task needs two")
    return guess


def _list_paths(path: str, form: Form, files: Sequence[SourceFile]) -> str | list[str]:
    is_absolute = is_remote(path) or os.path.isabs(path)
    paths = [file.uri if is_absolute else os.path.relpath(file.uri) for file in files]
    if form["kind"] == "folders":  # the folder of those of the classes
        paths = [*dict.fromkeys(path.rsplit("/", 2)[0] for path in paths)]
    return paths[0] if len(paths) == 1 else paths


def _group_by_split(
    files: Sequence[SourceFile], *, classes_in_folders: bool = False
) -> dict[str, list[SourceFile]]:
    """Return the files of each split, in the order of SPLITS, by their names, else by their
    folders; "" for the others, last. A folder that is a class names no split."""
    groups: dict[str, list[SourceFile]] = {split: [] for split in (*SPLITS, "")}
    for file in files:
        parts = file.name.split("/")[: -2 if classes_in_folders else None]
        groups[split_of_path("/".join(parts))].append(file)
    groups = {split: each for split, each in groups.items() if each}
    # A single split that is not train is all that there is, whatever its name.
    return groups if len(groups.keys() - {""}) > 1 or "train" in groups else {"": [*files]}


def guess_lines(text: str) -> Guesses:
    """Yield format blocks that may read a file of lines."""
    lines = base.split_lines(text)
    yield from _guess_tagged(lines[:_TAGGED_LINES])
    filled = [line for line in lines if line.strip()]
    for delimiter in "\t;,|":
        layout: Form = {} if delimiter == "\t" else {"delimiter": delimiter, "quoting": True}
        try:
            rows = _spread(list(base.read_cells(filled, delimiter, quoting=delimiter != "\t")))
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
