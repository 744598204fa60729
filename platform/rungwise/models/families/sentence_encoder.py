"""Encoders of sentences, and their objectives: what the vector of a sentence must tell.

    sentence ──> word vectors ──> network ──> states of tokens ──> pooling ──> vector (D,)

    network        states                                    pooling, unless it is given
    words          the word vectors; layers are feed-forward,    sum
                   on the pooled vector (Iyyer et al. 2015: DAN)
    gru, lstm      from left to right                        last
    two_grus, ...  both directions, concatenated             last: the end of each direction
    transformer    all tokens, with sinusoids for places     mean

    quick_thoughts         which sentences of a run are its neighbours (Logeswaran & Lee 2018,
                           arXiv:1803.02893)
    skip_thoughts          the words of both neighbours (Kiros et al. 2015, arXiv:1506.06726)
    sentence_autoencoder   its own words (after Dai & Le 2015, arXiv:1511.01432)
    sentence_translation   those of a text aligned with it, such as its translation or linearised
                           parse (Subramanian et al. 2018, arXiv:1804.00079: GenSen)
    inference              how it is related to another one, a label of pairs (Conneau et al. 2017,
                           arXiv:1705.02364: InferSent)

Targets stay within a document or pair. InferSent is `two_lstms` with `max`. The Universal Sentence
Encoder (Cer et al. 2018, arXiv:1803.11175) is a Transformer with `root`; its angular similarity
orders as the cosine does. Quick-thoughts has a second encoder: the vector is [f; g], each of length
1. A GRU that reads the words before and, at each, the vector writes a text (the terms C h of Kiros
et al. in all gates).

Shapes: B runs or pairs, R sentences of a run, L tokens of a sentence, N = B·R sentences, M
embedding size, D hidden, E width of a state, K layers, C labels, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from rungwise.core.arrays import Singles
from rungwise.core.errors import BlockError, ConfigError, format_count
from rungwise.core.tokens import SpecialIds
from rungwise.instances.batch import LabelledPairs, SentenceRuns, TextPairs
from rungwise.models.counterpart import Architecture, Counterpart, SentenceModule
from rungwise.models.family import LayeredFamily
from rungwise.models.losses.cross_entropy import TokenSums, at_least_float32, token_sums
from rungwise.models.losses.objectives import (
    BatchShapes,
    Loss,
    Losses,
    Meaning,
    ModelHead,
    Objective,
    Origin,
    Part,
    label_losses,
    only_part,
)
from rungwise.models.trained.capabilities import Texts, Words
from rungwise.models.trained.encoders import EncodedWords, LayeredEncoder
from rungwise.models.transformer.block import (
    Layer,
    Pooling,
    Transformer,
    draw_uniform,
    gather_positions,
    initialise,
    pool,
    real_places,
    sinusoid_positions,
)
from rungwise.models.transformer.body import Body, OnBody, blocks_by_layer

_PAIRED = "paired"  # the place of the second text of a pair
# The places of what is written, in sentences behind the one that is read.
_NEAR, _OWN = (-1, 1), (0,)
_SENTENCES_AT_ONCE = 256
_BLOCK_RANGE = 0.02  # of the Transformer's random weights
_POOLING: dict[str, Pooling] = {"words": "sum", "transformer": "mean"}  # else last
_GATES = {"gru": 3, "lstm": 4}
_LONGEST = 512  # tokens of a text; the formula of the positions has no end, their table has
_BLOCK, _LAYER = "sentence.transformer.blocks.{}", "encoder.layer.{}"


@dataclass(frozen=True, kw_only=True)
class SentenceHead(ModelHead):
    """The parts beside the encoder that an objective of sentence vectors needs."""

    gives_sentences: ClassVar[bool] = True
    page_name: str = "sentence encoder"
    encoders: int = 1  # 2: a second one without shared weights, `other` of the model
    writes: tuple[int | str, ...] = ()  # a GRU for each of these texts to write, in `writers`
    classifies: bool = False  # layers for the labels of pairs, `classifier` of the model


def sentence_vectors(
    encoder: nn.Module, rows: SentenceRuns[Tensor] | LabelledPairs[Tensor]
) -> Tensor:
    """Return the vectors (B, R, D) of the sentences of rows; a pair is two."""
    vectors_ND = encoder(rows.ids.flatten(0, 1), rows.lengths.flatten())
    return vectors_ND.unflatten(0, rows.lengths.shape)


def mark_paired(document_BR: Tensor, offset: int) -> Tensor:
    """Mark the sentences (B, R - |offset|) with another of their document at `offset`."""
    last = document_BR.shape[1] - abs(offset)
    first_BR, second_BR = document_BR[:, :last], document_BR[:, abs(offset) :]
    return (first_BR == second_BR) & (first_BR > 0)


def neighbours(document_BR: Tensor) -> Tensor:
    """Mark which sentences are neighbours in their document, (B, R, R)."""
    after_BRR = torch.diag_embed(mark_paired(document_BR, 1), offset=1)
    return after_BRR | after_BRR.transpose(1, 2)


def mask_diagonal(scores_BRR: Tensor) -> Tensor:
    """Replace the scores of sentences with themselves by -inf; the code of lajanugen/S2V has 0."""
    own_RR = torch.eye(scores_BRR.shape[-1], dtype=torch.bool, device=scores_BRR.device)
    return scores_BRR.masked_fill(own_RR, -torch.inf)


def _neighbour_losses(scores_BRR: Tensor, batch: SentenceRuns[Tensor]) -> Losses:
    near_BRR = neighbours(batch.document)
    # -inf for what is no candidate would make rows of no sentence NaN, in the gradient too.
    real_BR = batch.document > 0
    scores_BRR = scores_BRR.masked_fill(~real_BR[:, None] & real_BR[:, :, None], -torch.inf)
    log_BRR = at_least_float32(scores_BRR).log_softmax(dim=2)
    count_BR = near_BRR.sum(2)
    log_BR = log_BRR.masked_fill(~near_BRR, 0.0).sum(2) / count_BR.clamp(min=1)
    best_BR1 = scores_BRR.argmax(2, keepdim=True)
    correct_BR = near_BRR.gather(2, best_BR1)[:, :, 0]
    return only_part((-log_BR.sum(), correct_BR.sum()))


def _choose(model: Any, rows: SentenceRuns[Tensor]) -> Tensor:
    """Return the scores (B, R, R) of sentence j as a neighbour of sentence i."""
    f_BRD, g_BRD = (sentence_vectors(each, rows) for each in (model.body, model.other))
    return mask_diagonal(f_BRD @ g_BRD.transpose(1, 2))


QUICK_THOUGHTS = Objective(
    "quick_thoughts",
    Part("neighbour", "neighbour", "Neighbours found among the sentences of a run", "sentence"),
    reads=("sentence_runs",),
    masks=False,
    loss=Loss(
        lambda batch: neighbours(batch.document).any(2).sum()[None].float(),  # () -> (1,)
        lambda model, batch: model(batch, _choose),
        _neighbour_losses,
    ),
    meaning=Meaning.ANSWERS,
    shapes=BatchShapes.UNKNOWN,
    origin=Origin(
        2018, "Logeswaran & Lee", "reads a sentence and picks its neighbour among others"
    ),
    head=SentenceHead(page_name="Quick-thoughts model", encoders=2),
)


def _count_written(offsets: tuple[int, ...], batch: SentenceRuns[Tensor]) -> Tensor:
    sums = []
    for offset in offsets:
        lengths_BR = targets(batch.lengths, offset)
        sums.append((lengths_BR * mark_paired(batch.document, offset)).sum())
    return torch.stack(sums).sum()[None].float()  # () -> (1,)


def targets(values_BR: Tensor, offset: int) -> Tensor:
    """Return the values of what is written: those of sentences that follow one at `offset`."""
    return values_BR[:, max(0, offset) : values_BR.shape[1] + min(0, offset)]


def _write_sentences(offsets: tuple[int, ...], model: Any, rows: SentenceRuns[Tensor]) -> TokenSums:
    """Sum the losses of the words of the sentences at each offset of every sentence."""
    vectors_BRD = sentence_vectors(model.body, rows)
    pieces = []
    for offset in offsets:
        chosen_BR = mark_paired(rows.document, offset)
        places = ((vectors_BRD, -offset), (rows.ids, offset), (rows.lengths, offset))
        parts = [targets(values, place)[chosen_BR] for values, place in places]
        if len(parts[0]):
            pieces.append(_states_and_words(model, str(offset), *parts))
    if not pieces:  # no sentence has a neighbour
        return TokenSums(0 * vectors_BRD.sum(), vectors_BRD.new_zeros(()))
    return _word_sums(model, pieces)


def _make_loss(offsets: tuple[int, ...]) -> Loss:
    write = partial(_write_sentences, offsets)
    return Loss(
        partial(_count_written, offsets), lambda model, batch: only_part(model(batch, write))
    )


def _write_second(model: Any, pairs: TextPairs[Tensor]) -> TokenSums:
    """Sum the losses of the words of the second text of pairs, given the first."""
    vectors_BD = model.body(pairs.ids[:, 0], pairs.lengths[:, 0])
    second = pairs.ids[:, 1], pairs.lengths[:, 1]
    return _word_sums(model, [_states_and_words(model, _PAIRED, vectors_BD, *second)])


def _states_and_words(
    model: Any, writer: str, from_ND: Tensor, ids_NL: Tensor, lengths_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the states (X, D) before each word of texts, and the words (X,)."""
    real_NL = real_places(ids_NL.shape[1], lengths_N)
    states_NLD = model.writers[writer](model.body.token_embedding(ids_NL), from_ND)
    return states_NLD[real_NL], ids_NL[real_NL]


def _word_sums(model: Any, pieces: Sequence[tuple[Tensor, Tensor]]) -> TokenSums:
    states_XD, words_X = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    weights_X = torch.ones_like(words_X, dtype=states_XD.dtype)
    return token_sums(states_XD, model.output.weight, model.output_bias, words_X, weights_X)


SKIP_THOUGHTS = replace(
    QUICK_THOUGHTS,
    name="skip_thoughts",
    tokens=Part(
        "neighbour_words", "neighbours' words", "Words of neighbours written correctly", "token"
    ),
    loss=_make_loss(_NEAR),
    meaning=Meaning.TOKENS,
    origin=Origin(2015, "Kiros et al.", "reads a sentence and writes the ones around it"),
    head=SentenceHead(page_name="Skip-thoughts model", writes=_NEAR),
)
SENTENCE_AUTOENCODER = replace(
    SKIP_THOUGHTS,
    name="sentence_autoencoder",
    tokens=Part("own_words", "own words", "Words written again correctly", "token"),
    loss=_make_loss(_OWN),
    origin=Origin(2015, "after Dai & Le", "reads a sentence and writes it again"),
    head=SentenceHead(writes=_OWN),
)


SENTENCE_TRANSLATION = replace(
    SKIP_THOUGHTS,
    name="sentence_translation",
    tokens=Part(
        "aligned_words", "aligned words", "Words of aligned texts written correctly", "token"
    ),
    reads=("aligned_lines",),
    loss=Loss(
        lambda batch: batch.lengths[:, 1].sum()[None].float(),  # () -> (1,)
        lambda model, batch: only_part(model(batch, _write_second)),
    ),
    origin=Origin(2017, "after McCann et al.", "reads a sentence and writes its translation"),
    head=SentenceHead(writes=(_PAIRED,)),
)


def _judge(model: Any, pairs: LabelledPairs[Tensor]) -> Tensor:
    """Return the logits (B, C) of the labels of pairs."""
    u_BD, v_BD = sentence_vectors(model.body, pairs).unbind(1)
    return model.classifier(torch.cat([u_BD, v_BD, (u_BD - v_BD).abs(), u_BD * v_BD], dim=1))


INFERENCE = replace(
    QUICK_THOUGHTS,
    name="inference",
    tokens=Part("relation", "relation", "Pairs of sentences labelled correctly", "pair", 3),
    reads=("labelled_pairs",),
    loss=Loss(
        lambda batch: torch.tensor([float(len(batch.label))], device=batch.label.device),
        lambda model, batch: model(batch, _judge),
        lambda logits_BC, batch: only_part(label_losses(logits_BC, batch.label)),
    ),
    origin=Origin(2017, "Conneau et al.", "learns which sentences follow from which others"),
    head=SentenceHead(classifies=True),
)
SENTENCES = (QUICK_THOUGHTS, SKIP_THOUGHTS, SENTENCE_AUTOENCODER, SENTENCE_TRANSLATION, INFERENCE)


class SentenceEncoderConfig(LayeredFamily):
    """An encoder of sentences; the defaults are those of the paper of Quick-thoughts."""

    year: ClassVar[int] = 2018
    paper: ClassVar[str] = "Logeswaran & Lee"
    objectives: ClassVar = SENTENCES
    rates_texts: ClassVar[bool] = False
    mixes: ClassVar[bool] = True

    kind: Literal["sentence_encoder"] = "sentence_encoder"
    network: Literal["words", "gru", "two_grus", "lstm", "two_lstms", "transformer"] = "two_grus"
    # how the states become a vector, `root` being the sum over the root of the length; null: last
    # for recurrent networks, sum for words, mean for a transformer
    pooling: Pooling | None = None
    embedding_size: int = Field(default=620, ge=1)
    hidden_size: int = Field(default=1200, ge=1)  # of the vector
    # layers of cells or blocks; of words: of the feed-forward network on the pooled vector
    num_layers: int = Field(default=1, ge=0)
    num_heads: int = Field(default=4, ge=1)  # of a transformer
    # share of the units of word vectors that are dropped
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    classifier_size: int = Field(default=512, ge=1)  # inference: of the layers above the pair
    num_labels: int = Field(default=3, ge=2)  # inference
    # weights are drawn uniformly from minus to plus this; those of blocks from a normal
    initializer_range: float = Field(default=0.1, gt=0.0)

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        D = self.hidden_size
        if self.network.startswith("two") and D % 2:
            raise BlockError(
                f"hidden_size is divided between two directions and must be even, found {D}; "
                "network gru or lstm has one direction",
                {"hidden_size": D + 1},
            )
        as_wide = self.network == "transformer" or (self.network == "words" and not self.num_layers)
        if as_wide and self.embedding_size != D:
            raise BlockError(
                f"network {self.network} has vectors of embedding_size {self.embedding_size}, "
                f"found hidden_size {D}",
                {"hidden_size": self.embedding_size},
            )
        if self.network != "words" and not self.num_layers:
            raise BlockError(f"network {self.network} has layers, found 0", {"num_layers": 1})
        if self.network == "transformer" and D % self.num_heads:
            raise BlockError(
                f"hidden_size must be a multiple of num_heads, found {D} and {self.num_heads}",
                {"num_heads": 1},
            )
        return self

    @classmethod
    def counterparts(cls) -> tuple[Counterpart, ...]:
        return _ESM, _STATIC

    @property
    def directions(self) -> int:
        return 2 if self.network.startswith("two") else 1

    @property
    def cell(self) -> str | None:
        """`gru` or `lstm`; None for other networks."""
        name = self.network.removeprefix("two_").removesuffix("s")
        return name if name in _GATES else None

    @property
    def depth(self) -> int:
        return 2 * max(1, self.num_layers)

    def describe(self) -> str:
        layers = "" if self.num_layers == 1 else f" of {format_count(self.num_layers, 'layer')}"
        pooling = f", {self.pooling} of states" if self.pooling else ""
        return f"network {self.network}{layers}{pooling}, hidden size {self.hidden_size}"

    def page_name(self, objective: Objective) -> str:
        (head, *others) = _heads(objective, self)
        return SentenceHead.page_name if others else head.page_name

    def blocks(self) -> list[Layer]:
        """The options of the Transformer's blocks."""
        D, heads = self.hidden_size, self.num_heads
        block = Layer(D, heads, 4 * D, "pre", "gelu", 1e-5, self.dropout, heads, D // heads)
        return [block] * self.num_layers

    def build(self, vocab_size: int, objective: Objective) -> nn.Module:
        return SentenceModel(self, vocab_size, objective)

    def body(self, vocab_size: int, objective: Objective) -> Body:
        return SentenceBody(self, vocab_size)

    def trained(
        self, model: Any, objective: Objective, special: SpecialIds
    ) -> "SentenceVectorModel":
        return SentenceVectorModel(model)

    def flops_per_token(self, V: int, T: int, objective: Objective, M: float = 0.0) -> float:
        """Count the G gates of the first layer and those above, of d directions: 6·G·(M·D + D²/d)
        and 6·G·(D² + D²/d), or the blocks, once for each encoder; for each sentence written 6·3·(M
        + 2·D)·D + 6·D·V. Work per sentence and per pair is not counted."""
        D, E = self.hidden_size, self.embedding_size
        (head, *others) = _heads(objective, self)
        # The steps of a mixture differ: only one encoder is counted.
        encoders, written = (1, 0) if others else (head.encoders, len(head.writes))
        flops = 0.0
        if self.cell:
            inputs = E + (self.num_layers - 1) * D
            square = self.num_layers * D * D // self.directions
            flops = 6.0 * encoders * _GATES[self.cell] * (inputs * D + square)
        elif self.network == "transformer":
            flops = float(encoders * sum(each.flops(T, causal=False) for each in self.blocks()))
        return flops + written * (18.0 * (E + 2 * D) * D + 6 * D * V)


class SentenceBody(Body):
    """The encoder: word vectors, the network, and the pooling of its states."""

    name: ClassVar[str] = "sentence"

    def __init__(self, config: SentenceEncoderConfig, vocab_size: int) -> None:
        M, D, number = config.embedding_size, config.hidden_size, config.num_layers
        super().__init__(vocab_size, M, config.dropout)
        self.hidden_size = D
        self.pooling: Pooling = config.pooling or _POOLING.get(config.network, "last")
        self.causal = config.cell is not None and config.directions == 1
        self.feeds_forward = config.network == "words"
        self.transformer, self.layers = None, nn.ModuleList()
        sizes = [M, *([D] * number)]
        if config.cell:
            cells: type[nn.GRU | nn.LSTM] = {"gru": nn.GRU, "lstm": nn.LSTM}[config.cell]
            each = D // config.directions
            self.layers.extend(
                nn.ModuleList(
                    cells(before, each, batch_first=True) for _ in range(config.directions)
                )
                for before in sizes[:-1]
            )
        elif self.feeds_forward:
            self.layers.extend(nn.Linear(before, D) for before in sizes[:-1])
        self.widths = [M] if self.feeds_forward else sizes
        self.width = self.widths[-1]
        draw_uniform(self, config.initializer_range)
        if config.network == "transformer":
            self.transformer = Transformer(config.blocks(), causal=False)
            initialise(self.transformer, _BLOCK_RANGE)
            # States of length sqrt(D) would give scores of hundreds, and a loss as high.
            nn.init.constant_(self.transformer.final_norm.weight, config.initializer_range)  # pyright: ignore[reportArgumentType]

    def forward(self, ids_NL: Tensor, lengths_N: Tensor) -> Tensor:
        """Return the vectors (N, D); that of a sentence of no tokens means nothing."""
        states_NLD = self.read_layers(ids_NL, lengths_N)[-1]
        if self.feeds_forward:
            vectors_ND = pool(states_NLD, lengths_N, self.pooling)
            for layer in self.layers:
                vectors_ND = layer(vectors_ND).tanh()
            return vectors_ND
        if self.pooling == "last" and not self.causal and self.transformer is None:
            left_ND, right_ND = states_NLD.chunk(2, dim=2)
            # The right-to-left state that has read all is that of the first token.
            return torch.cat([pool(left_ND, lengths_N, "last"), right_ND[:, 0]], dim=1)
        return pool(states_NLD, lengths_N, self.pooling)

    def read_layers(self, ids_BT: Tensor, lengths_B: Tensor | None) -> list[Tensor]:
        if lengths_B is None:
            lengths_B = torch.full((len(ids_BT),), ids_BT.shape[1], device=ids_BT.device)
        states = [self.dropout(self.token_embedding(ids_BT))]
        if self.transformer is not None:
            _, T, D = states[0].shape
            places_TD = sinusoid_positions(T, D, ids_BT.device, states[0].dtype)
            embedded_BTD = states[0] * D**0.5 + places_TD
            return self.transformer.layers(embedded_BTD, lengths_B.clamp(min=1))
        if self.feeds_forward:
            return states
        place_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        turned_BT = (lengths_B[:, None] - 1 - place_T).clamp(min=0)
        for layer in self.layers:
            outputs = []
            for number, cells in enumerate(layer):  # pyright: ignore[reportArgumentType]
                read_BTD = gather_positions(states[-1], turned_BT) if number else states[-1]
                output_BTD = cells(read_BTD)[0]
                outputs.append(gather_positions(output_BTD, turned_BT) if number else output_BTD)
            states.append(torch.cat(outputs, dim=2))
        return states

    def levels(self) -> list[list[nn.Module]]:
        if self.transformer is not None:
            return [[self.token_embedding], *blocks_by_layer([self.transformer])]
        layers = [] if self.feeds_forward else self.layers
        return [[self.token_embedding], *([layer] for layer in layers)]


class Writer(nn.Module):
    """Writes a sentence from a vector, word by word."""

    def __init__(self, config: SentenceEncoderConfig) -> None:
        super().__init__()
        M, D = config.embedding_size, config.hidden_size
        self.cells = nn.GRU(M + D, D, batch_first=True)

    def forward(self, words_NLM: Tensor, vectors_ND: Tensor) -> Tensor:
        """Return the states (N, L, D) that have read the vector and the words before each."""
        before_NLM = functional.pad(words_NLM[:, :-1], (0, 0, 1, 0))
        vectors_NLD = vectors_ND[:, None].expand(-1, words_NLM.shape[1], -1)
        return self.cells(torch.cat([before_NLM, vectors_NLD], dim=2))[0]


class SentenceModel(OnBody):
    """The encoder, and what the objective needs besides."""

    purpose = "vectors"

    def __init__(
        self, config: SentenceEncoderConfig, vocab_size: int, objective: Objective
    ) -> None:
        super().__init__(SentenceBody(config, vocab_size))
        self.other = None
        heads = _heads(objective, config)
        D, bound = config.hidden_size, config.initializer_range
        if any(head.encoders > 1 for head in heads):
            self.other = SentenceBody(config, vocab_size)
        texts = [str(text) for head in heads for text in head.writes]
        self.writers = nn.ModuleDict({text: Writer(config) for text in texts})
        draw_uniform(self.writers, bound)
        if texts:
            self.output = self.body.own_output(D, bound)
            self.output_bias = nn.Parameter(torch.zeros(vocab_size))
        if any(head.classifies for head in heads):
            C, labels = config.classifier_size, config.num_labels
            self.classifier = nn.Sequential(
                nn.Linear(4 * D, C), nn.Linear(C, C), nn.Linear(C, labels)
            )

    @property
    def pooling(self) -> Pooling:
        return self.body.pooling

    def forward(self, rows: Any, compute: Callable[[Self, Any], Any]) -> Any:
        """Compute what the objective asks."""
        return compute(self, rows)

    def word_bias(self) -> Tensor | None:
        return self.output_bias if len(self.writers) else None


def _heads(objective: Objective, config: SentenceEncoderConfig) -> list[SentenceHead]:
    """Return the head of the objective, or those of a mixture in the order of the family's."""
    names = {each.name for each in objective.mixture or (objective,)}
    heads = [each.head for each in config.objectives if each.name in names]
    return cast(list[SentenceHead], heads)


@dataclass(frozen=True)
class SentenceVectorModel:
    """Trained encoders as `SentenceVectors`, their states as `ContextWordVectors`."""

    module: SentenceModel

    @torch.no_grad()
    def sentence_vectors(self, texts: Texts) -> Singles:
        """Return the vectors (N, E), of both encoders if there are two; zeros for no tokens."""
        encoders = [each for each in (self.module.body, self.module.other) if each is not None]
        device = next(self.module.parameters()).device
        parts, places = [], []
        by_length = sorted((n for n in range(len(texts)) if texts[n]), key=lambda n: len(texts[n]))
        for begin in range(0, len(by_length), _SENTENCES_AT_ONCE):
            part = by_length[begin : begin + _SENTENCES_AT_ONCE]
            lengths_N = torch.tensor([len(texts[n]) for n in part], device=device)
            rows = [torch.tensor(texts[n], device=device) for n in part]
            vectors = [encoder(pad_sequence(rows, True), lengths_N) for encoder in encoders]
            if len(encoders) > 1:
                vectors = [functional.normalize(each) for each in vectors]
            parts.append(torch.cat(vectors, dim=1).float().cpu().numpy())
            places += part
        size = len(encoders) * self.module.body.hidden_size
        whole = np.zeros((len(texts), size), dtype=np.float32)
        if places:
            whole[places] = np.concatenate(parts)
        return whole

    def word_layers(self, texts: Texts, words: Words) -> Singles:
        encoder = LayeredEncoder(self.module.body, None, 0)
        return EncodedWords(encoder, None, None).word_layers(texts, words)


# In sentence-transformers: word vectors as StaticEmbedding, with a Dense for each feed-forward
# layer; a Transformer as EsmModel of transformers, whose blocks normalise first and which adds
# positions to embeddings without a norm. Its library pools no sums, and has no recurrent network
# that reads our tokenizers. What an objective needs besides the encoder is left out.


def _check_modules(model: SentenceModel, config: SentenceEncoderConfig) -> None:
    pooled = {"words": ("mean",), "transformer": ("mean", "root", "max", "last")}
    if model.other is not None:
        misfit = "the vectors of two encoders side by side, each of length 1, as of quick_thoughts"
    elif config.cell:
        misfit = f"network {config.network} on these tokens"
    elif model.pooling not in pooled[config.network]:
        misfit = f"network {config.network} with pooling {model.pooling}"
    else:
        return
    raise ConfigError(
        f"sentence-transformers has no module for {misfit}; `rungwise predict` writes the "
        "vectors of texts, a line of JSON each"
    )


def _list_modules(model: SentenceModel) -> list[SentenceModule]:
    table = model.body.word_table()
    modules = [SentenceModule("StaticEmbedding", tensors={"embedding.weight": table.detach()})]
    for layer in model.body.layers:
        settings = {
            "out_features": layer.out_features,
            "in_features": layer.in_features,
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }
        tensors = {f"linear.{name}": tensor for name, tensor in layer.state_dict().items()}
        modules.append(SentenceModule("Dense", settings, tensors))
    return modules


def _compute_tensors(body: SentenceBody, config: SentenceEncoderConfig) -> dict[str, Tensor]:
    """The states of the body, and zeros for heads that nothing reads."""
    D, heads = config.hidden_size, config.num_layers * config.num_heads
    return {
        "sentence.token_embedding.weight": body.word_table().detach() * D**0.5,
        "sentence.position_embedding.weight": sinusoid_positions(_LONGEST, D),
        "pooler.weight": torch.zeros(D, D),
        "pooler.bias": torch.zeros(D),
        "contacts.weight": torch.zeros(1, heads),
        "contacts.bias": torch.zeros(1),
    }


_VECTORS = {"vectors": Architecture("EsmModel")}
_ESM = Counterpart(
    model_type="esm",
    when={"network": "transformer"},
    is_read=False,
    architectures=_VECTORS,
    names={
        "sentence.token_embedding": "embeddings.word_embeddings",
        "sentence.position_embedding": "embeddings.position_embeddings",
        f"{_BLOCK}.attention_norm": f"{_LAYER}.attention.LayerNorm",
        f"{_BLOCK}.attention.query_key_value": tuple(
            f"{_LAYER}.attention.self.{name}" for name in ("query", "key", "value")
        ),
        f"{_BLOCK}.attention.output": f"{_LAYER}.attention.output.dense",
        f"{_BLOCK}.mlp_norm": f"{_LAYER}.LayerNorm",
        f"{_BLOCK}.mlp.expand": f"{_LAYER}.intermediate.dense",
        f"{_BLOCK}.mlp.contract": f"{_LAYER}.output.dense",
        "sentence.transformer.final_norm": "encoder.emb_layer_norm_after",
        "pooler": "pooler.dense",
        "contacts": "contact_head.regression",
    },
    after_padding="sentence.position_embedding.weight",
    computed=_compute_tensors,
    sizes={
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
    },
    defaults={},
    dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    keys=lambda config: {
        "intermediate_size": config.blocks()[0].intermediate_size,
        "layer_norm_eps": config.blocks()[0].epsilon,
        "max_position_embeddings": _LONGEST,
        "position_embedding_type": "absolute",
        "emb_layer_norm_before": False,
        "token_dropout": False,
    },
    check=_check_modules,
    token_ids={"pad_token_id": "pad_token"},
)
_STATIC = Counterpart(
    model_type="",
    is_read=False,
    architectures=_VECTORS,
    check=_check_modules,
    modules=_list_modules,
)
