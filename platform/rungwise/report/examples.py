"""Examples of the model on held-out text, gathered once for the page and its plots.

A model fitted on tokens without instances has none, except nearest neighbours of words if its
objective predicts no text. A masking objective has one masked instance. The rest depends on the
model's capabilities: a passage with the surprisal of each token, blanks to fill in and, for
next-token models, the loss by length of the context and continuations.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from rungwise.core.stages.artifact import Artifact, find_input
from rungwise.evaluation.page import fill_in, held_out, surprise
from rungwise.evaluation.page import generation as continuations
from rungwise.evaluation.page import neighbours as words_near
from rungwise.evaluation.page.fill_in import Filled
from rungwise.evaluation.page.generation import Continued
from rungwise.evaluation.page.neighbours import Neighbours
from rungwise.evaluation.page.spelling import token_text
from rungwise.evaluation.page.surprise import Passage, Reach
from rungwise.instances.reader import InstanceReader, MaskedReader
from rungwise.instances.summary import InstancesSummary
from rungwise.models.trained.capabilities import (
    BlankLogits,
    NextTokenLogits,
    TargetLogits,
    WordVectors,
)
from rungwise.pretraining.config import PretrainConfig
from rungwise.pretraining.pretrained import config_of, load_model
from rungwise.report.specimen import Specimen, specimen
from rungwise.training.config import GradientConfig

_NEAREST = 6  # neighbours shown per word


@dataclass(frozen=True)
class Baseline:
    """The accuracy of always guessing the most frequent token."""

    token: str
    share: float
    instances: int


@dataclass(frozen=True)
class Examples:
    """Examples of a model; None or empty for those it does not have."""

    baseline: Baseline | None = None
    shown: Specimen | None = None
    passage: Passage | None = None
    reach: tuple[Reach, ...] = ()
    filled: tuple[Filled, ...] = ()
    continued: tuple[Continued, ...] = ()
    neighbours: tuple[Neighbours, ...] = ()


def gather(
    pretrain: Artifact,
    instances: Artifact | None,
    tokenizer: Tokenizer,
    blanks: int,
    prompts: int,
    words: int,
    seed: int,
) -> Examples:
    """Draw `blanks`, `prompts` and `words` examples of a pretrained model with `seed`."""
    config = config_of(pretrain)
    if instances is None:
        if config.objective.predicts_text:
            return Examples()
        model, tokens = load_model(pretrain), find_input(pretrain, "tokens")
        assert isinstance(model, WordVectors), "what predicts no text has vectors"
        near = words_near.drawn(model, tokenizer, tokens, words, _NEAREST, seed)
        return Examples(neighbours=tuple(near))
    model = load_model(pretrain, InstancesSummary.of(instances).special)
    validated, mask_seed = _validation(config.pretrain)
    shown, passage, reach, continued = None, None, [], []
    if config.objective.masks:
        reader = MaskedReader(instances, "validation")
        shown = specimen(reader, tokenizer, mask_seed)
    else:
        reader = InstanceReader(instances, "validation")
        if isinstance(model, TargetLogits):
            passage = surprise.passage(model, reader, tokenizer, seed)
        if isinstance(model, TargetLogits) and isinstance(model, NextTokenLogits):
            reach = surprise.by_context(model, reader)
        if isinstance(model, NextTokenLogits):
            begun = continuations.choose(reader, tokenizer, prompts, seed)
            end = held_out.end_of(reader)
            continued = continuations.go_on(model, tokenizer, begun, end, seed)
    filled = []
    if isinstance(model, BlankLogits):
        chosen = fill_in.choose(reader, tokenizer, blanks, seed)
        filled = fill_in.fill(model, tokenizer, chosen)
    return Examples(
        _baseline(reader, tokenizer, validated, mask_seed),
        shown,
        passage,
        tuple(reach),
        tuple(filled),
        tuple(continued),
    )


def _validation(settings: PretrainConfig) -> tuple[int, int]:
    """How many held-out instances the run validated on, and the seed of their masks."""
    if isinstance(settings, GradientConfig):
        return settings.validation_instances, settings.seed
    return held_out.MOST_INSTANCES, 0


def _baseline(
    reader: MaskedReader | InstanceReader, tokenizer: Tokenizer, validated: int, seed: int
) -> Baseline:
    count = min(validated, held_out.MOST_INSTANCES, len(reader))
    frequent, share = held_out.most_frequent_share(reader, count, seed)
    return Baseline(token_text(tokenizer, frequent), share, count)
