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
from pydantic import TypeAdapter
from torch import Tensor, nn

from rungwise.core.artifact import Artifact, find_input
from rungwise.core.config import flatten
from rungwise.core.errors import ConfigError, DataError
from rungwise.models.config import AnyModelConfig, ModelConfig, ObjectiveKind, build_model
from rungwise.pretraining.summary import BeganWith, PretrainSummary
from rungwise.training.checkpoint import MODEL, load_tensors

INITIAL = "initial"  # the input of the stage

_MASKED: tuple[ObjectiveKind, ...] = ("mlm_nsp", "mlm", "sentence_order")
_FRESH = ("bert.pooler.", "nsp.")  # what may be missing in the old model
_MODEL: TypeAdapter[AnyModelConfig] = TypeAdapter(ModelConfig)


def check_initial(
    model: AnyModelConfig, objective: ObjectiveKind, initial: Artifact, instances: Artifact
) -> None:
    """Raise ConfigError where the weights of `initial` cannot go on with these blocks, or on
    instances of another tokenizer, naming the keys."""
    old_model, old_objective = model_of(initial), objective_of(initial)
    old, new = flatten(old_model), flatten(model)
    differing = [key for key in sorted(old | new) if old.get(key) != new.get(key)]
    if differing:
        told = "; ".join(
            f"model.{key} is {new.get(key)}, but there it was {old.get(key)}" for key in differing
        )
        raise ConfigError(f"{_named(initial)} are of another model: {told}; take the same model")
    if objective != old_objective and not (objective in _MASKED and old_objective in _MASKED):
        fitting = _MASKED if old_objective in _MASKED else (old_objective,)
        raise ConfigError(
            f"pretrain.objective.kind is {objective}, but {_named(initial)} were trained on "
            f"{old_objective}; set pretrain.objective.kind={' or '.join(fitting)}"
        )
    trained_on = find_input(initial, "instances").record["inputs"]["tokenizer"]["fingerprint"]
    found = instances.record["inputs"]["tokenizer"]["fingerprint"]
    if found != trained_on:
        raise ConfigError(
            f"the instances are of the tokenizer {found}, but {_named(initial)} were trained with "
            f"the tokenizer {trained_on}, so their ids mean other tokens; build the instances with "
            "that one (block tokenizer)"
        )


def load_initial(model: nn.Module, initial: Artifact) -> dict[str, Tensor]:
    """Put the weights of `initial` into `model`; fresh parts stay as they are.

    Returns what is carried. Raises DataError if the file lacks a tensor that it should have.
    """
    found = load_tensors(initial.folder, MODEL)
    own = model.state_dict()
    missing = [name for name in own if name not in found and not name.startswith(_FRESH)]
    if missing:
        raise DataError(
            f"{initial.folder.path(MODEL)} lacks {missing[0]}; remove the folder to train it again"
        )
    model.load_state_dict({name: found[name] for name in own if name in found}, strict=False)
    return {name: tensor for name, tensor in found.items() if name not in own}


def carried_by(pretrain: Artifact) -> list[str]:
    """The names of the tensors in the file of `pretrain` that are not of the model it trained."""
    began_with = PretrainSummary.of(pretrain).began_with
    return [] if began_with is None else list(began_with.carried)


def began_with(model: nn.Module, initial: Artifact) -> BeganWith:
    """What a run that began with `initial` says of it."""
    own = set(model.state_dict())
    vocab_size = PretrainSummary.of(initial).vocab_size
    with torch.device("meta"):
        old = build_model(model_of(initial), vocab_size, objective_of(initial)).state_dict()
    had = {*old, *carried_by(initial)}
    return BeganWith(
        fingerprint=initial.fingerprint,
        label=initial.label,
        objective=objective_of(initial),
        fresh=tuple(sorted(own - had)),
        carried=tuple(sorted(had - own)),
    )


def model_of(pretrain: Artifact) -> AnyModelConfig:
    """The model block that the artifact was trained with."""
    return _MODEL.validate_python(pretrain.record["config"]["model"])


def objective_of(pretrain: Artifact) -> ObjectiveKind:
    """The objective that the artifact was trained on."""
    return pretrain.record["config"]["pretrain"]["objective"]["kind"]


def _named(initial: Artifact) -> str:
    return f"the weights this run begins with ({initial.label}-{initial.fingerprint})"
