"""The config of tokens. It is no block of a recipe: what the instances ask for decides it."""

from __future__ import annotations

from typing import Any

from rungwise.core.config import Config
from rungwise.tokens import mask_units
from rungwise.tokens.mask_units import MaskUnitsConfig


class TokensConfig(Config):
    """The mask units to find; with `spans` those of the corpus are units too."""

    mask_units: MaskUnitsConfig = MaskUnitsConfig()
    spans: bool = False


def identity(config: TokensConfig) -> dict[str, Any]:
    """The part of the config that decides the result: all but the paths of lists."""
    return {"mask_units": mask_units.identity(config.mask_units), "spans": config.spans}


def outside(config: TokensConfig) -> dict[str, Any]:
    """Digests of the lists that the config reads besides its inputs."""
    return mask_units.outside(config.mask_units)
