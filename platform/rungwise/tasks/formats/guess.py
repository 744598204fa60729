"""Guess the task block that reads files of labelled data: of the blocks that fit their content, the
first that reads nearly all; and the splits, by the names of files and columns."""

import os.path
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from rungwise.core.configuration.config import Config, validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.storage.object_store import is_remote
from rungwise.core.storage.outside import list_matching_files
from rungwise.core.storage.source_files import SourceFile, name_split, split_of_path
from rungwise.core.wording import list_first
from rungwise.corpus.cleaning.characters import describe_lost_characters
from rungwise.corpus.guesses import decode
from rungwise.corpus.readers.streams import archive_kind
from rungwise.tasks.formats import TaggedFormat
from rungwise.tasks.formats.base import DROPPED, count_damage, join_names, read_bytes
from rungwise.tasks.formats.guess_forms import (
    NO_LABEL,
    ROWS,
    explain_columns,
    guess_json,
    guess_lines,
    guess_parquet,
)
from rungwise.tasks.formats.records import (
    RecordsFormat,
    explain_escapes,
    is_columnar,
    plain,
    read_objects,
    read_rows,
)
from rungwise.tasks.formats.table import TableFormat
from rungwise.tasks.interface import KINDS
from rungwise.tasks.kinds.examples import SPLITS, Example, join_parts

_MOST_DAMAGED = 0.3
_FILES_TRIED = 3
_FEWEST_EXAMPLES = 5  # of a label
_SHARES = {"validation": 0.1, "test": 0.2}  # of the training part, where there are no files
_SPLIT_COLUMNS = ("split", "splits", "set", "subset", "partition", "fold", "splitset_label")
_MOST_VALUES = 12  # of a column that names splits
_TABLES = (".csv", ".tsv", ".conll", ".conllu", ".parquet", ".arrow")  # one is no text of a class


class _Block(Config):
    format: TaggedFormat


@dataclass
class Guess:
    """A block of a task, and the examples and counters of its training part. `sizes` are those of
    parts with files or rows of their own; `notes` are lines for the user."""

    data: dict[str, Any]
    examples: list[Example]
    counts: Counter[str]
    notes: list[str]
    sizes: dict[str, int]

    @property
    def form(self) -> dict[str, Any]:
        return self.data["format"]

    @property
    def damaged(self) -> int:
        return self.counts[DROPPED]

    @property
    def labels(self) -> Counter[str]:
        """How often each label occurs; tags count once per word."""
        golds = (example.gold for example in self.examples)
        each = chain.from_iterable(g if isinstance(g, tuple) else [g] for g in golds)
        return Counter(label for label in each if isinstance(label, str))

    @property
    def fractions(self) -> dict[str, float]:
        """The shares of the training part that stand for parts without files."""
        return {split: share for split, share in _SHARES.items() if split not in self.data}

    @property
    def block(self) -> dict[str, Any]:
        """The block of the task."""
        return self.data | {f"{split}_fraction": each for split, each in self.fractions.items()}


def guess_format(path: str, stated: Mapping[str, str] | None = None) -> Guess:
    """Guess how to read the files that `path` matches, and which of them are which split; `stated`
    are the columns `text` and `label` where the user names them.

    Raises ConfigError if nothing matches, DataError if no block reads the largest files.
    """
    stated = dict(stated or {})
    files = list_matching_files([path], "FILE")
    groups = group_by_split(files)
    first = next(groups[split] for split in (*SPLITS, "") if split in groups)
    # The largest, since a README may be first.
    for file in sorted(first, key=lambda each: -each.size_bytes)[:_FILES_TRIED]:
        for likely in _guess_forms(file, first, stated):
            is_folders = likely["kind"] == "folders"
            forms = [likely]
            if likely["kind"] in ("conll", "tokens"):
                forms.append(likely | {"scheme": "as_is"})
            sample = first if is_folders else [file]
            form = next((form for form in forms if _read_examples(form, sample)), None)
            if form is not None:
                groups = group_by_split(files, classes_in_folders=is_folders)
                if guess := _read_task(path, form, groups):
                    return guess
    content = read_bytes(max(first, key=lambda each: each.size_bytes))
    kind = archive_kind(content)
    columns = "".join(f" with {key} in the column {name!r}" for key, name in stated.items())
    raise DataError(
        f"{path}: no format reads this{columns}; expected a table (CSV or TSV, with the names of "
        "its columns, each once, in the first line, or none), tagged words in columns, objects of "
        "JSON, JSON Lines or Parquet, SQuAD's JSON, or a folder for each class; for other layouts, "
        "such as questions with options or marks of a labelling tool, write data.format yourself: "
        "docs/reference/layouts.md has blocks for public ones, docs/reference/tasks.md all keys"
        f"{f'; this is {kind}' if kind else explain_escapes(decode(content)[0])}"
    )


def _guess_forms(
    file: SourceFile, files: Sequence[SourceFile], stated: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    folders = {each.uri.rpartition("/")[0] for each in files}
    content = read_bytes(file)
    if is_columnar(content):
        yield from guess_parquet(content, stated)
        return
    text, encoding = decode(content)
    if text.lstrip().startswith(("{", "[")):
        forms = guess_json(text, stated)
    elif len(folders) > 1 and not file.name.endswith(_TABLES):
        # Most of the texts may be ASCII, and only some tell the encoding.
        others = (decode(read_bytes(each))[1] for each in files)
        encoding = next((each for each in others if each != "utf-8"), encoding)
        # aclImdb keeps its unlabelled reviews beside the classes.
        unlabelled = any(folder.endswith("/unsup") for folder in folders)
        forms = iter([{"kind": "folders"} | ({"skip_labels": ["unsup"]} if unlabelled else {})])
    else:
        forms = guess_lines(text, stated)
    keys = {} if encoding == "utf-8" else {"encoding": encoding}
    yield from (form | keys for form in forms)


def _parse_form(form: dict[str, Any]) -> TaggedFormat:
    return validate(_Block, {"format": form | {"on_error": "drop"}}).format


def _read_examples(
    form: dict[str, Any], files: Sequence[SourceFile], most: int | None = 2 * ROWS
) -> tuple[list[Example], Counter[str]] | None:
    """Read so many examples of each file, or all; return None if too much of them is damaged."""
    counts: Counter[str] = Counter()
    examples: list[Example] = []
    try:
        block = _parse_form(form)
        for file in block.select_files(files, counts):
            examples += islice(block.read(file, "train", counts), most)
    except (ConfigError, DataError):
        return None
    for damaged, sound in count_damage(examples, counts).values():
        if damaged > _MOST_DAMAGED * (sound + damaged):
            return None
    return (examples, counts) if examples else None


@dataclass
class _Part:
    """The files of a split that a block reads, and what is in them."""

    files: list[SourceFile] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def _read_part(form: dict[str, Any], files: Sequence[SourceFile], notes: list[str]) -> _Part:
    """Read the files of a split whole; note those that the block does not read."""
    part, left = _Part(), list[str]()
    for unit in [files] if form["kind"] == "folders" else [[file] for file in files]:
        if (result := _read_examples(form, unit, None)) is None:
            left += [file.name for file in unit]
            continue
        part.files += unit
        part.examples += result[0]
        part.counts += result[1]
    if left:
        notes.append(f"left out, since the block does not read it: {join_names(left)}")
    return part


def _read_task(
    path: str, form: dict[str, Any], groups: dict[str, list[SourceFile]]
) -> Guess | None:
    """Read all splits by a block; return None if it reads no file to train on."""
    first = next(split for split in (*SPLITS, "") if split in groups)
    form, notes = dict(form), list[str]()
    if len(groups) > 1 and first != "train":
        notes.append(f"no file is named as one to train on; the block takes {first}")
    if form.get("scheme") == "as_is":
        notes.append(
            "the tags seem to mark spans, in no scheme that is known; the block takes them as "
            "labels of words"
        )
    train = _read_part(form, groups[first], notes)
    if not train.examples:
        return None
    rest = {split: files for split, files in groups.items() if split not in ("", first)}
    parts = {split: _read_part(form, files, notes) for split, files in rest.items()}
    parts = {split: part for split, part in parts.items() if part.examples}
    if first and "" in groups:
        names = join_names(file.name for file in groups[""])
        notes.append(f"left out, since its name tells no split: {names}")
    if "test" not in parts and "validation" in parts:
        parts["test"] = parts.pop("validation")
        notes.append("no other file with labels is named as a test; validation is taken")
    parts = {"train": train} | {split: parts[split] for split in SPLITS if split in parts}
    if any(part.counts[DROPPED] for part in parts.values()):
        form["on_error"] = "drop"
    data = {"kind": "files", "format": form}
    data |= {split: _list_paths(path, form, part.files) for split, part in parts.items()}
    sizes = {split: len(part.examples) for split, part in parts.items()}
    reader = _parse_form(form)
    if len(groups) == 1:
        if len(train.files) == len(groups[first]):
            data["train"] = path
        if isinstance(reader, RecordsFormat):
            column, note = find_split_column(reader, train.files)
            notes += [note] if note else []
            if column is not None:
                form["split"] = column
                data |= {split: data["train"] for split in SPLITS if split in column}
                sizes = _count_rows(form, train.files)
    if isinstance(reader, TableFormat):
        columns = [*next(_read_records(reader, train.files[0]), {})]
        notes.insert(0, explain_columns(form, columns))
    notes += describe_lost_characters("\n".join(map(join_parts, train.examples)))
    guess = Guess(data, train.examples, train.counts, notes, sizes)
    notes += _describe_labels(guess.labels, form)
    if len(guess.labels) == 1 and KINDS[reader.task_kind].labelled:
        notes.append(f"all examples have one label, {next(iter(guess.labels))!r}; a task needs two")
    return guess


def _count_rows(form: dict[str, Any], files: Sequence[SourceFile]) -> dict[str, int]:
    """Return the number of examples of each part that a column names."""
    reader = _parse_form(form)
    return {
        split: sum(1 for file in files for _ in reader.read(file, split, Counter()))
        for split in SPLITS
        if split in form["split"]
    }


def _describe_labels(labels: Counter[str], form: dict[str, Any]) -> Iterator[str]:
    """Yield notes about labels that are rare or may be none."""
    if marks := [mark or "''" for mark in form.get("skip_labels", ()) if mark in ("", NO_LABEL)]:
        yield f"rows with the label {' or '.join(marks)} are left out, which stands for none"
    elif labels[NO_LABEL] and {"0", "1"} <= labels.keys():
        yield f"{NO_LABEL} may stand for no label; if so, set format.skip_labels: ['{NO_LABEL}']"
    if rare := [f"{label} ({n})" for label, n in labels.items() if n < _FEWEST_EXAMPLES]:
        yield (
            f"fewer than {_FEWEST_EXAMPLES} examples have the label {list_first(rare, 5)}; such a "
            "label is hardly learnt, and may be missing in a part"
        )


def _list_paths(path: str, form: dict[str, Any], files: Sequence[SourceFile]) -> str | list[str]:
    is_absolute = is_remote(path) or os.path.isabs(path)
    paths = [file.uri if is_absolute else os.path.relpath(file.uri) for file in files]
    if form["kind"] == "folders":  # the folder of those of the classes
        paths = [*dict.fromkeys(path.rsplit("/", 2)[0] for path in paths)]
    return paths[0] if len(paths) == 1 else paths


def group_by_split(
    files: Sequence[SourceFile], *, classes_in_folders: bool = False
) -> dict[str, list[SourceFile]]:
    """Return the files of each split by their names, else by their folders; "" for the others. A
    folder that is a class names no split."""
    groups: dict[str, list[SourceFile]] = {}
    for file in files:
        parts = file.name.split("/")[: -2 if classes_in_folders else None]
        groups.setdefault(split_of_path("/".join(parts)), []).append(file)
    # A single split that is not train is all that there is, whatever its name.
    return groups if len(groups.keys() - {""}) > 1 or "train" in groups else {"": [*files]}


def find_split_column(
    form: RecordsFormat, files: Sequence[SourceFile]
) -> tuple[dict[str, Any] | None, str]:
    """Return the block of the column that names the split of each record, None if there is none;
    and a note about it."""
    used = {column for column in form.named_columns().values() if not isinstance(column, tuple)}
    counts: dict[Any, Counter[str]] = {}
    for record in chain.from_iterable(_read_records(form, file) for file in files):
        for column, value in record.items():
            values = counts.setdefault(column, Counter())
            if len(values) <= _MOST_VALUES and not isinstance(value, list | dict):
                values[plain(value)] += 1
    for column, values in counts.items():
        if column in used or not 1 < len(values) <= _MOST_VALUES:
            continue
        splits: dict[str, list[str]] = {}
        for value in values:
            splits.setdefault(name_split(value) or "", []).append(value)
        listed = ", ".join(f"{value} {number:,}" for value, number in values.most_common())
        if "train" in splits and len(splits.keys() - {""}) > 1:
            block = {n: v if len(v) > 1 else v[0] for n, v in splits.items() if n}
            return {"column": column, **block}, f"the column {column!r} names the split: {listed}"
        if str(column).lower() in _SPLIT_COLUMNS or name_split(str(column)):
            return None, (
                f"the column {column!r} may name the split ({listed}); if so, see the key split in "
                "docs/reference/tasks.md"
            )
    return None, ""


def _read_records(form: RecordsFormat, file: SourceFile) -> Iterator[Mapping[Any, Any]]:
    """Yield the records of a file with all of their fields."""
    if form.layout != "delimited":
        yield from (record for _, record in read_objects(form, form.layout, file, Counter()))
        return
    rows = (r for _, r in read_rows(file, form.encoding, form.delimiter, quoting=form.quoting))
    names = [cell.strip() for cell in next(rows, [])] if form.header else None
    for cells in rows:
        yield dict(zip(names or range(len(cells)), cells, strict=False))
