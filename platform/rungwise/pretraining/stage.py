"""Pretrain stage: fits a family's weights in the way that it takes.

kind of pretrain   how                                            module
gradient           steps on batches, on the workers of Ray Train  gradient.py
counts             sums over the shards, by Ray Data              counts.py
asynchronous       word by word over the text, by Ray tasks       asynchronous.py
cooccurrence       sums as above, then epochs over their cells    cooccurrence.py

Each config names its fitter, whose module is imported by the process that fits: a plan needs none.
"""

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import StageType
from rungwise.core.storage.folder import Folder
from rungwise.pretraining import prolonging
from rungwise.pretraining.config import VERSION, FitConfig, PretrainStageConfig
from rungwise.pretraining.summary import PretrainSummary


def pretrain_model(
    config: PretrainStageConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> PretrainSummary:
    """Fit the model and write its files. Raises UserError if the instances do not fit the model, or
    the fitting fails."""
    fit = FitConfig(config.model, config.pretrain)
    return config.pretrain.fitter(fit, inputs, output, context)


PRETRAIN = StageType(
    "pretrain",
    VERSION,
    pretrain_model,
    PretrainSummary,
    identity=PretrainStageConfig.identity,
    goes_on_from=prolonging.plan_earlier,
    resumes=True,
    trains_alone=lambda config, compute: config.pretrain.trains_alone(compute),
)
