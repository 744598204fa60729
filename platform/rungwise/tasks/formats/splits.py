"""The splits of labelled data, as names of files, folders and columns tell them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from rungwise.core.storage.source_files import SourceFile, name_split, split_of_path
from rungwise.tasks.formats.records import RecordsFormat, plain, read_objects, read_rows

_COLUMNS = ("split", "splits", "set", "subset", "partition", "fold", "splitset_label")
_MARKS = (("0", "1"), ("false", "true"), ("no", "yes"))
_MOST_VALUES = 12  # of a column that names splits


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
        if column in used or len(values) > _MOST_VALUES:
            continue
        splits: dict[str, list[str]] = {}
        for value in values:
            splits.setdefault(name_split(value) or "", []).append(value)
        listed = ", ".join(f"{value} {number:,}" for value, number in values.most_common())
        if "train" in splits and len(splits.keys() - {""}) > 1:
            block = {n: v if len(v) > 1 else v[0] for n, v in splits.items() if n}
            return {"column": column, **block}, f"the column {column!r} names the split: {listed}"
        own, marks = name_split(str(column)), {value.lower(): value for value in values}
        if (
            own
            and len(marks) == 2
            and (pair := next((p for p in _MARKS if marks.keys() == {*p}), None))
        ):
            no, yes = (marks[mark] for mark in pair)
            other = "test" if own == "train" else "train"
            return {"column": column, own: yes, other: no}, f"{column!r} marks the split: {listed}"
        if str(column).lower() in _COLUMNS and len(values) > 1:
            return None, (
                f"the column {column!r} may name the split ({listed}); if so, see the key split in "
                "docs/reference/tasks.md"
            )
    return None, ""


def list_columns(form: RecordsFormat, file: SourceFile) -> list[Any]:
    """Return the columns of a file, or the fields of its first record."""
    return [*next(iter(_read_records(form, file)), {})]


def _read_records(form: RecordsFormat, file: SourceFile) -> Iterator[Mapping[Any, Any]]:
    """Yield the records of a file with all of their fields."""
    if form.layout != "delimited":
        yield from (record for _, record in read_objects(form, form.layout, file, Counter()))
        return
    rows = (r for _, r in read_rows(file, form.encoding, form.delimiter, quoting=form.quoting))
    names = [cell.strip() for cell in next(rows, [])] if form.header else None
    for cells in rows:
        yield dict(zip(names or range(len(cells)), cells, strict=False))
