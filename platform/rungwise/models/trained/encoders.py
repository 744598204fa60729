"""A pretrained model as an encoder: rows of ids in, one state per token out.

    model                          a state depends on                      width  causal
    bert: all masked objectives    both directions, in every layer         D      no
    modern_bert                    both directions, near tokens in most    D      no
    bert: left_to_right            its token and those before              D      yes
    gpt, llama, lstm, rnn,         its token and those before              D      yes
    awd_lstm
    bidirectional, elmo            left to right and right to left, each   2D     no
                                   up to the token, concatenated
    nnlm, log_bilinear             its token and the n - 2 before it       D      yes
    senna                          the window around its token             D      no

The heads on top (tasks/kinds/heads.py) do not know the family. Parameters keep their names from
pretraining, so the weights of a run load unchanged; its heads are left out.

Rows are framed by three marks (tasks/kinds/items.py). A model pretrained on packed blocks has not
seen [CLS] and [SEP] in that role, if it has them at all. It gets three new tokens instead, start,
delimiter and extract, as in Radford et al. 2018 ("Improving Language Understanding by Generative
Pre-Training", section 3.3): three new, randomly initialised rows of the token embedding.

Shapes: B batch, T sequence, E width of a state.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rungwise.core.errors import ConfigError, DataError
from rungwise.models.losses.objectives import Objective
from rungwise.models.transformer.body import Body, OnBody, TransformerBody

NUM_MARKS = 3  # start, delimiter, extract


class LayeredEncoder(OnBody):
    """A body as an `Encoder` (capabilities.py). The last `new_tokens` rows are not pretrained.
    `pooler` is the name prefix of pretraining's layer on the first token's last state, or None. The
    encoder leaves these weights out; a head may load them."""

    def __init__(
        self, body: Body, max_length: int | None, new_tokens: int, pooler: str | None = None
    ) -> None:
        super().__init__(body)
        self.width = body.width
        self.widths = list(body.widths) or [body.width] * len(body.levels())
        self.causal = body.causal
        self.max_length = max_length
        self.new_tokens = new_tokens
        self.pooler = pooler

    def forward(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, lengths_B: Tensor | None = None
    ) -> Tensor:
        return self.layers(ids_BT, segments_BT, lengths_B)[-1]

    def layers(
        self, ids_BT: Tensor, segments_BT: Tensor | None = None, lengths_B: Tensor | None = None
    ) -> list[Tensor]:
        return self.body.encode_layers(ids_BT, segments_BT, lengths_B)

    def drop_words(self, share: float) -> None:
        """In training drop this share of the words, at all their places in a batch: their vectors
        are zeros, the others' are divided by what is left (Gal & Ghahramani 2016,
        arXiv:1512.05287)."""

        def drop(table: nn.Module, ids: tuple[Tensor, ...], vectors_BTD: Tensor) -> Tensor:
            if not table.training:
                return vectors_BTD
            kept_V = functional.dropout(vectors_BTD.new_ones(self.body.vocab_size), share)
            return vectors_BTD * kept_V[ids[0]][:, :, None]

        self.body.token_embedding.register_forward_hook(drop)

    def truncate(self, length: int) -> None:
        """Let gradients go back only so many tokens. Raises ConfigError for a body that is not
        recurrent."""
        body: Any = self.body
        if not hasattr(body, "gradient_length"):
            raise ConfigError(
                f"finetune.gradient_length is {length}, but a {self.body.name} does not read token "
                "by token with one state; leave it out, or take a model.kind that does (lstm, rnn, "
                "awd_lstm)"
            )
        body.gradient_length = length

    def write(self) -> None:
        """Make attention in the second text causal, for generation; the first text is unaffected.
        Raises ConfigError for a body that does not support it."""
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
        """The number of layers above the embeddings."""
        return len(self.body.levels()) - 1

    def load(self, pretrained: Mapping[str, Tensor], loaded_layers: int | None = None) -> None:
        """Copy the weights from the state dict of a pretraining model.

        With `loaded_layers`, copy only the embeddings and that many of the lowest layers; the rest
        keep their random weights (Yosinski et al. 2014, arXiv:1411.1792, for images), as do new
        tokens. Raises DataError naming the first tensor that does not fit, before copying anything.
        """
        levels = self.depth()
        if loaded_layers is not None:
            levels = levels[: loaded_layers + 1]
        self._copy(pretrained, [parameter for level in levels for parameter in level])

    def load_spelling(self, pretrained: Mapping[str, Tensor]) -> None:
        """Copy only the spelling of tokens, for a random start; `load` includes it. A no-op for
        bodies that do not read it."""
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
            if source is None:
                raise DataError(
                    f"the pretrained weights lack {name}, expected with shape "
                    f"{list(target.shape)}; give the model the config of the pretraining run"
                )
            if source.shape != target.shape:
                raise DataError(
                    f"{name}: expected shape {list(target.shape)}, found {list(source.shape)} in "
                    "the pretrained weights; give the model the config and the tokenizer of the "
                    "pretraining run"
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
