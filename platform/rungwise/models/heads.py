"""What fine-tuning puts on top of a pretrained encoder, and how the encoder gets its weights.

    hidden (B, T, D) ──> one vector a sequence, [CLS] or mean ──> dropout ──> logits (B, C)

The head of Devlin et al. 2019 (arXiv:1810.04805), section 4.1: the pooler's vector of [CLS],
dropout 0.1, one linear layer. `mean` is the usual alternative, over the real tokens of a row.

Shapes: B batch, T sequence, D hidden, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from rungwise.errors import DataError
from rungwise.models.bert import Bert
from rungwise.models.transformer import initialise

Pooling = Literal["cls", "mean"]
ENCODER_PREFIX = "bert."


class SequenceClassifier(nn.Module):
    """One label for a sentence or for a pair of them."""

    def __init__(
        self, bert: Bert, num_classes: int, pooling: Pooling = "cls", dropout: float = 0.1
    ) -> None:
        super().__init__()
        if pooling == "cls" and bert.pooler is None:
            raise ValueError(
                "pooling 'cls' needs an encoder with a pooler, found one without; build it with "
                "pooler=True, or change pooling to 'mean'"
            )
        if pooling == "cls" and bert.causal:
            raise ValueError(
                "pooling 'cls' needs an encoder that sees both sides; in this one, from left to "
                "right, [CLS] sees nothing but itself; change pooling to 'mean'"
            )
        self.bert = bert
        self.pooling = pooling
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(bert.config.hidden_size, num_classes)
        initialise(self.classifier, bert.config.initializer_range)

    def forward(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, C). See `Bert.encode` for `lengths_B`."""
        hidden_BTD = self.bert.encode(ids_BT, segments_BT, lengths_B)
        if self.pooling == "cls":
            pooled_BD = self.bert.pool(hidden_BTD)
        else:
            pooled_BD = mean_over_tokens(hidden_BTD, lengths_B)
        return self.classifier(self.dropout(pooled_BD))


def mean_over_tokens(hidden_BTD: Tensor, lengths_B: Tensor | None) -> Tensor:
    """The mean (B, D) of the first `lengths_B` vectors of each row, or of all; [CLS] takes part."""
    if lengths_B is None:
        return hidden_BTD.mean(dim=1)
    position_T = torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device)
    real_BT1 = (position_T < lengths_B[:, None])[:, :, None]  # (B, T) -> (B, T, 1)
    # A choice and not a product, for whatever stands at padding, even NaN, must not count.
    kept_BTD = torch.where(real_BT1, hidden_BTD, hidden_BTD.new_zeros(()))
    return kept_BTD.sum(dim=1) / lengths_B[:, None].to(hidden_BTD.dtype)


def load_encoder(bert: Bert, pretrained: Mapping[str, Tensor], fresh: tuple[str, ...] = ()) -> None:
    """Copy the encoder out of the state dict of a BertForPretraining; its heads stay behind.

    `fresh` names parts that keep their random start, such as "pooler" where pretraining had no
    next-sentence prediction. A pooler that `bert` does not have stays behind as well. Raises
    DataError naming the first tensor that does not fit, before anything has been copied.
    """
    expected = {
        name: tensor
        for name, tensor in bert.state_dict().items()
        if not name.startswith(tuple(f"{part}." for part in fresh))
    }
    for name, tensor in expected.items():
        found = pretrained.get(ENCODER_PREFIX + name)
        if found is None:
            raise DataError(
                f"the pretrained weights lack {ENCODER_PREFIX}{name}, expected with shape "
                f"{list(tensor.shape)}; give the model the config of the pretraining run"
            )
        if found.shape != tensor.shape:
            raise DataError(
                f"{ENCODER_PREFIX}{name}: expected shape {list(tensor.shape)}, found "
                f"{list(found.shape)} in the pretrained weights; give the model the config and the "
                f"tokenizer of the pretraining run"
            )
    for key in pretrained:
        name = key.removeprefix(ENCODER_PREFIX)
        if key == name or name in expected or name.startswith("pooler."):
            continue
        raise DataError(
            f"the pretrained weights hold {key}, for which the model has no place; give the model "
            f"the config of the pretraining run"
        )
    bert.load_state_dict(
        {name: pretrained[ENCODER_PREFIX + name] for name in expected}, strict=False
    )
