"""Pretrain stage: fits a family's weights in the way that it takes.

kind of pretrain   how                                            module
gradient           steps on batches, on the workers of Ray Train  gradient.py
counts             sums over the shards, by Ray Data              counts.py
asynchronous       word by word over the text, by Ray tasks       asynchronous.py
cooccurrence       sums as above, then epochs over their cells    cooccurrence.py

Each module is imported by the process that fits with it: a plan needs none.
"""

from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import Later, StageType
from rungwise.core.storage.folder import Folder
from rungwise.pretraining import prolonging
from rungwise.pretraining.config import VERSION, FitConfig, PretrainStageConfig
from rungwise.pretraining.summary import PretrainSummary
from rungwise.training.config import GradientConfig

_FITTERS = {
    "gradient": Later("rungwise.pretraining.gradient:pretrain_by_gradient"),
    "counts": Later("rungwise.pretraining.counts:pretrain_by_counts"),
    "asynchronous": Later("rungwise.pretraining.asynchronous:pretrain_asynchronously"),
    "cooccurrence": Later("rungwise.pretraining.cooccurrence:pretrain_by_cooccurrence"),
}


def pretrain_model(
    config: PretrainStageConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> PretrainSummary:
    """Fit the model and write its files. Raises UserError if the instances do not fit the model, or
    the fitting fails."""
    fitter = _FITTERS[config.pretrain.kind]
    return fitter(FitConfig(config.model, config.pretrain), inputs, output, context)


def _trains_alone(config: PretrainStageConfig, compute: ComputeConfig) -> bool:
    return isinstance(config.pretrain, GradientConfig) and compute.is_one_process


PRETRAIN = StageType(
    "pretrain",
    VERSION,
    pretrain_model,
    PretrainSummary,
    identity=PretrainStageConfig.identity,
    goes_on_from=prolonging.plan_earlier,
    resumes=True,
    trains_alone=_trains_alone,
)
