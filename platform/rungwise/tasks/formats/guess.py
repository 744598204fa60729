"""Guess the task block that reads files of labelled data: of the blocks that fit their content, the
first that reads nearly all; and the splits, by the names of files."""

import os.path
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from rungwise.core.configuration.config import Config, validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.storage.folder import is_remote
from rungwise.core.storage.source_files import SourceFile, list_matching_files, split_of_path
from rungwise.corpus.cleaning.characters import describe_lost_characters
from rungwise.corpus.guesses import decode
from rungwise.corpus.readers.streams import archive_kind
from rungwise.tasks.formats import TaggedFormat
from rungwise.tasks.formats.base import DROPPED, join_names, read_bytes
from rungwise.tasks.formats.guess_forms import (
    ROWS,
    Form,
    Guesses,
    guess_json,
    guess_lines,
    guess_records,
)
from rungwise.tasks.formats.records import is_columnar, read_parquet
from rungwise.tasks.kinds.examples import SPLITS, Example, join_parts

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
    """Guess how to read the files that `path` matches, and which of them are which split.

    Raises ConfigError if nothing matches, DataError if no block reads the largest files.
    """
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
    kind = archive_kind(read_bytes(largest[0]))
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
    content = read_bytes(file)
    if is_columnar(content):
        yield from guess_records([*read_parquet(file)], {"layout": "parquet"})
        return
    text, encoding = decode(content)
    if text.lstrip().startswith(("{", "[")):
        guesses = guess_json(text)
    elif len(folders) > 1 and not file.name.endswith(_TABLES):
        # Most of the texts may be ASCII, and only some tell the encoding.
        others = (decode(read_bytes(each))[1] for each in files)
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
            f"{join_names(left)}"
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
