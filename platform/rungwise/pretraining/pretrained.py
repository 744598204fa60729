"""What a finished pretrain stage left: its model with its weights, and its tokenizer."""

from __future__ import annotations

from rungwise.core.artifact import Artifact
from rungwise.core.config import validate
from rungwise.models.config import PretrainingModel, build_model
from rungwise.pretraining.config import PretrainStageConfig
from rungwise.pretraining.initial import carried_by
from rungwise.pretraining.summary import PretrainSummary
from rungwise.training.checkpoint import MODEL, load_tensors


def config_of(pretrain: Artifact) -> PretrainStageConfig:
    """The two blocks of the recipe that the artifact was trained with."""
    return validate(PretrainStageConfig, pretrain.record["config"])


def load_model(pretrain: Artifact) -> PretrainingModel:
    """The pretrained model of an artifact, with the heads it was trained with, on the CPU."""
    config = config_of(pretrain)
    model = build_model(
        config.model, PretrainSummary.of(pretrain).vocab_size, config.pretrain.objective.kind
    )
    found = load_tensors(pretrain.folder, MODEL)
    for name in carried_by(pretrain):
        del found[name]
    model.load_state_dict(found)
    return model.eval()
