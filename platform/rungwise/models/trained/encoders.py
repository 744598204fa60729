"""A pretrained model as an encoder: rows of ids in, one state per token out. Vectors of words in
contexts and of texts, for families without ways of their own.

Parameters keep their names from pretraining, whose heads are left out. A model pretrained on packed
blocks gets three new, random tokens: start, delimiter and extract (Radford et al. 2018, section
3.3). A word is the mean of its tokens in every family, so that layers 0 of rungs compare.

Shapes: B batch, T sequence, E width of a state, K layers, N words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.arrays import Singles
from rungwise.core.errors import ConfigError, DataError
from rungwise.models.losses.objectives import Objective
from rungwise.models.trained.capabilities import Encoder, Texts, Words, WordVectors
from rungwise.models.trained.language_models import windows
from rungwise.models.transformer.body import Body, OnBody, TransformerBody

NUM_MARKS = 3  # start, delimiter, extract
_MOST_TOKENS = 1 << 13  # per batch, padding included


class LayeredEncoder(OnBody):
    """A body as an `Encoder`. The last `new_tokens` rows are not pretrained. `pooler` is how the
    names of pretraining's layer on the first state begin; a head may load it, this does not."""

    outputs: ClassVar[tuple[str, ...]] = ("last_hidden_state",)  # of `project`
    rows_per_item: ClassVar[int] = 1
    stepwise_part: ClassVar[str] = ""  # what reads or writes step by step, besides the body

    def __init__(self, body: Body, max_length: int | None, new_tokens: int) -> None:
        super().__init__(body)
        self.width = body.width
        self.widths = list(body.widths) or [body.width] * len(body.levels())
        self.causal = body.causal
        self.max_length = max_length
        self.new_tokens = new_tokens
        self.pooler = f"{body.name}.pooler." if body.pools and not body.causal else None

    def forward(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, lengths_B: Tensor | None = None
    ) -> Tensor:
        return self.layers(ids_BT, segments_BT, lengths_B)[-1]

    def layers(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, lengths_B: Tensor | None = None
    ) -> list[Tensor]:
        return self.body.encode_layers(ids_BT, segments_BT, lengths_B)

    def project(self, ids_RT: Tensor, segments_RT: Tensor, lengths_R: Tensor) -> Tensor:
        """Return what an export gives for each row."""
        return self(ids_RT, segments_RT, lengths_R)

    def drop_words(self, share: float) -> None:
        """In training drop this share of the words from a batch: their vectors are zeros, the
        others' are divided by what is left (Gal & Ghahramani 2016, arXiv:1512.05287)."""

        def drop(table: nn.Module, ids: tuple[Tensor, ...], vectors_BTD: Tensor) -> Tensor:
            if not table.training:
                return vectors_BTD
            kept_V = functional.dropout(vectors_BTD.new_ones(self.body.vocab_size), share)
            return vectors_BTD * kept_V[ids[0]][:, :, None]

        self.body.token_embedding.register_forward_hook(drop)

    def truncate(self, length: int) -> None:
        """Let gradients go back only so many tokens. Raises ConfigError for a body that is not
        recurrent."""
        if not hasattr(self.body, "gradient_length"):
            raise ConfigError(
                f"finetune.gradient_length is {length}, but a {self.body.name} does not read token "
                "by token with one state; leave it out, or take a model.kind that does (lstm, rnn, "
                "awd_lstm)"
            )
        self.body.gradient_length = length

    def write(self) -> None:
        """Make attention in the second text causal. Raises ConfigError for a body that cannot."""
        if self.causal:
            return
        if not isinstance(self.body, TransformerBody):
            raise ConfigError(
                f"model.kind is {self.body.name}, which cannot write a text for it reads both ways "
                "by parts of its own; a task of generation takes a model that reads from left to "
                "right (gpt, llama, lstm, rnn, nnlm) or one stack of blocks (bert, modern_bert)"
            )
        self.body.writes = True

    def word_table(self) -> Tensor:
        """Return the tensor with a row per token, the new ones last."""
        return self.body.word_table()

    def depth(self) -> list[list[nn.Parameter]]:
        """Return the parameters by level: the embeddings, then each layer."""
        return [[p for part in level for p in part.parameters()] for level in self.body.levels()]

    @property
    def num_layers(self) -> int:
        return len(self.body.levels()) - 1

    def load(self, pretrained: Mapping[str, Tensor], loaded_layers: int | None = None) -> None:
        """Copy the weights from the state dict of a pretraining model, but not of new tokens; with
        `loaded_layers` only the embeddings and the lowest layers (Yosinski et al. 2014,
        arXiv:1411.1792). Raises DataError before copying if a tensor does not fit."""
        levels = self.depth()
        if loaded_layers is not None:
            levels = levels[: loaded_layers + 1]
        self._copy(pretrained, [parameter for level in levels for parameter in level])

    def load_spelling(self, pretrained: Mapping[str, Tensor]) -> None:
        """Copy only the spelling of tokens, if the body reads it; `load` includes it."""
        self._copy(pretrained, [])

    @torch.no_grad()
    def _copy(self, pretrained: Mapping[str, Tensor], parameters: Sequence[nn.Parameter]) -> None:
        tensors = self.state_dict(keep_vars=True)
        names = {id(tensor): name for name, tensor in tensors.items()}
        buffers = [tensor for tensor in tensors.values() if not isinstance(tensor, nn.Parameter)]
        table = self.word_table()
        copies: list[tuple[Tensor, Tensor]] = []
        for tensor in (*buffers, *parameters):
            name = names[id(tensor)]
            extra = self.new_tokens if tensor is table else 0
            target = tensor[: len(tensor) - extra]
            source = pretrained.get(name)
            if source is None or source.shape != target.shape:
                shape = "none" if source is None else list(source.shape)
                raise DataError(
                    f"{name}: expected shape {list(target.shape)}, found {shape} in the pretrained "
                    "weights; give the model the config and the tokenizer of the pretraining run"
                )
            copies.append((target, source))
        for key in (key for key in pretrained if key not in tensors):
            is_pooler = self.pooler is not None and key.startswith(self.pooler)
            if key.startswith(f"{self.body.name}.") and not is_pooler:
                raise DataError(
                    f"the pretrained weights hold {key}, for which the model has no place; give "
                    "the model the config of the pretraining run"
                )
        for target, source in copies:
            target.copy_(source)


def count_marks(objective: Objective) -> int:
    """Return how many marks fine-tuning adds; their ids follow the vocabulary."""
    return 0 if objective.masks else NUM_MARKS


@dataclass(frozen=True)
class EncodedWords:
    """Reads words with an encoder. `opens` and `closes` frame a row; without `closes`, a window
    begins with the token before it, and without either with its first token."""

    encoder: Encoder
    opens: int | None
    closes: int | None

    @torch.no_grad()
    def word_layers(self, texts: Texts, words: Words) -> Singles:
        tokens: list[list[tuple[int, int]]] = []  # of each text: (word number, position)
        count = 0
        for ranges in words:
            tokens.append([(count + n, place) for n, each in enumerate(ranges) for place in each])
            count += len(ranges)
        rows: list[tuple[list[int], list[tuple[int, int]]]] = []  # ids; (position, word number)
        frame = (self.opens is not None) + (self.closes is not None)
        longest = None if self.encoder.max_length is None else self.encoder.max_length - frame
        for window in windows([len(text) for text in texts], longest):
            places = [
                (place - window.start + (self.opens is not None), number)
                for number, place in tokens[window.text]
                if window.first <= place < window.stop
            ]
            if places:
                rows.append((self._row(texts[window.text], window.start, window.stop), places))
        rows.sort(key=lambda row: len(row[0]))
        states, numbers = [], []
        while rows:
            size = max(1, _MOST_TOKENS // len(rows[-1][0]))
            batch, rows = rows[-size:], rows[:-size]
            layers = self._forward([ids for ids, _ in batch])
            at = [row for row, (_, places) in enumerate(batch) for _ in places]
            columns = [place for _, places in batch for place, _ in places]
            states.append(torch.stack([layer_BTE[at, columns] for layer_BTE in layers]))
            numbers += [number for _, places in batch for _, number in places]
        if not states:
            widest = max(self.encoder.widths)
            return np.zeros((self.encoder.num_layers + 1, count, widest), np.float32)
        return _means(torch.cat(states, dim=1), numbers, count)

    def _row(self, ids: Sequence[int], start: int, stop: int) -> list[int]:
        if self.opens is None:
            return [*ids[start:stop]]
        if self.closes is not None:
            return [self.opens, *ids[start:stop], self.closes]
        return [ids[start - 1] if start else self.opens, *ids[start:stop]]

    def _forward(self, rows: Sequence[list[int]]) -> list[Tensor]:
        longest = max(map(len, rows))
        ids_BT = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        lengths_B = torch.tensor([len(row) for row in rows])
        padded = bool((lengths_B < longest).any())
        layers = self.encoder.layers(ids_BT, None, lengths_B if padded else None)
        widest = max(layer_BTE.shape[2] for layer_BTE in layers)
        return [
            functional.pad(layer_BTE.float(), (0, widest - layer_BTE.shape[2]))
            for layer_BTE in layers
        ]


@dataclass(frozen=True)
class StaticWords:
    """Gives a word its one vector, in any context; its only layer is the table."""

    table: WordVectors

    def word_layers(self, texts: Texts, words: Words) -> Singles:
        tokens = [
            text[place]
            for text, ranges in zip(texts, words, strict=True)
            for each in ranges
            for place in each
        ]
        return word_means(self.table.vectors(tokens)[None], words)


@dataclass(frozen=True)
class MeanOfStates:
    """Gives a text the mean of its last states, the two marks included; a longer one is cut."""

    body: Body
    max_length: int | None
    opens: int
    closes: int

    @torch.no_grad()
    def sentence_vectors(self, texts: Texts) -> Singles:
        """Return the vectors (N, E). Texts are read alone: results do not depend on the batch."""
        room = None if self.max_length is None else self.max_length - 2
        rows = (torch.tensor([[self.opens, *text[:room], self.closes]]) for text in texts)
        states = [self.body.encode_layers(ids_1T)[-1][0].float() for ids_1T in rows]
        return np.array([states_TE.mean(dim=0).numpy() for states_TE in states])


def word_means(vectors: Singles, words: Words) -> Singles:
    """Return the mean (K, N, E) of each word's vectors, given those (K, tokens, E) of the tokens of
    all words in order; zeros for a word without tokens."""
    sizes = [len(each) for ranges in words for each in ranges]
    numbers = np.repeat(np.arange(len(sizes)), sizes).tolist()
    return _means(torch.from_numpy(vectors), numbers, len(sizes))


def _means(vectors: Tensor, numbers: list[int], count: int) -> Singles:
    """Return the mean (K, N, E) of each word's vectors (K, tokens, E); zeros if it has none."""
    index = torch.tensor(numbers, dtype=torch.int64)
    sums = torch.zeros(vectors.shape[0], count, vectors.shape[2]).index_add_(1, index, vectors)
    sizes = torch.bincount(index, minlength=count).clamp(min=1)
    return (sums / sizes[:, None]).numpy()
