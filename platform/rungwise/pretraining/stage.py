"""Pretrain stage: a family's weights, by the way of fitting that it takes.

kind of pretrain   how                                            module
gradient           steps on batches, on the workers of Ray Train  gradient.py
"""

from __future__ import annotations

from typing import Any

from rungwise.core.artifact import Artifact
from rungwise.core.context import Context
from rungwise.core.storage import Folder
from rungwise.pretraining import gradient
from rungwise.pretraining.config import PretrainStageConfig
from rungwise.training.config import GradientConfig


def run(
    config: PretrainStageConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> dict[str, Any]:
    """Fit the model and leave its files; the summary.

    Raises UserError where the instances do not fit the model, or the fitting fails.
    """
    match config.pretrain:
        case GradientConfig():
            return gradient.run(config, inputs, output, context)
