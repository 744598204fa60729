"""The Transformer families as one union tagged by `kind`, and what follows from it.

objective                     model
mlm_nsp, mlm, sentence_order  bert       BertForPretraining
left_to_right                 bert       BertLeftToRight
causal                        gpt        GptForPretraining
bidirectional                 bidirectional    BidirectionalForPretraining
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from rungwise.core.errors import ConfigError
from rungwise.models import bert, gpt
from rungwise.models import bidirectional as bidirectional
from rungwise.models.bert import BertConfig, BertForPretraining
from rungwise.models.bidirectional import BidirectionalConfig, BidirectionalForPretraining
from rungwise.models.gpt import GptConfig, GptForPretraining
from rungwise.models.left_to_right import BertLeftToRight

AnyModelConfig = BertConfig | GptConfig | BidirectionalConfig
ModelConfig = Annotated[AnyModelConfig, Field(discriminator="kind")]
PretrainingModel = (
    BertForPretraining | BertLeftToRight | GptForPretraining | BidirectionalForPretraining
)

ObjectiveKind = Literal[
    "mlm_nsp", "mlm", "sentence_order", "causal", "left_to_right", "bidirectional"
]
PAIR_OBJECTIVES: tuple[ObjectiveKind, ...] = ("mlm_nsp", "sentence_order")

PRESETS: Mapping[str, AnyModelConfig] = {
    "bert-tiny": BertConfig.tiny(),
    "bert-mini": BertConfig.mini(),
    "bert-small": BertConfig.small(),
    "bert-base": BertConfig.base(),
    "bert-large": BertConfig.large(),
    "gpt1": GptConfig.gpt1(),
    "gpt2": GptConfig.gpt2(),
    "gpt2-medium": GptConfig.gpt2_medium(),
    "gpt2-large": GptConfig.gpt2_large(),
    "gpt2-xl": GptConfig.gpt2_xl(),
    "bidirectional-base": BidirectionalConfig.base(),
}

_OBJECTIVES: Mapping[str, tuple[ObjectiveKind, ...]] = {
    "bert": ("mlm_nsp", "mlm", "sentence_order", "left_to_right"),
    "gpt": ("causal",),
    "bidirectional": ("bidirectional",),
}


def check_objective(config: AnyModelConfig, objective: ObjectiveKind) -> None:
    """Raise ConfigError where the model cannot be trained on the objective."""
    known = _OBJECTIVES[config.kind]
    if objective not in known:
        fitting = next(kind for kind, names in _OBJECTIVES.items() if objective in names)
        raise ConfigError(
            f"pretrain.objective.kind is {objective}, but model.kind is {config.kind}, which "
            f"takes {' or '.join(known)}; change one of them (model.kind={fitting})"
        )


def build_model(
    config: AnyModelConfig,
    vocab_size: int,
    objective: ObjectiveKind,
    *,
    pad_vocab_to_multiple_of: int = 1,
) -> PretrainingModel:
    """The model with the heads that the objective trains, its weights drawn from PyTorch's
    generator. Raises ConfigError where the two do not fit."""
    check_objective(config, objective)
    pad = pad_vocab_to_multiple_of
    match config:
        case GptConfig():
            return GptForPretraining(config, vocab_size, pad_vocab_to_multiple_of=pad)
        case BidirectionalConfig():
            return BidirectionalForPretraining(config, vocab_size, pad_vocab_to_multiple_of=pad)
        case BertConfig() if objective == "left_to_right":
            return BertLeftToRight(config, vocab_size, pad_vocab_to_multiple_of=pad)
        case BertConfig():
            return BertForPretraining(
                config,
                vocab_size,
                next_sentence=objective in PAIR_OBJECTIVES,
                pad_vocab_to_multiple_of=pad,
            )


def flops_per_token(
    config: AnyModelConfig,
    vocab_size: int,
    sequence_length: int,
    objective: ObjectiveKind,
    masked_per_sequence: float = 0.0,
) -> float:
    """Floating-point operations a token of one training step, by the rule of the model's family.

    `masked_per_sequence` is for the objectives that mask. Padding of the vocabulary is not counted.
    """
    check_objective(config, objective)
    match config:
        case GptConfig():
            return gpt.flops_per_token(config, vocab_size, sequence_length)
        case BidirectionalConfig():
            return bidirectional.flops_per_token(config, vocab_size, sequence_length)
        case BertConfig():
            causal = objective == "left_to_right"
            return bert.flops_per_token(
                config,
                vocab_size,
                sequence_length,
                sequence_length if causal else masked_per_sequence,
                next_sentence=objective in PAIR_OBJECTIVES,
                causal=causal,
            )
