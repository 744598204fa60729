"""The blocks `model` and `pretrain` of a recipe: a family, and the way its weights come about."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from rungwise.core.config import Config
from rungwise.models.config import ModelConfig
from rungwise.training.config import GradientConfig


def _kind(block: Any) -> str | None:
    """The tag of a `pretrain` block: `gradient` where it names none."""
    return (
        block.get("kind", "gradient") if isinstance(block, dict) else getattr(block, "kind", None)
    )


PretrainConfig = Annotated[Annotated[GradientConfig, Tag("gradient")], Discriminator(_kind)]


class PretrainStageConfig(Config):
    """The two blocks of a recipe that decide a pretrained model."""

    model: ModelConfig
    pretrain: PretrainConfig
