"""Published formats of task data: a config block for each, and a reader for each family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from rungwise.core.storage import SourceFile
from rungwise.tasks.examples import Example
from rungwise.tasks.formats import choice, columns, squad, table
from rungwise.tasks.formats.choice import CodahFormat, DreamFormat, SwagFormat
from rungwise.tasks.formats.columns import ConllFormat, ConlluFormat
from rungwise.tasks.formats.presets import GlueFormat, SickFormat, StsFormat
from rungwise.tasks.formats.squad import SquadFormat
from rungwise.tasks.formats.table import TableFormat

Format = (
    TableFormat
    | GlueFormat
    | ConllFormat
    | ConlluFormat
    | SquadFormat
    | SwagFormat
    | CodahFormat
    | DreamFormat
    | SickFormat
    | StsFormat
)
TaggedFormat = Annotated[Format, Field(discriminator="kind")]


def read(file: SourceFile, form: Format, split: str, counts: Counter[str]) -> Iterator[Example]:
    """Read the examples of one file, in order. `counts` counts those left out, by reason.

    Raises DataError, naming file and line, for data that cannot be used.
    """
    match form:
        case TableFormat():
            yield from table.read(file, form, split, counts)
        case GlueFormat() | SickFormat() | StsFormat():
            yield from table.read(file, form.table, split, counts)
        case ConllFormat() | ConlluFormat():
            yield from columns.read(file, form)
        case SquadFormat():
            yield from squad.read(file, form, counts)
        case SwagFormat() | CodahFormat() | DreamFormat():
            yield from choice.read(file, form)
