"""The config of tokens: derived from what the instances need, not a block of a recipe."""

from typing import Any

from rungwise.core.configuration.config import Config
from rungwise.tokens.mask_units import MaskUnitsConfig
from rungwise.tokens.segmenters import list_digest

_LISTS = {"word_list", "phrases"}


class TokensConfig(Config):
    """Whether to mark where mask units begin, and which there are besides words; with `spans`
    those of the corpus are units too."""

    units: bool = False
    mask_units: MaskUnitsConfig = MaskUnitsConfig()
    spans: bool = False


def identity(config: TokensConfig) -> dict[str, Any]:
    """Return the part of the config that decides the result: all but the paths of lists."""
    return config.model_dump(mode="json", exclude={"mask_units": _LISTS})


def input_digests(config: TokensConfig) -> dict[str, Any]:
    """Return digests of the lists that the config reads; raises DataError if one is missing."""
    paths = config.mask_units.model_dump(include=_LISTS, exclude_none=True)
    return {name: {"sha256": list_digest(name, path)} for name, path in paths.items()}
