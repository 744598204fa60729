"""Formats of labelled files, a config block each. A new one derives from `base.FormatConfig`."""

from typing import Annotated

from pydantic import Field

from rungwise.tasks.formats.tagged import ConllFormat, ConlluFormat, MarksFormat, TokensFormat
from rungwise.tasks.formats.texts import (
    ChoiceFormat,
    FoldersFormat,
    ParallelFormat,
    ParsesFormat,
    SquadFormat,
    TableFormat,
)

TaggedFormat = Annotated[
    TableFormat
    | FoldersFormat
    | ParallelFormat
    | ParsesFormat
    | ConllFormat
    | ConlluFormat
    | TokensFormat
    | MarksFormat
    | SquadFormat
    | ChoiceFormat,
    Field(discriminator="kind"),
]
