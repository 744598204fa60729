"""The summary of instances: the manifest of their shards, and what holds over all of them; and the
stages, for planning (building.py builds the shards)."""

import dataclasses
from collections import Counter

from rungwise.core.lazy import LazyFunction
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.summary import PerSplit, Summary, SummaryPart
from rungwise.core.tokens import SpecialIds


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
    """The summary of finished instances.

    `text_bytes` is UTF-8 with sentences joined by a space. `statistics` are those of the kind.
    `length_histogram` counts rows by length in equal steps up to the longest. `unigram_loss` is
    that of the tokens (tokenizer/token_stage.py). `labels` are the
    names of the labels of rows, by number; () where rows have none.
    """

    kind: str
    sequence_length: int
    files: tuple[ShardFile, ...]
    vocab_size: int
    special: SpecialIds
    instances: PerSplit
    tokens: int
    text_bytes: PerSplit
    statistics: dict[str, int | float]
    length_histogram: tuple[int, ...]
    unigram_loss: float
    labels: tuple[str, ...] = ()

    def split_files(self, split: str) -> list[ShardFile]:
        return [row for row in self.files if row.split == split]

    def instances_by_source(self, split: str) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for row in self.split_files(split):
            counts[row.source] += row.instances
        return dict(counts)


INSTANCES = StageType(
    "instances",
    6,
    LazyFunction("rungwise.instances.building:build_instances"),
    InstancesSummary,
    identity=lambda config: config.identity,
    resumes=True,
)
LONGER_INSTANCES = dataclasses.replace(INSTANCES, name="longer_instances")
