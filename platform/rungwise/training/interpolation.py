"""Fitting by interpolation: a gate between two models of earlier stages, on text set aside."""

import time
from typing import Any, cast

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.models.fitting import MixingFamily, fill_arrays
from rungwise.tokenizer.token_stage import TokensSummary
from rungwise.tokenizer.token_text import split_documents
from rungwise.training.fit_config import FitConfig, InterpolationConfig
from rungwise.training.initial import find_tokens
from rungwise.training.pretrained import load_model, measure_held_out, read_split
from rungwise.training.summary import PretrainSummary
from rungwise.training.tensor_files import MODEL, create_arrays

_MOST_TOKENS = 50_000  # that the gate is fitted on; it has some two hundred numbers


def pretrain_by_interpolation(
    config: FitConfig[InterpolationConfig],
    inputs: dict[str, Artifact],
    output: Folder,
    context: Context,
) -> PretrainSummary:
    """Fit the gate, write and measure the model. Raises DataError if no document is set aside."""
    began = time.monotonic()
    artifact, objective = inputs["tokens"], config.objective
    tokens = TokensSummary.of(artifact)
    parts = {name: PretrainSummary.of(inputs[name]) for name in ("counts", "network")}
    (end,) = tokens.special.require("end")
    family = cast(MixingFamily, config.model)
    model: Any = family.mix(
        load_model(inputs["counts"], tokens.special),
        load_model(inputs["network"], tokens.special),
        _draw_unread(artifact, find_tokens(inputs["counts"]), end),
        config.pretrain.seed,
    )
    with output.staged(MODEL) as path:
        fill_arrays(lambda shapes: create_arrays(path, shapes), model.to_tensors())
    seconds = time.monotonic() - began
    final = measure_held_out(model, artifact, objective)
    nats = final["loss"]
    gains = {name: each.final[objective.tokens.loss_key] - nats for name, each in parts.items()}
    return PretrainSummary(
        fitting=config.pretrain.kind,
        model=config.model,
        objective=objective.name,
        parameters=sum(each.parameters for each in parts.values()),
        vocab_size=tokens.vocab_size,
        tokens=parts["network"].tokens,
        epochs=parts["network"].epochs,
        unigram_loss=tokens.unigram_loss,
        final=dict(final),
        seconds=seconds + sum(each.seconds for each in parts.values()),
        headline=f"validation {objective.tokens.key} {nats:.3f}, {gains['counts']:.2f} below the "
        f"counts and {gains['network']:.2f} below the network  "
        f"{final['bits_per_byte']:.3f} bits per byte",
    )


def _draw_unread(artifact: Artifact, read: Artifact, end: int) -> list[list[int]]:
    """The training documents that are not among those `read`, up to `_MOST_TOKENS`."""
    names = {name for text in read_split(read, "train") for name in text.documents.tolist()}
    unread: list[list[int]] = []
    tokens = 0
    for text in read_split(artifact, "train"):
        for name, document in zip(text.documents.tolist(), split_documents(text, end), strict=True):
            if name not in names and tokens < _MOST_TOKENS:
                unread.append(document)
                tokens += len(document)
    return unread
