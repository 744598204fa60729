"""A finished pretrain stage as a usable model: with its capabilities, or as a bare module."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact, find_input
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances.summary import InstancesSummary
from rungwise.models.family import LayeredFamily
from rungwise.models.losses.objectives import Objective
from rungwise.models.ngram_model import NextTokenCounts, NgramLanguageModel
from rungwise.models.trained.capabilities import LanguageModel, WordVectors
from rungwise.models.trained.encoders import LayeredEncoder
from rungwise.models.trained.language_models import measure_loss
from rungwise.models.transformer.body import NextTokenModel
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.token_text import TokensFile, split_documents
from rungwise.training.fit_config import BESIDE
from rungwise.training.initial import find_tokens, read_training_config
from rungwise.training.summary import PretrainSummary
from rungwise.training.tensor_files import MODEL, load_tensors, map_arrays


def load_model(
    pretrain: Artifact, special: SpecialIds | None = None, trained: bool = True
) -> object:
    """The trained model on the CPU; its protocols of capabilities.py say what it offers. Without
    `trained`, one fitted by gradient has its random weights. It reads rows up to the length it was
    trained on: later positions may be untrained. `special` are the ids of its tokenizer, by default
    looked up below the same root."""
    config = read_training_config(pretrain)
    if config.pretrain.reads_tokens:
        special = special or TokensSummary.of(find_input(pretrain, "tokens")).special
        family: Any = config.model
        return family.from_tensors(map_arrays(pretrain.folder.local(MODEL)), special)
    special = special or InstancesSummary.of(find_input(pretrain, "instances")).special
    model: Any = config.model.trained(load_module(pretrain, trained), config.objective, special)
    longest = getattr(model, "max_length", None)  # models without a limit may have none
    return model if longest is None else replace(model, max_length=_longest(pretrain, longest))


def find_tokenizer(pretrain: Artifact) -> Artifact:
    """The tokenizer of a finished run. Raises DataError as `find_tokens` does."""
    return find_input(find_tokens(pretrain), "tokenizer")


def load_module(pretrain: Artifact, trained: bool = True) -> nn.Module:
    """The module with its heads, in eval mode on the CPU. Without `trained`, weights are random."""
    config = read_training_config(pretrain)
    with _fix_seed():
        module = config.model.build(PretrainSummary.of(pretrain).vocab_size, config.objective)
    tensors = load_tensors(pretrain.folder, MODEL)
    if not trained:
        weights = {name for name, _ in module.named_parameters()}
        tensors = {name: each for name, each in tensors.items() if name not in weights}
    began_with = PretrainSummary.of(pretrain).began_with
    for name in () if began_with is None else began_with.carried:
        del tensors[name]
    module.load_state_dict(tensors, strict=trained)
    if BESIDE in pretrain.record.get("inputs", {}):
        special = InstancesSummary.of(find_input(pretrain, "instances")).special
        put_beside(module, find_input(pretrain, BESIDE), special)
    return module.eval()


def put_beside(module: nn.Module, counts: Artifact, special: SpecialIds) -> None:
    """Let the logits of `module` be added to the log-probabilities of a model of counts."""
    model = load_model(counts, special)
    assert isinstance(model, NgramLanguageModel)
    assert isinstance(module, NextTokenModel)
    module.beside = NextTokenCounts(model).to(torch.device("cpu"), torch.float32)


@contextmanager
def _fix_seed() -> Iterator[None]:
    """Draw the same random weights each time."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        yield


def load_encoder(pretrain: Artifact, trained: bool = True) -> LayeredEncoder | None:
    """The trained model as an encoder of states, layer by layer, in eval mode and without new
    tokens; None for a family without states. Without `trained`, its weights are random."""
    config, summary = read_training_config(pretrain), PretrainSummary.of(pretrain)
    if not isinstance(config.model, LayeredFamily):
        return None
    with _fix_seed():
        encoder = config.model.encoder(config.objective, summary.vocab_size, dropout=0.0)
    load = encoder.load if trained else encoder.load_spelling
    load(load_tensors(pretrain.folder, MODEL))
    encoder.max_length = _longest(pretrain, encoder.max_length)
    return encoder.eval()


def _longest(pretrain: Artifact, max_length: int | None) -> int | None:
    """The longest row that a model with this limit was trained on; None if it has no limit."""
    run = PretrainSummary.of(pretrain).gradient
    if max_length is None or run is None:
        return max_length
    trained = max((length.sequence_length for length in run.lengths), default=max_length)
    return min(max_length, trained)


def load_word_vectors(pretrain: Artifact) -> WordVectors:
    """The trained model with a vector of each token. Raises ConfigError if it has none."""
    model = load_model(pretrain)
    if not isinstance(model, WordVectors):
        config = read_training_config(pretrain)
        raise ConfigError(
            f"{pretrain.label}-{pretrain.fingerprint} is a {config.model.kind} trained on "
            f"{config.objective.name}, which does not offer WordVectors (a vector of each token); "
            "choose a rung that does"
        )
    return model


def read_split(tokens: Artifact, split: str) -> Iterator[TokenisedText]:
    """Yield the texts of a split, file by file, mapped into memory."""
    for row in TokensSummary.of(tokens).split_files(split):
        yield TokensFile(tokens.folder.local(row.file)).text()


def measure_held_out(
    model: LanguageModel, tokens: Artifact, objective: Objective
) -> dict[str, float]:
    """Measure a model made of arrays on all held-out documents: the loss in nats per token under
    both of its names, perplexity, and bits per byte. Raises DataError without documents."""
    summary = TokensSummary.of(tokens)
    (end,) = summary.special.require("end")
    documents = [
        document
        for text in read_split(tokens, "validation")
        for document in split_documents(text, end)
    ]
    nats, bits_per_byte = measure_loss(model, documents, summary.text_bytes.validation)
    return {
        "loss": nats,
        objective.tokens.loss_key: nats,
        "perplexity": math.exp(nats),
        "bits_per_byte": bits_per_byte,
    }
