"""Continued pretraining: a run that begins with the weights of a finished one and not with a draw.

Howard & Ruder 2018 (arXiv:1801.06146) and Gururangan et al. 2020 (arXiv:2004.10964): the weights go
over, and nothing else. Step, moments, learning rate and order of the data begin anew.

What goes over is what has the same name. Objectives that mask words share the encoder and the head
for words and differ in the rest:

    fresh    parts that the run trains and that the old model lacked, such as the pooler and the
             pair head of `mlm_nsp` after `mlm`; they are drawn, as at any start
    carried  parts that the old model has and the run does not train, such as the same two in `mlm`
             after `mlm_nsp`; they are written beside the new weights as they were

Without the second, sentences without a successor could only be trained on at the price of a trained
pooler, which fine-tuning puts its head on. A carried part was trained on an older encoder.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rungwise.core.artifact import Artifact, find_input
from rungwise.core.config import flatten, validate
from rungwise.core.errors import ConfigError, DataError
from rungwise.models.family import Family
from rungwise.models.objectives import Objective
from rungwise.pretraining.config import PretrainStageConfig
from rungwise.pretraining.summary import BeganWith, PretrainSummary
from rungwise.training.checkpoint import MODEL, load_tensors

INITIAL = "initial"  # the input of the stage


def check_initial(
    model: Family, objective: Objective, initial: Artifact, instances: Artifact
) -> None:
    """Raise ConfigError where the weights of `initial` cannot go on with these blocks, or on
    instances of another tokenizer, naming the keys."""
    before = config_of(initial)
    old, new = flatten(before.model), flatten(model)
    differing = [key for key in sorted(old | new) if old.get(key) != new.get(key)]
    if differing:
        told = "; ".join(
            f"model.{key} is {new.get(key)}, but there it was {old.get(key)}" for key in differing
        )
        raise ConfigError(f"{_named(initial)} are of another model: {told}; take the same model")
    fitting = [each.name for each in model.objectives if _goes_on(before.objective, each)]
    if objective.name not in fitting:
        raise ConfigError(
            f"pretrain.objective is {objective.name}, but {_named(initial)} were trained on "
            f"{before.objective.name}; set pretrain.objective={' or '.join(fitting)}"
        )
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
    optional = config_of(initial).model.optional_tensors
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
    own, before = set(model.state_dict()), config_of(initial)
    vocab_size = PretrainSummary.of(initial).vocab_size
    with torch.device("meta"):
        old = before.model.build(vocab_size, before.objective).state_dict()
    had = {*old, *carried_by(initial)}
    return BeganWith(
        fingerprint=initial.fingerprint,
        label=initial.label,
        objective=before.objective.name,
        fresh=tuple(sorted(own - had)),
        carried=tuple(sorted(had - own)),
    )


def config_of(pretrain: Artifact) -> PretrainStageConfig:
    """The two blocks of the recipe that the artifact was trained with."""
    return validate(PretrainStageConfig, pretrain.record["config"])


def _goes_on(old: Objective, new: Objective) -> bool:
    return new == old or (new.masks and old.masks)


def _named(initial: Artifact) -> str:
    return f"the weights this run begins with ({initial.label}-{initial.fingerprint})"
