"""The ablation "LTR & No NSP" of the BERT paper (Devlin et al. 2019, arXiv:1810.04805, table 5).

A BERT in all but two things: a position sees only itself and what came before, and every position
predicts the NEXT token. Body and MLM head are those of bert.py, so that nothing else differs from
"No NSP", and the weights have the same names. There is no pooler, for [CLS] sees nothing but
itself.

Shapes: B batch, T sequence, D hidden, V vocabulary, X tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rungwise.models.bert import Bert, BertConfig, MlmHead
from rungwise.models.cross_entropy import MOST_LOGITS, TokenSums, token_sums
from rungwise.models.transformer import initialise


class BertLeftToRight(nn.Module):
    """`most_logits` may be set: how many logits are held at a time, see cross_entropy.py."""

    def __init__(
        self, config: BertConfig, vocab_size: int, *, pad_vocab_to_multiple_of: int = 1
    ) -> None:
        super().__init__()
        self.most_logits = MOST_LOGITS
        self.bert = Bert(
            config,
            vocab_size,
            pooler=False,
            causal=True,
            pad_vocab_to_multiple_of=pad_vocab_to_multiple_of,
        )
        self.mlm = MlmHead(config.hidden_size, vocab_size)
        initialise(self.mlm, config.initializer_range)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew, from `generator` or else from PyTorch's own."""
        self.bert.initialise(generator)
        initialise(self.mlm, self.bert.config.initializer_range, generator)
        nn.init.zeros_(self.mlm.bias)

    def forward(
        self,
        ids_BT: Tensor,
        targets_BT: Tensor,
        weights_BT: Tensor,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> TokenSums:
        """Cross entropy of the next tokens, summed. See `Gpt.encode` for the last two."""
        hidden_BTD = self.bert.encode(ids_BT, None, None, document_BT, positions_BT)
        return token_sums(
            self.mlm.transform(hidden_BTD.flatten(0, 1)),  # (B, T, D) -> (B·T, D)
            self.bert.token_embedding.weight,
            self.mlm.bias,
            targets_BT.flatten(),
            weights_BT.flatten(),
            self.bert.vocab_size,
            self.most_logits,
        )

    def logits(
        self,
        ids_BT: Tensor,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of the token that follows each position."""
        hidden_BTD = self.bert.encode(ids_BT, None, None, document_BT, positions_BT)
        return self.mlm(hidden_BTD, self.bert.token_embedding.weight)[..., : self.bert.vocab_size]
