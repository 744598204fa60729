"""The kinds of instances: their configs, and the functions that build and check their shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from rungwise.core.stages.artifact import Artifact
from rungwise.instances import (
    blocks,
    causal,
    pairs,
    sentence_order,
)
from rungwise.instances.blocks import MaskedBlocksConfig
from rungwise.instances.causal import CausalConfig
from rungwise.instances.masked_batch import MaskedConfig
from rungwise.instances.pairs import MaskedPairsConfig
from rungwise.instances.sentence_order import SentenceOrderConfig
from rungwise.instances.text import Built
from rungwise.tokens.config import TokensConfig

AnyInstancesConfig = MaskedPairsConfig | MaskedBlocksConfig | SentenceOrderConfig | CausalConfig
InstancesConfig = Annotated[AnyInstancesConfig, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[AnyInstancesConfig] = TypeAdapter(InstancesConfig)


@dataclass(frozen=True)
class Kind:
    """The functions of one kind of instance. `build` turns a text into a shard, `check` checks a
    shard and returns its counts, `statistics` turns the summed counts into shares."""

    build: Callable[..., Built]
    check: Callable[..., dict[str, Any]]
    statistics: Callable[..., dict[str, Any]]


KINDS: dict[str, Kind] = {
    "masked_pairs": Kind(pairs.build, pairs.check, pairs.statistics),
    "masked_blocks": Kind(blocks.build, blocks.check, blocks.statistics),
    "sentence_order": Kind(sentence_order.build, sentence_order.check, sentence_order.statistics),
    "causal": Kind(causal.build, causal.check, causal.statistics),
}


def config_of(instances: Artifact) -> AnyInstancesConfig:
    """The config that an instances artifact was built with."""
    return _ADAPTER.validate_python(instances.record["config"])


def masked_config_of(instances: Artifact) -> MaskedConfig:
    """The config of an instances artifact of a masked kind."""
    config = config_of(instances)
    assert isinstance(config, MaskedConfig), f"{config.kind} has no masks"
    return config


def tokens_config(config: AnyInstancesConfig) -> TokensConfig:
    """The config of the tokens that these instances are built from."""
    if not isinstance(config, MaskedConfig) or config.masking.unit == "token":
        return TokensConfig()
    spans = config.masking.unit == "phrase"
    return TokensConfig(units=True, mask_units=config.mask_units, spans=spans)


def identity(config: AnyInstancesConfig) -> dict[str, Any]:
    """The part of the config that decides the result; mask units already decided the tokens."""
    plain = config.model_dump(mode="json")
    plain.pop("mask_units", None)
    return plain
