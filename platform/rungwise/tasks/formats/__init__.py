"""Published formats of task data, a config block each; and how a format is guessed from a file.

The union of blocks is below. A new format derives from `base.FormatConfig`.
"""

from typing import Annotated

from pydantic import Field

from rungwise.tasks.formats.choice import ChoiceFormat
from rungwise.tasks.formats.columns import ConllFormat, ConlluFormat, ParsesFormat
from rungwise.tasks.formats.squad import SquadFormat
from rungwise.tasks.formats.table import (
    CodahFormat,
    DreamFormat,
    GlueFormat,
    SickFormat,
    StsFormat,
    SwagFormat,
    TableFormat,
)
from rungwise.tasks.formats.tagged import MarksFormat, TokensFormat
from rungwise.tasks.formats.texts import FoldersFormat, ParallelFormat

TaggedFormat = Annotated[
    TableFormat
    | FoldersFormat
    | ParallelFormat
    | ParsesFormat
    | GlueFormat
    | ConllFormat
    | ConlluFormat
    | TokensFormat
    | MarksFormat
    | SquadFormat
    | ChoiceFormat
    | SwagFormat
    | CodahFormat
    | DreamFormat
    | SickFormat
    | StsFormat,
    Field(discriminator="kind"),
]
