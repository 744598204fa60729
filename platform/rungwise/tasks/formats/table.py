"""Texts and pairs in TSV, CSV, JSON or JSON Lines, with a stated mapping of the columns.

Published tables with their columns filled in: GLUE's tasks, SICK, STS, SWAG, CODAH and DREAM.

presets.yaml has the table of each, by the kind of the format and the values of its keys.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config, validate
from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import (
    Damage,
    FormatConfig,
    Labels,
    label_name,
    label_names,
    quote,
    words,
)
from rungwise.tasks.formats.choice import ChoiceFormat
from rungwise.tasks.formats.records import Column, RecordsFormat, TextColumn, plain
from rungwise.tasks.kinds.examples import Example, Kind, Text


class ColumnsConfig(Config):
    """The columns of a table: names in the header, indexes from 0, or JSON fields, with a dot for
    nested ones. The texts of several columns are joined."""

    text: TextColumn = "text"
    second: TextColumn | None = None  # second text of a pair
    label: Column | None = None  # the class, in classification
    # any number of labels: a list, text with `label_separator`, or columns of 0 and 1
    labels: TextColumn | None = None
    score: Column | None = None  # the number to predict, in regression
    target: TextColumn | None = None  # the text to write, in generation

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if len(self.targets) > 1:
            raise ValueError(f"{' and '.join(self.targets)} are both set; a table has one target")
        if self.second is not None and self.target is not None:
            raise ValueError(
                "second and target are both set, and one text is written after one other; join the "
                "columns of the first: text: [title, body]"
            )
        if any(isinstance(value, int) and value < 0 for _, value in self):
            raise ValueError("an index of a column is 0 or more")
        return self

    @property
    def targets(self) -> list[str]:
        """The target keys that are set."""
        return [
            key for key in ("label", "labels", "score", "target") if getattr(self, key) is not None
        ]


class TableFormat(RecordsFormat):
    """A table with one example per row or, in JSON, per object."""

    kind: Literal["table"] = "table"
    columns: ColumnsConfig
    # {value in the file: name}, or a list of the allowed values; null: any value
    labels: Labels | None = None
    label_separator: str = Field(default=",", min_length=1)  # separates several labels in one text
    # cut a label off here, such as at the colon of `coarse:fine`; null: take all of it
    label_until: str | None = Field(default=None, min_length=1)
    # leave out rows with these labels or scores, such as SNLI's "-", or "" for none
    skip_labels: tuple[str, ...] = ()
    score_range: tuple[float, float] | None = None  # lowest and highest score allowed; null: any

    @property
    def task_kind(self) -> Kind:
        if self.columns.labels is not None:
            return "multilabel"
        if self.columns.target is not None:
            return "generation"
        return "classification" if self.columns.score is None else "regression"

    @property
    def stated_labels(self) -> tuple[str, ...]:
        several = self.columns.labels
        if self.labels is None and isinstance(several, tuple):
            return tuple(map(str, several))
        return label_names(self.labels)

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Text]:
        """Yield the examples of a file; their target is None if there is no target column."""
        for line, row in self.records(file, split, counts):
            where = f"{file.uri}:{line}"
            with self.skip_damage(counts, row):
                values = self._values_of_labels(row, where)
                if self.label_until is not None:
                    values = [value.partition(self.label_until)[0] for value in values]
                score = [plain(row["columns.score"])] if "columns.score" in row else []
                if not {*self.skip_labels}.isdisjoint([*values, *score]):
                    counts["rows_dropped_for_their_label"] += 1
                    continue
                names = [label_name(each, self.labels, where) for each in values]
                target = names[0] if names else None
                if "columns.labels" in row:
                    target = tuple(sorted({*names}))
                elif "columns.score" in row:
                    target = self._score(row["columns.score"], where)
                elif "columns.target" in row:
                    target = words(row["columns.target"], where, "the target")
                text, second = words(row["columns.text"], where, "the text"), None
                if "columns.second" in row:
                    second = words(row["columns.second"], where, "the second text")
                yield Text(f"{file.name}:{line}", text, second, target)

    def _values_of_labels(self, row: Mapping[str, Any], where: str) -> list[str]:
        if "columns.label" in row:
            return [_label_text(row["columns.label"], where)]
        value = row.get("columns.labels", [])
        if isinstance(self.columns.labels, tuple):
            marked = zip(self.columns.labels, value, strict=True)
            return [str(column) for column, mark in marked if _is_marked(mark, where)]
        if isinstance(value, str):
            return [each.strip() for each in value.split(self.label_separator) if each.strip()]
        several = value if isinstance(value, list) else [value]
        return [_label_text(each, where) for each in several]

    def _score(self, value: Any, where: str) -> float:
        # A comma before three digits may separate thousands, unless others separate columns.
        is_comma = isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value.strip())
        if isinstance(value, str) and (is_comma or self.delimiter == ";"):
            value = value.replace(",", ".")
        try:
            # float(True) is 1.0, but `true` among scores is a mistake.
            score = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            score = math.nan
        if not math.isfinite(score):
            raise Damage(
                f"{where}: expected a number as the score, found {quote(value)}; mend the line, or "
                "change data.format.columns.score",
                "their_score",
            )
        lowest, highest = self.score_range or (-math.inf, math.inf)
        if not lowest <= score <= highest:
            raise Damage(
                f"{where}: expected a score from {lowest:g} to {highest:g}, found {score:g}; mend "
                "the line, or change data.format.score_range",
                "their_score",
            )
        return score


def _is_marked(value: Any, where: str) -> bool:
    mark = str(value).strip().lower()
    if mark not in ("0", "1", "0.0", "1.0", "false", "true"):
        raise Damage(
            f"{where}: expected 0 or 1 in each column of a label, found {quote(value)}; mend the "
            "line, or change data.format.columns.labels",
            "their_label",
        )
    return mark in ("1", "1.0", "true")


def _label_text(value: Any, where: str) -> str:
    """Return a label as text; in JSON it may be an integer, a boolean, or a list of one of them."""
    match value:
        case [only]:
            return _label_text(only, where)
        case bool():
            return "true" if value else "false"
        case str() | int():
            return str(value).strip()
    raise Damage(
        f"{where}: a label must be text or a whole number, or a list of one, found {quote(value)}; "
        "mend the line, or change data.format.columns.label",
        "their_label",
    )


_DECIMAL_COMMA = re.compile(r"[-+]?\d*,(?:\d{1,2}|\d{4,})")
_FILE = "presets.yaml"

GlueTask = Literal[
    "CoLA", "SST-2", "MRPC", "QQP", "STS-B", "MNLI", "SNLI", "QNLI", "RTE", "WNLI", "AX"
]


class _PublishedTable(Config):
    format: Annotated[TableFormat | ChoiceFormat, Field(discriminator="kind")]
    metric: str | None = None  # of the benchmark; None: the default of the kind of task


@functools.cache
def _published_tables() -> dict[str, _PublishedTable]:
    text = (resources.files("rungwise.tasks.formats") / _FILE).read_text("utf-8")
    entries = yaml.safe_load(text).items()
    return {name: validate(_PublishedTable, entry, f"{_FILE}: {name}") for name, entry in entries}


class _Preset(FormatConfig):
    @property
    def _published(self) -> _PublishedTable:
        keys = self.model_dump(exclude={*FormatConfig.model_fields})
        return _published_tables()[" ".join(keys.values())]

    @property
    def table(self) -> TableFormat | ChoiceFormat:
        """The table with its columns filled in."""
        return self._published.format

    @property
    def task_kind(self) -> Kind:
        return self.table.task_kind

    @property
    def stated_labels(self) -> tuple[str, ...]:
        return self.table.stated_labels

    @property
    def default_metric(self) -> str | None:
        return self._published.metric

    def read(self, file: SourceFile, split: str, counts: Counter[str]) -> Iterator[Example]:
        keys = self.model_dump(include={*FormatConfig.model_fields})
        return self.table.model_copy(update=keys).read(file, split, counts)


class GlueFormat(_Preset):
    """A task of GLUE, or SNLI in the same layout, by the benchmark's name for it."""

    kind: Literal["glue"] = "glue"
    task: GlueTask


class SickFormat(_Preset):
    """SICK: relatedness from 1 to 5, or entailment, of pairs of sentences."""

    kind: Literal["sick"] = "sick"
    target: Literal["relatedness", "entailment"] = "relatedness"
    # SICK.txt, which has all splits, or the three files of SemEval-2014
    release: Literal["full", "semeval"] = "full"


class StsFormat(_Preset):
    """The STS benchmark: similarity from 0 to 5."""

    kind: Literal["sts"] = "sts"
    layout: Literal["original", "csv"] = "original"  # with tabs, or with commas


class SwagFormat(_Preset):
    """SWAG: comma-separated with quoting; the columns are found by the header."""

    kind: Literal["swag"] = "swag"


class CodahFormat(_Preset):
    """CODAH: tab-separated without a header: category, prompt, four endings, label."""

    kind: Literal["codah"] = "codah"


class DreamFormat(_Preset):
    """DREAM and C3, in JSON: a list of [turns, [{question, choice, answer}], id]."""

    kind: Literal["dream"] = "dream"
