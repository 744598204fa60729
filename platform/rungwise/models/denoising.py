"""TSDAE: a vector from which a text can be written again (Wang et al. 2021, "TSDAE: Using
Transformer-based Sequential Denoising Auto-Encoder for Unsupervised Sentence Embedding Learning",
arXiv:2104.06979).

    row without the tokens chosen for masking ──> encoder ──> mean (D,) ──┐
    row as it stood ─────────────────────────────> embedded ── + ─────────┴──> decoder ──> next

The tokens that masked instances have chosen are deleted instead, so `instances.masking.rate: 0.6`
is the paper's share, and which they are does not depend on workers. In the paper every layer of the
decoder attends to the vector; attention to a single key is a linear map of it whatever asks, and
here there is one, on the way in. Encoder and decoder share the table of tokens, in and out.

Shapes: B batch, T sequence, D hidden.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rungwise.models.body import Body
from rungwise.models.contrastive import CONTRASTIVE, SentenceEncoder, unmasked
from rungwise.models.cross_entropy import MOST_LOGITS, TokenSums, token_sums
from rungwise.models.objectives import MLM, Losses, Objective, Part, PretrainingBatch
from rungwise.models.transformer import Transformer, initialise

if TYPE_CHECKING:
    from rungwise.models.family import TransformerFamily


class SentenceAutoencoder(SentenceEncoder):
    """A sentence encoder, and a decoder that has nothing but its vector to write the text from."""

    def __init__(self, body: Body, config: TransformerFamily) -> None:
        super().__init__(body)
        self.decoder = Transformer(config, causal=True)
        self.from_vector = nn.Linear(config.hidden_size, config.hidden_size)
        initialise(self.decoder, config.initializer_range)
        initialise(self.from_vector, config.initializer_range)

    def forward(
        self,
        ids_BT: Tensor,
        lengths_B: Tensor,
        whole_BT: Tensor | None = None,
        whole_lengths_B: Tensor | None = None,
    ) -> Any:
        """The vectors (B, D); of whole rows as well, the sums of the cross entropy of their tokens
        but the first."""
        vectors_BD = super().forward(ids_BT, lengths_B)
        if whole_BT is None or whole_lengths_B is None:
            return vectors_BD
        return self._sums(vectors_BD, whole_BT, whole_lengths_B)

    def _sums(self, vectors_BD: Tensor, whole_BT: Tensor, lengths_B: Tensor) -> TokenSums:
        body: Any = self.body
        begun_BTD = body.embed(whole_BT) + self.from_vector(vectors_BD)[:, None]
        states_BTD = self.decoder(begun_BTD)[:, :-1]
        return token_sums(
            states_BTD.flatten(0, 1),  # (B, T - 1, D) -> (B·(T - 1), D)
            body.token_embedding.weight,
            None,
            whole_BT[:, 1:].flatten(),
            _predicted(whole_BT, lengths_B).flatten().to(states_BTD.dtype),
            body.vocab_size,
            MOST_LOGITS,
        )


def without_masked(batch: PretrainingBatch) -> tuple[Tensor, Tensor]:
    """The ids (B, T) that were not chosen for masking, moved together, and how many (B,)."""
    B, T = batch.ids.shape
    place_BT = torch.arange(T, device=batch.ids.device).expand(B, T)
    gone_BT = torch.zeros(B, T, device=batch.ids.device)
    # Filled-up places are 0 and weigh nothing.
    gone_BT = gone_BT.scatter_add(1, batch.masked_positions, batch.masked_weights.float()) > 0
    if batch.lengths is not None:
        gone_BT = gone_BT | (place_BT >= batch.lengths[:, None])
    order_BT = torch.where(gone_BT, place_BT + T, place_BT).argsort(dim=1)
    return batch.ids.gather(1, order_BT), T - gone_BT.sum(1)


def _predicted(whole_BT: Tensor, lengths_B: Tensor) -> Tensor:
    """Which of the tokens behind the first (B, T - 1) are real."""
    place_T = torch.arange(1, whole_BT.shape[1], device=whole_BT.device)
    return place_T < lengths_B[:, None]


def _outputs(model: nn.Module, batch: PretrainingBatch) -> Losses:
    total, correct = model(*without_masked(batch), *unmasked(batch))
    return Losses(total[None], correct[None])


def _losses(sums: Losses, batch: PretrainingBatch) -> Losses:
    return sums


def _counts(batch: PretrainingBatch) -> Tensor:
    return _predicted(*unmasked(batch)).sum()[None].to(batch.masked_weights.dtype)


TSDAE = dataclasses.replace(
    MLM,
    name="tsdae",
    tokens=Part(
        "reconstruction", "reconstruction", "Next tokens guessed right, given the vector", "token"
    ),
    reads=("masked_blocks",),
    counts=_counts,
    outputs=_outputs,
    losses=_losses,
    sentences=True,
)
DECODER = ("decoder.", "from_vector.")  # beginnings of the names of its tensors
SENTENCE_OBJECTIVES: tuple[Objective, ...] = (*CONTRASTIVE, TSDAE)


def sentence_encoder(
    config: TransformerFamily, vocab_size: int, objective: Objective
) -> SentenceEncoder:
    """The encoder of a family with what the objective trains, and the dropout that it takes at
    least."""
    config = config.model_copy(update={"dropout": config.dropout or objective.least_dropout})
    body = config.body(vocab_size, objective)
    return SentenceEncoder(body) if objective.compares else SentenceAutoencoder(body, config)
