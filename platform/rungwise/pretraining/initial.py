"""Continued pretraining: a run that begins with the weights of a finished one and not with a draw.

Howard & Ruder 2018 (arXiv:1801.06146) and Gururangan et al. 2020 (arXiv:2004.10964): the weights go
over, and nothing else. Step, moments, learning rate and order of the data begin anew.

What goes over is what has the same name. Objectives that mask words share the encoder and the head
for words and differ in the rest:

    fresh    parts that the run trains and that the old model lacked, such as the pooler and the
             pair head of `mlm_nsp` after `mlm`; they are drawn, as at any start
    carried  parts that the old model has and the run does not train, such as the same two in `mlm`
             after `mlm_nsp`; they are written beside the new weights as they were

Weights of others (imported.py) are taken up likewise: they have the encoder, and heads or not.

Without the second, sentences without a successor could only be trained on at the price of a trained
pooler, which fine-tuning puts its head on. A carried part was trained on an older encoder.
"""

from __future__ import annotations

from typing import cast

import safetensors
from torch import Tensor, nn

from rungwise.core.artifact import Artifact, find_input
from rungwise.core.config import flatten, validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.models.body import OnBody
from rungwise.models.family import Family
from rungwise.models.objectives import Objective
from rungwise.pretraining.config import PretrainStageConfig
from rungwise.pretraining.imported import IMPORTED, ImportSummary
from rungwise.pretraining.summary import BeganWith, PretrainSummary
from rungwise.training.tensor_files import MODEL, load_tensors

INITIAL = "initial"  # the input of the stage
NOT_OF_WEIGHTS = ("dropout", "initializer_range")  # keys of a model that change no tensor


def check_initial(
    model: Family, objective: Objective, initial: Artifact, instances: Artifact
) -> None:
    """Raise ConfigError where the weights of `initial` cannot go on with these blocks, or on
    instances of another tokenizer, naming the keys."""
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
    """Put the weights of `initial` into `model`; fresh parts stay as they are.

    Returns what is carried. Raises DataError if the file lacks a tensor that it should have.
    """
    saved = load_tensors(initial.folder, MODEL)
    own = model.state_dict()
    trained, _ = _trained(initial)
    optional = trained.optional_tensors
    if is_imported(initial):  # whatever heads it lacks are drawn
        body = cast(OnBody, model).body.name
        optional += tuple(name for name in own if not name.startswith(f"{body}."))
    missing = [name for name in own if name not in saved and not name.startswith(optional)]
    if missing:
        raise DataError(
            f"{initial.folder.path(MODEL)} lacks {missing[0]}; remove the folder to train it again"
        )
    model.load_state_dict({name: saved[name] for name in own if name in saved}, strict=False)
    return {name: tensor for name, tensor in saved.items() if name not in own}


def carried_by(pretrain: Artifact) -> list[str]:
    """The names of the tensors in the file of `pretrain` that are not of the model it trained."""
    began_with = PretrainSummary.of(pretrain).began_with
    return [] if began_with is None else list(began_with.carried)


def began_with(model: nn.Module, initial: Artifact) -> BeganWith:
    """The record of the weights that a run began with."""
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
    """Whether these are weights of others and not of a pretraining here."""
    return initial.stage == IMPORTED


def _trained(initial: Artifact) -> tuple[Family, Objective]:
    """The model of these weights and what they were trained on, as far as that is known: weights of
    others do not tell, and their family's first objective stands for it."""
    if is_imported(initial):
        model = ImportSummary.of(initial).model
        return model, model.objectives[0]
    config = config_of(initial)
    return config.model, config.objective


def _goes_on(old: Objective, new: Objective) -> bool:
    # What gives texts vectors leaves no head for words behind.
    return new == old or (new.masks and old.masks and new.sentences >= old.sentences)


def _named(initial: Artifact) -> str:
    return f"the weights this run begins with ({initial.label}-{initial.fingerprint})"
