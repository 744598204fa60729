"""What a finished pretrain stage left: its model with its weights, and its tokenizer."""

from __future__ import annotations

from rungwise import artifact as artifacts
from rungwise.artifact import Artifact
from rungwise.config import validate
from rungwise.errors import DataError
from rungwise.models.config import PretrainingModel, build_model
from rungwise.storage import Folder
from rungwise.training.checkpoint import MODEL, load_tensors
from rungwise.training.trainer import PretrainStageConfig


def config_of(pretrain: Artifact) -> PretrainStageConfig:
    """The two blocks of the recipe that the artifact was trained with."""
    return validate(PretrainStageConfig, pretrain.record["config"])


def load_model(pretrain: Artifact) -> PretrainingModel:
    """The pretrained model of an artifact, with the heads it was trained with, on the CPU."""
    config = config_of(pretrain)
    model = build_model(
        config.model, pretrain.summary["vocab_size"], config.pretrain.objective.kind
    )
    model.load_state_dict(load_tensors(pretrain.folder, MODEL))
    return model.eval()


def find_input(artifact: Artifact, stage: str) -> Artifact:
    """The artifact of `stage` that `artifact` was made of.

    Raises DataError if it is not below the same root.
    """
    made_of = artifact.record["inputs"][stage]
    root = Folder.at(artifact.folder.uri.rsplit("/", 2)[0])
    folder = artifacts.folder_of(root, made_of["stage"], "", made_of["fingerprint"])
    found = artifacts.load(folder)
    if found is None:
        raise DataError(
            f"the {stage} that {artifact.folder.uri} was made of are not below the same root: "
            f"expected a finished artifact {made_of['fingerprint']} in {root.uri}/{stage}"
        )
    return found
