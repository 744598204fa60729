"""Imported weights, from which a pretraining can start as from a finished one.

serving/hugging_face/stage.py reads their format; this file holds what initial.py must know of the
artifact.
"""

from __future__ import annotations

from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.core.stages.summary import Summary
from rungwise.models.config import ModelConfig

IMPORTED = "initial"  # the name of the stage


class ImportConfig(Config):
    """Where the weights are; they are known by their bytes and not by their place."""

    path: str = Field(min_length=1)


class ImportSummary(Summary):
    """The imported model, with the rows of its vocabulary, the last of them for new words."""

    model: ModelConfig
    vocab_size: int
    new_words: int
