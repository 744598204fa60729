"""Instances as a stage, for planning: the kinds as one union, which a new kind joins, and the
summary with the manifest of shards (building.py builds them)."""

import dataclasses
from typing import Annotated

from pydantic import Field, TypeAdapter

from rungwise.core.stages.artifact import Artifact, PerSplit, Summary, SummaryPart
from rungwise.core.stages.stage import LazyFunction, StageType
from rungwise.core.tokens import SpecialIds
from rungwise.instances.pairs import MaskedBlocksConfig, MaskedPairsConfig, SentenceOrderConfig
from rungwise.instances.texts import (
    AlignedLinesConfig,
    CausalAndMaskedConfig,
    CausalConfig,
    CorruptedWordsConfig,
    DenoisedSpansConfig,
    DocumentRowsConfig,
    LabelledPairsConfig,
    SentenceRunsConfig,
)


class ShardFile(SummaryPart):
    """One shard of instances; `source` is the name of its corpus source."""

    file: str
    split: str
    source: str
    sha256: str
    bytes: int
    documents: int
    instances: int
    tokens: int


class InstancesSummary(Summary):
    """The summary of finished instances. `text_bytes` is UTF-8 with sentences joined by a space.
    `statistics` are those of the kind. `unigram_loss` is that of the tokens
    (tokenizer/token_stage.py). `labels` are the names of the labels of rows, by number; () where
    rows have none."""

    kind: str
    sequence_length: int
    files: tuple[ShardFile, ...]
    vocab_size: int
    special: SpecialIds
    instances: PerSplit
    tokens: int
    text_bytes: PerSplit
    statistics: dict[str, int | float]
    unigram_loss: float
    labels: tuple[str, ...] = ()

    def split_files(self, split: str) -> list[ShardFile]:
        return [row for row in self.files if row.split == split]


INSTANCES = StageType(
    "instances",
    7,
    LazyFunction("rungwise.instances.building:build_instances"),
    InstancesSummary,
    identity=lambda config: config.identity,
    resumes=True,
)
LONGER_INSTANCES = dataclasses.replace(INSTANCES, name="longer_instances")


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
_ADAPTER: TypeAdapter[InstancesConfig] = TypeAdapter(InstancesConfig)


def read_kind(instances: Artifact) -> InstancesConfig:
    """The config that an instances artifact was built with."""
    return _ADAPTER.validate_python(instances.record["config"])
