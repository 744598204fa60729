"""The kinds of instances: the config of each, and the functions that build and check its shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from rungwise.core.artifact import Artifact
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
    """The functions of one kind of instance.

    `build` makes a shard from a text, `check` checks it against the contract and counts,
    `statistics` turns the counts of all shards into shares.
    """

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
    """The config of an instances artifact whose kind is known to be masked."""
    config = config_of(instances)
    assert isinstance(config, MaskedConfig), f"{config.kind} has no masks"
    return config


def tokens_config(config: AnyInstancesConfig) -> TokensConfig:
    """The tokens that instances of this config are built from."""
    if not isinstance(config, MaskedConfig) or config.masking.unit == "token":
        return TokensConfig()
    spans = config.masking.unit == "phrase"
    return TokensConfig(mask_units=config.mask_units, spans=spans)


def identity(config: AnyInstancesConfig) -> dict[str, Any]:
    """The part of the config that decides the result: all but the mask units, which have decided
    the tokens."""
    plain = config.model_dump(mode="json")
    plain.pop("mask_units", None)
    return plain
