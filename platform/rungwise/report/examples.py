"""The model at work on held-out text, for the page: gathered once, drawn and rendered later.

A masked model gets a masked instance and blanks to fill in. A model of every token gets a passage
with its surprise at each token; if it reads from left to right, also what context is worth to it
and text it makes up; if it reads both ways, blanks.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from rungwise.core.artifact import Artifact
from rungwise.evaluation import fill_in, held_out, surprise
from rungwise.evaluation import generation as continuations
from rungwise.evaluation.fill_in import Filled
from rungwise.evaluation.generation import Continued
from rungwise.evaluation.spelling import token_text
from rungwise.evaluation.surprise import Passage, Reach
from rungwise.instances.masked_reader import MaskedReader
from rungwise.instances.reader import InstanceReader
from rungwise.models.bert import BertForPretraining
from rungwise.models.bidirectional import BidirectionalForPretraining
from rungwise.pretraining.pretrained import config_of, load_model
from rungwise.report.specimen import Specimen, specimen
from rungwise.training.config import GradientConfig


@dataclass(frozen=True)
class Baseline:
    """The accuracy of always guessing the most frequent token."""

    token: str
    share: float
    instances: int


@dataclass(frozen=True)
class Examples:
    """Examples of each kind; None or empty where a kind of model has none."""

    baseline: Baseline
    shown: Specimen | None = None
    passage: Passage | None = None
    reach: tuple[Reach, ...] = ()
    filled: tuple[Filled, ...] = ()
    continued: tuple[Continued, ...] = ()


def gather(
    pretrain: Artifact,
    instances: Artifact,
    tokenizer: Tokenizer,
    blanks: int,
    prompts: int,
    seed: int,
) -> Examples:
    """Examples of a pretrained model; `seed` draws them, in numbers that are asked for."""
    settings = config_of(pretrain).pretrain
    model = load_model(pretrain)
    if isinstance(model, BertForPretraining):
        reader = held_out.first_held_out(instances, held_out.MOST_INSTANCES)
        chosen = fill_in.choose(reader, tokenizer, blanks, seed)
        return Examples(
            _baseline(reader, tokenizer, settings),
            shown=specimen(reader, tokenizer, settings.seed),
            filled=tuple(fill_in.fill(model, reader, tokenizer, chosen)),
        )
    reader = held_out.first_blocks(instances, held_out.MOST_INSTANCES)
    baseline = _baseline(reader, tokenizer, settings)
    passage = surprise.passage(model, reader, tokenizer, seed)
    if isinstance(model, BidirectionalForPretraining):
        chosen = fill_in.choose(reader, tokenizer, blanks, seed)
        filled = fill_in.fill(model, reader, tokenizer, chosen)
        return Examples(baseline, passage=passage, filled=tuple(filled))
    begun = continuations.choose(reader, tokenizer, prompts, seed)
    continued = continuations.go_on(model, tokenizer, begun, held_out.end_of(reader), seed)
    return Examples(
        baseline,
        passage=passage,
        reach=tuple(surprise.by_context(model, reader)),
        continued=tuple(continued),
    )


def _baseline(
    reader: MaskedReader | InstanceReader, tokenizer: Tokenizer, settings: GradientConfig
) -> Baseline:
    validated = min(settings.validation_instances, held_out.MOST_INSTANCES, len(reader))
    frequent, share = held_out.most_frequent_share(reader, validated, settings.seed)
    return Baseline(token_text(tokenizer, frequent), share, validated)
