"""Continued pretraining: a run that starts from finished weights instead of a random draw.

As in Howard & Ruder 2018 (arXiv:1801.06146) and Gururangan et al. 2020 (arXiv:2004.10964), only the
weights are taken over. Step, moments, learning rate and data order start anew.

Tensors are matched by name. Objectives that mask words share the encoder and the head for words and
differ in the rest:

    fresh    parts that the run trains and the old model lacks, such as the pooler and the pair
             head of `mlm_nsp` after `mlm`; they are drawn at random
    carried  parts that the old model has and the run does not train, such as the same two in `mlm`
             after `mlm_nsp`; they are written unchanged beside the new weights

Imported weights (imported.py) are handled likewise: they have the encoder, and perhaps heads.

Carrying keeps the trained pooler, on which fine-tuning puts its head, when a run trains on
sentences without a successor. A carried part was trained on an older encoder.
"""

from __future__ import annotations

import safetensors
import torch
from torch import Tensor, nn

from rungwise.core.configuration.canonical import flatten
from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.stages.artifact import Artifact, find_input
from rungwise.models.family import Family
from rungwise.models.losses.objectives import Objective
from rungwise.pretraining.config import PretrainStageConfig
from rungwise.pretraining.imported import IMPORTED, ImportSummary
from rungwise.pretraining.summary import BeganWith, PretrainSummary
from rungwise.training.tensor_files import MODEL, load_tensors

INITIAL = "initial"  # the input of the stage
# Keys of a model that say how it is trained, and do not affect tensors.
NOT_OF_WEIGHTS = ("dropout", "initializer_range", "crosses_documents")


def check_initial(
    model: Family, objective: Objective, initial: Artifact, instances: Artifact
) -> None:
    """Raise ConfigError, naming the keys, if the weights of `initial` do not fit these blocks, or
    the instances are of another tokenizer."""
    before, objective_before = _trained(initial)
    old, new = flatten(before), flatten(model)
    differing = [key for key in sorted(old | new) if old.get(key) != new.get(key)]
    if is_imported(initial):
        differing = [key for key in differing if key not in NOT_OF_WEIGHTS]
    if differing:
        told = "; ".join(
            f"model.{key} is {new.get(key)}, but there it was {old.get(key)}" for key in differing
        )
        raise ConfigError(f"{_named(initial)} are of another model: {told}; take the same model")
    fitting = [each.name for each in model.objectives if _goes_on(objective_before, each)]
    if objective.name not in fitting:
        raise ConfigError(
            f"pretrain.objective is {objective.name}, but {_named(initial)} were trained on "
            f"{objective_before.name}; set pretrain.objective={' or '.join(fitting)}"
        )
    if is_imported(initial):
        trained_on = initial.record["inputs"]["tokenizer"]["fingerprint"]
    else:
        trained_on = _tokenizer_of(find_input(initial, "instances"))
    tokenizer = _tokenizer_of(instances)
    if tokenizer != trained_on:
        raise ConfigError(
            f"the instances are of the tokenizer {tokenizer}, but {_named(initial)} were "
            f"trained with the tokenizer {trained_on}, so their ids mean other tokens; build the "
            "instances with that one (block tokenizer)"
        )


def _tokenizer_of(instances: Artifact) -> str:
    return find_input(instances, "tokens").record["inputs"]["tokenizer"]["fingerprint"]


def load_initial(model: nn.Module, initial: Artifact) -> dict[str, Tensor]:
    """Load the weights of `initial` into `model`; fresh parts stay as they are. Returns the carried
    tensors. Raises DataError if the file lacks a required tensor."""
    saved = load_tensors(initial.folder, MODEL)
    own = model.state_dict()
    required = _required_tensors(initial)
    if missing := [name for name in own if name not in saved and name in required]:
        raise DataError(
            f"{initial.folder.path(MODEL)} lacks {missing[0]}; remove the folder to train it again"
        )
    model.load_state_dict({name: saved[name] for name in own if name in saved}, strict=False)
    return {name: tensor for name, tensor in saved.items() if name not in own}


def _required_tensors(initial: Artifact) -> set[str]:
    """The names of the tensors that the file must have: those of the model before, and of imported
    weights, which may lack any head, those of its body."""
    family, objective = _trained(initial)
    with torch.device("meta"):
        if is_imported(initial):
            return set(family.encoder(objective, 1, 0.0).state_dict())
        return set(family.build(1, objective).state_dict())


def carried_by(pretrain: Artifact) -> list[str]:
    """The names of the tensors in the file of `pretrain` that its run did not train."""
    began_with = PretrainSummary.of(pretrain).began_with
    return [] if began_with is None else list(began_with.carried)


def began_with(model: nn.Module, initial: Artifact) -> BeganWith:
    own, (_, objective) = set(model.state_dict()), _trained(initial)
    with safetensors.safe_open(initial.folder.local(MODEL), framework="pt") as file:
        had = set(file.keys())
    return BeganWith(
        fingerprint=initial.fingerprint,
        label=initial.label,
        objective=objective.name,
        fresh=tuple(sorted(own - had)),
        carried=tuple(sorted(had - own)),
    )


def config_of(pretrain: Artifact) -> PretrainStageConfig:
    """The two blocks of the recipe that the artifact was trained with."""
    return validate(PretrainStageConfig, pretrain.record["config"])


def is_imported(initial: Artifact) -> bool:
    return initial.stage == IMPORTED


def _trained(initial: Artifact) -> tuple[Family, Objective]:
    """The model of these weights and its objective. Imported weights do not record it, so it is
    their family's first objective."""
    if is_imported(initial):
        model = ImportSummary.of(initial).model
        return model, model.objectives[0]
    config = config_of(initial)
    return config.model, config.objective


def _goes_on(old: Objective, new: Objective) -> bool:
    # Training on vectors of texts leaves no head for words.
    return new == old or (new.masks and old.masks and new.sentences >= old.sentences)


def _named(initial: Artifact) -> str:
    return f"the weights this run begins with ({initial.label}-{initial.fingerprint})"
