"""Published tables with their columns filled in: GLUE's tasks, SICK, STS, SWAG, CODAH and DREAM.

presets.yaml has the table of each, by the kind of the format and the values of its keys.
"""

import functools
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from typing import Annotated, Literal

import yaml
from pydantic import Field

from rungwise.core.configuration.config import Config, validate
from rungwise.core.storage.source_files import SourceFile
from rungwise.tasks.formats.base import FormatConfig
from rungwise.tasks.formats.choice import ChoiceFormat
from rungwise.tasks.formats.table import TableFormat
from rungwise.tasks.kinds.examples import Example, Kind

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
