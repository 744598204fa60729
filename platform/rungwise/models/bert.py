"""BERT (Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding", arXiv:1810.04805), after google-research/bert.

    ids, segments ──> token + segment + position ──> LayerNorm ──> Transformer, both directions
        ──> hidden (B, T, D) ──┬──> masked positions ──> MLM logits (B, M, V), embedding tied
                               └──> [CLS] ──> pooler, tanh ──> NSP logits (B, 2)

The size of the vocabulary is the tokenizer's and so an argument, not a key of the config. MLM
logits are computed at the masked positions only: 15 % of the largest matrix product. The classes of
NSP are 0 NotNext and 1 IsNext (google-research/bert and transformers have them the other way); of
sentence order, on the same head, 0 swapped and 1 in order (Lan et al. 2020, arXiv:1909.11942).

The ablation "LTR & No NSP" (the same paper, table 5) is a BERT in all but two things: a position
sees only itself and what came before, and every position predicts the NEXT token. Body and MLM head
are the same with the same names, so that nothing else differs from "No NSP". There is no pooler,
for [CLS] sees nothing but itself.

Shapes: B batch, T sequence, D hidden, V vocabulary, M masked positions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from rungwise.models.cross_entropy import MOST_LOGITS, TokenSums, token_sums
from rungwise.models.encoders import LayeredEncoder, blocks_by_layer
from rungwise.models.family import Family
from rungwise.models.language_models import CausalModel, MaskedModel
from rungwise.models.objectives import LEFT_TO_RIGHT, MLM, MLM_NSP, SENTENCE_ORDER, Objective
from rungwise.models.transformer import (
    Norm,
    Transformer,
    check_heads,
    gather_positions,
    initialise,
    learned_positions,
    padded_size,
    sinusoid_positions,
)

if TYPE_CHECKING:  # a bare machine with PyTorch has no tokenizers
    from rungwise.tokenizer.special import SpecialIds

NUM_SEGMENTS = 2
LAYER_NORM_EPSILON = 1e-12
NOT_NEXT, IS_NEXT = 0, 1


class BertConfig(Family):
    """The shape of a BERT; the defaults are BERT base.

    `dropout` is 0 unless asked for, where the paper has 0.1 everywhere: pretraining sees an
    instance a few times at most and does not overfit. Fine-tuning should set the paper's 0.1.
    """

    objectives: ClassVar = (MLM_NSP, MLM, SENTENCE_ORDER, LEFT_TO_RIGHT)
    optional_tensors: ClassVar = ("bert.pooler.", "nsp.")

    kind: Literal["bert"] = "bert"
    num_layers: int = Field(default=12, ge=1)
    num_heads: int = Field(default=12, ge=1)
    hidden_size: int = Field(default=768, ge=1)
    intermediate_size: int = Field(default=3072, ge=1)
    max_position_embeddings: int = Field(default=512, ge=1)
    positions: Literal["learned", "sinusoid"] = "learned"
    norm: Norm = "post"
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    initializer_range: float = Field(default=0.02, gt=0.0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_heads(self.hidden_size, self.num_heads)
        if self.positions == "sinusoid" and self.hidden_size % 2:
            raise ValueError(
                f"positions 'sinusoid' need an even hidden_size, found {self.hidden_size}; change "
                f"hidden_size to {self.hidden_size + 1}, or positions to 'learned'"
            )
        return self

    @classmethod
    def base(cls) -> Self:
        """BERT base, 110 M parameters: the defaults."""
        return cls()

    @classmethod
    def large(cls) -> Self:
        """BERT large, 340 M parameters."""
        return cls(num_layers=24, num_heads=16, hidden_size=1024, intermediate_size=4096)

    @classmethod
    def tiny(cls) -> Self:
        """BERT tiny of Turc et al. 2019 (arXiv:1908.08962), 4.4 M parameters."""
        return cls(num_layers=2, num_heads=2, hidden_size=128, intermediate_size=512)

    @classmethod
    def mini(cls) -> Self:
        """BERT mini of the same paper, 11.3 M parameters with its heads."""
        return cls(num_layers=4, num_heads=4, hidden_size=256, intermediate_size=1024)

    @classmethod
    def small(cls) -> Self:
        """BERT small of the same paper, 29.1 M parameters with its heads."""
        return cls(num_layers=4, num_heads=8, hidden_size=512, intermediate_size=2048)

    @property
    def max_length(self) -> int | None:
        return self.max_position_embeddings if self.positions == "learned" else None

    @property
    def depth(self) -> int:
        return self.num_layers

    @property
    def width(self) -> int:
        return self.hidden_size

    def describe(self) -> str:
        return f"{self.num_layers} layers, hidden size {self.hidden_size}"

    def page_name(self, objective: Objective) -> str:
        return "BERT" if objective.masks else "left-to-right BERT"

    def build(
        self, vocab_size: int, objective: Objective, pad_vocab_to_multiple_of: int = 1
    ) -> BertForPretraining | BertLeftToRight:
        pad = pad_vocab_to_multiple_of
        if not objective.masks:
            return BertLeftToRight(self, vocab_size, pad_vocab_to_multiple_of=pad)
        return BertForPretraining(
            self,
            vocab_size,
            next_sentence=objective.pair is not None,
            pad_vocab_to_multiple_of=pad,
        )

    def encoder(
        self, objective: Objective, vocab_size: int, dropout: float, new_tokens: int = 0
    ) -> BertEncoder:
        config = self.model_copy(update={"dropout": dropout})
        return BertEncoder(config, vocab_size, new_tokens, causal=not objective.masks)

    def trained(
        self, model: nn.Module, objective: Objective, special: SpecialIds
    ) -> CausalModel | MaskedModel:
        assert isinstance(model, BertForPretraining | BertLeftToRight)
        table, vocab_size = model.bert.token_embedding.weight, model.bert.vocab_size
        if not objective.masks:
            (end,) = special.require("end")
            return CausalModel(model, table, vocab_size, self.max_length, end)
        frame = special.require("cls", "sep", "mask")
        return MaskedModel(model, table, vocab_size, self.max_length, *frame)

    def flops_per_token(
        self,
        vocab_size: int,
        sequence_length: int,
        objective: Objective,
        masked_per_sequence: float = 0.0,
    ) -> float:
        """The rule: 6 for each weight of a matrix that multiplies the token (2 forward, 4
        backward), and 12·L·D·T for the two products of attention, every position with every one.
        Per token,

            6·L·(4·D² + 2·D·I) + 12·L·D·T + 6·M/T·(D² + D·V) + 6/T·(D² + 2·D)

        with I the intermediate size: the blocks, attention, the MLM head at its M predicted
        positions alone, and the pooler and NSP once a sequence. Left to right every position is
        predicted, and half of attention is counted: what a kernel that skips the future computes.
        Not counted: look-ups in the embedding tables, biases, LayerNorm, GELU, softmax, the
        optimizer, rows that pad the vocabulary, recomputation. BERT base with 15 % masked and
        V = 30,522: 545.4 MFLOP at T = 128, 587.9 at T = 512.
        """
        L, D, T = self.num_layers, self.hidden_size, sequence_length
        causal = not objective.masks
        predicted = T if causal else masked_per_sequence
        blocks = 6 * L * (4 * D * D + 2 * D * self.intermediate_size)
        attention = (6 if causal else 12) * L * D * T
        mlm = 6 * predicted / T * (D * D + D * vocab_size)
        nsp = 6 / T * (D * D + 2 * D) if objective.pair else 0.0
        return blocks + attention + mlm + nsp


class PretrainingLogits(NamedTuple):
    """Logits of pretraining; `nsp` is None in a model without next-sentence prediction."""

    mlm: Tensor  # (B, M, V)
    nsp: Tensor | None  # (B, 2)


class Bert(nn.Module):
    """The encoder, and the pooler unless it is declined.

    `pad_vocab_to_multiple_of` rounds the rows of the embedding up, because a matrix product likes
    multiples of 64: 30,522 becomes 30,528. The added rows are zeros, never looked up and never
    predicted. With 1, the default, parameter counts are those of the paper.
    """

    def __init__(
        self,
        config: BertConfig,
        vocab_size: int,
        *,
        pooler: bool = True,
        causal: bool = False,
        pad_vocab_to_multiple_of: int = 1,
    ) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        D = config.hidden_size
        self.token_embedding = nn.Embedding(padded_size(vocab_size, pad_vocab_to_multiple_of), D)
        self.segment_embedding = nn.Embedding(NUM_SEGMENTS, D)
        self.position_embedding = (
            nn.Embedding(config.max_position_embeddings, D)
            if config.positions == "learned"
            else None
        )
        self.embedding_norm = nn.LayerNorm(D, eps=LAYER_NORM_EPSILON)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = Transformer(
            config.num_layers,
            D,
            config.num_heads,
            config.intermediate_size,
            causal=causal,
            norm=config.norm,
            dropout=config.dropout,
            layer_norm_epsilon=LAYER_NORM_EPSILON,
        )
        self.pooler = nn.Linear(D, D) if pooler else None
        self.initialise()

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew, from `generator` or else from PyTorch's own."""
        initialise(self, self.config.initializer_range, generator)
        self.token_embedding.weight[self.vocab_size :].zero_()

    @property
    def causal(self) -> bool:
        """Whether a position sees only itself and what came before."""
        return self.transformer.causal

    def embed(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """Token + segment + position, normalised. No segments means that all are the first, no
        positions that they are 0, 1, 2 and so on."""
        if segments_BT is None:
            segment_BTD = self.segment_embedding.weight[0]
        else:
            segment_BTD = self.segment_embedding(segments_BT)
        position_BTD = self.position_vectors(ids_BT.shape[1], positions_BT)
        summed_BTD = self.token_embedding(ids_BT) + segment_BTD + position_BTD
        return self.dropout(self.embedding_norm(summed_BTD))

    def position_vectors(self, sequence_length: int, positions_BT: Tensor | None = None) -> Tensor:
        """The vectors (T, D) or (B, T, D) that say where a token stands, whatever the token.

        The sinusoid has amplitude 1, fifty times a token's start of 0.02, and there is a LayerNorm
        right behind the sum; unscaled it would drown the words. It is scaled to the spread at which
        a learned table starts, so that the two differ in nothing but their shape. (Vaswani et al.
        multiply the token embeddings by sqrt(D) instead, to the same end.)
        """
        if self.position_embedding is not None:
            return learned_positions(self.position_embedding, sequence_length, positions_BT)
        weight = self.token_embedding.weight
        table_TD = sinusoid_positions(
            sequence_length, self.config.hidden_size, weight.device, weight.dtype
        )
        table_TD = table_TD * (self.config.initializer_range * math.sqrt(2))
        return table_TD if positions_BT is None else table_TD[positions_BT]

    def encode(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (B, T, D) of the last layer.

        `lengths_B` are the numbers of real tokens in the rows; None says that no row is padded,
        which is faster and must be known on the host. What comes out at padding means nothing.
        In packed rows `document_BT` says which tokens belong together, and padding is a document of
        its own (then `lengths_B` is None); `positions_BT` count within the document.
        """
        return self.transformer(
            self.embed(ids_BT, segments_BT, positions_BT), lengths_B, document_BT
        )

    def encode_layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        """The embeddings and each layer, num_layers + 1 tensors (B, T, D), for probes and mixes."""
        return self.transformer.layers(self.embed(ids_BT, segments_BT), lengths_B)

    def pool(self, hidden_BTD: Tensor) -> Tensor:
        """One vector (B, D) a sequence: the first token, [CLS], through a layer and tanh."""
        assert self.pooler is not None, "this Bert was built with pooler=False"
        return torch.tanh(self.pooler(hidden_BTD[:, 0]))


class MlmHead(nn.Module):
    """Dense, GELU, LayerNorm, then the token embedding again, with a bias of the output alone.

    `input_size` is the hidden size unless states are concatenated before (bidirectional.py).
    """

    def __init__(self, hidden_size: int, vocab_size: int, input_size: int | None = None) -> None:
        super().__init__()
        self.dense = nn.Linear(input_size or hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=LAYER_NORM_EPSILON)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def transform(self, hidden: Tensor) -> Tensor:
        """The vectors (..., D) that the output matrix multiplies."""
        return self.norm(functional.gelu(self.dense(hidden)))

    def forward(self, hidden_BMD: Tensor, embedding_VD: Tensor) -> Tensor:
        # Rows that only pad the vocabulary get probability 0, and with it a gradient of 0.
        bias_V = functional.pad(self.bias, (0, len(embedding_VD) - len(self.bias)), value=-math.inf)
        return functional.linear(self.transform(hidden_BMD), embedding_VD, bias_V)


class BertForPretraining(nn.Module):
    """BERT with the heads of pretraining: MLM, and NSP unless `next_sentence` is False.

    The head of NSP serves sentence order as well. Without it there is no pooler either: nothing
    would train it.
    """

    def __init__(
        self,
        config: BertConfig,
        vocab_size: int,
        *,
        next_sentence: bool = True,
        pad_vocab_to_multiple_of: int = 1,
    ) -> None:
        super().__init__()
        self.bert = Bert(
            config,
            vocab_size,
            pooler=next_sentence,
            pad_vocab_to_multiple_of=pad_vocab_to_multiple_of,
        )
        self.mlm = MlmHead(config.hidden_size, vocab_size)
        self.nsp = nn.Linear(config.hidden_size, 2) if next_sentence else None
        self._initialise_heads(None)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew, from `generator` or else from PyTorch's own."""
        self.bert.initialise(generator)
        self._initialise_heads(generator)

    def _initialise_heads(self, generator: torch.Generator | None) -> None:
        initialise(self.mlm, self.bert.config.initializer_range, generator)
        nn.init.zeros_(self.mlm.bias)
        if self.nsp is not None:
            initialise(self.nsp, self.bert.config.initializer_range, generator)

    def forward(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None,
        lengths_B: Tensor | None,
        masked_positions_BM: Tensor,
    ) -> PretrainingLogits:
        """Logits at the masked positions, and of IsNext. See `Bert.encode` for `lengths_B`.

        Where the vocabulary is padded, the logits are as wide as the padded one, -inf at the end.
        """
        hidden_BTD = self.bert.encode(ids_BT, segments_BT, lengths_B)
        masked_BMD = gather_positions(hidden_BTD, masked_positions_BM)
        mlm_BMV = self.mlm(masked_BMD, self.bert.token_embedding.weight)
        nsp_B2 = self.nsp(self.bert.pool(hidden_BTD)) if self.nsp is not None else None
        return PretrainingLogits(mlm_BMV, nsp_B2)


class BertLeftToRight(nn.Module):
    """The ablation "LTR & No NSP"; see the head of this file.

    `most_logits` may be set: how many logits are held at a time, see cross_entropy.py.
    """

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


class BertEncoder(LayeredEncoder):
    """BERT, or with `causal` the body of BertLeftToRight, without its pooler."""

    left_behind: ClassVar[tuple[str, ...]] = ("bert.pooler.",)

    def __init__(
        self, config: BertConfig, vocab_size: int, new_tokens: int = 0, *, causal: bool = False
    ) -> None:
        super().__init__()
        self.bert = Bert(config, vocab_size + new_tokens, pooler=False, causal=causal)
        self.width = config.hidden_size
        self.causal = causal
        self.max_length = config.max_length
        self.new_tokens = new_tokens
        self.pooler = None if causal else "bert.pooler."

    def layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        return self.bert.encode_layers(ids_BT, segments_BT, lengths_B)

    def levels(self) -> list[list[nn.Module]]:
        bert = self.bert
        tables = (bert.token_embedding, bert.segment_embedding, bert.position_embedding)
        embeddings: list[nn.Module] = [table for table in tables if table is not None]
        embeddings.append(bert.embedding_norm)
        return [embeddings, *blocks_by_layer([bert.transformer])]

    def word_table(self) -> Tensor:
        return self.bert.token_embedding.weight
