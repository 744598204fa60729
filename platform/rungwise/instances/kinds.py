"""The kinds of instances as one union tagged by `kind`. A new kind adds its name here."""

from typing import Annotated

from pydantic import Field, TypeAdapter

from rungwise.core.stages.artifact import Artifact
from rungwise.instances.causal import CausalAndMaskedConfig, CausalConfig, CorruptedWordsConfig
from rungwise.instances.kind import Kind
from rungwise.instances.pairs import MaskedBlocksConfig, MaskedPairsConfig, SentenceOrderConfig
from rungwise.instances.sentence_runs import SentenceRunsConfig
from rungwise.instances.texts import (
    AlignedLinesConfig,
    DenoisedSpansConfig,
    DocumentRowsConfig,
    LabelledPairsConfig,
)

InstancesConfig = Annotated[
    MaskedPairsConfig
    | MaskedBlocksConfig
    | CausalAndMaskedConfig
    | DenoisedSpansConfig
    | SentenceOrderConfig
    | CausalConfig
    | CorruptedWordsConfig
    | SentenceRunsConfig
    | LabelledPairsConfig
    | AlignedLinesConfig
    | DocumentRowsConfig,
    Field(discriminator="kind"),
]
_ADAPTER: TypeAdapter[Kind] = TypeAdapter(InstancesConfig)


def read_kind(instances: Artifact) -> Kind:
    """The config that an instances artifact was built with."""
    return _ADAPTER.validate_python(instances.record["config"])
