"""A pretrained model as an encoder: ids of rows in, one state for each token out.

    model                          states                                  width  causal
    bert: MLM, with or without     both directions in every layer          D      no
      pairs or sentence order
    modern_bert                    both directions, near tokens in most    D      no
    bert: left_to_right            itself and what came before             D      yes
    gpt (either norm), llama       itself and what came before             D      yes
    bidirectional, elmo            left to right and right to left, each   2D     no
                                   up to the token, concatenated
    lstm, rnn                      itself and what came before             D      yes
    nnlm                           itself and the n - 2 words before it    D      yes

What stands on top (finetune/heads.py) knows nothing of the family, whose file has its body. The
parameters have the names that they have in pretraining, so that the weights of a run load as they
are; its heads stay behind.

Rows are framed by three marks (tasks/items.py). What was pretrained on packed blocks has never seen
[CLS] and [SEP] in that role, if it has them at all. It gets three new tokens instead, start,
delimiter and extract, as in Radford et al. 2018 ("Improving Language Understanding by Generative
Pre-Training", section 3.3): three more rows of the token embedding, drawn afresh.

Shapes: B batch, T sequence, E width of a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rungwise.core.errors import ConfigError, DataError
from rungwise.models.body import Body, OnBody, TokenOutput, TransformerBody
from rungwise.models.objectives import Objective

if TYPE_CHECKING:  # which imports this file
    from rungwise.models.family import Family

NUM_MARKS = 3  # start, delimiter, extract


class LayeredEncoder(OnBody):
    """A body as an `Encoder` (capabilities.py). The last `new_tokens` of its table were not
    pretrained.

    `pooler` is what stands on the last state of the first token in pretraining, by the beginning of
    its names: it stays behind, and a head may take it up. None where there is no such thing.
    """

    def __init__(
        self, body: Body, max_length: int | None, new_tokens: int, pooler: str | None
    ) -> None:
        super().__init__(body)
        self.width = body.width
        self.causal = body.causal
        self.max_length = max_length
        self.new_tokens = new_tokens
        self.pooler = pooler

    def forward(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> Tensor:
        """The states (B, T, E) of the last layer; see `layers`."""
        return self.layers(ids_BT, segments_BT, lengths_B)[-1]

    def layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        """The embeddings and the states of each layer, every one (B, T, E); see `Encoder`."""
        return self.body.encode_layers(ids_BT, segments_BT, lengths_B)

    def write(self) -> None:
        """Let no token of the second text of a row see those after it, so that it can be written.

        The first text is read as in pretraining. Raises ConfigError for a body that cannot do both.
        """
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
        """The tensor with a row for each token, the new ones last."""
        return self.body.word_table()

    def depth(self) -> list[list[nn.Parameter]]:
        """The parameters of each level, every one once: the embeddings, then each layer."""
        return [[p for part in level for p in part.parameters()] for level in self.body.levels()]

    @property
    def num_layers(self) -> int:
        """How many layers there are above the embeddings."""
        return len(self.body.levels()) - 1

    def load(self, pretrained: Mapping[str, Tensor], loaded_layers: int | None = None) -> None:
        """Copy the weights out of the state dict of a pretraining model.

        With `loaded_layers` only the embeddings and so many of the lowest layers are copied, and
        what is above keeps its random start (Yosinski et al. 2014, arXiv:1411.1792, for images);
        None copies all. New tokens keep theirs. Raises DataError naming the first tensor that does
        not fit, before anything has been copied.
        """
        levels = self.depth()
        kept = levels if loaded_layers is None else levels[: loaded_layers + 1]
        self._copy(pretrained, [parameter for level in kept for parameter in level])

    def load_spelling(self, pretrained: Mapping[str, Tensor]) -> None:
        """Copy how tokens are written, which is all that a random start needs of it. `load` has
        done so; nothing for bodies that do not read it."""
        self._copy(pretrained, [])

    @torch.no_grad()
    def _copy(self, pretrained: Mapping[str, Tensor], chosen: Sequence[nn.Parameter]) -> None:
        tensors = self.state_dict(keep_vars=True)
        names = {id(tensor): name for name, tensor in tensors.items()}
        given = [tensor for tensor in tensors.values() if not isinstance(tensor, nn.Parameter)]
        table = self.word_table()
        copies: list[tuple[Tensor, Tensor]] = []
        for tensor in (*given, *chosen):
            name = names[id(tensor)]
            added = self.new_tokens if tensor is table else 0
            target = tensor[: len(tensor) - added]
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


def output_of(
    family: Family, objective: Objective, vocab_size: int, pretrained: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor | None]:
    """The matrix (V, D) and the bias (V,) by which a pretrained model predicts the next token; of
    others the table of tokens."""
    with torch.device("meta"):
        model = family.build(vocab_size, objective)
    model.load_state_dict(pretrained, assign=True)
    if isinstance(model, TokenOutput):
        return model.output_table(), model.output_bias()
    assert isinstance(model, OnBody)
    return model.body.word_table(), None


def predicts_by_table(family: Family, objective: Objective) -> bool:
    """Whether a state times the table of tokens, and no more, predicts the next token."""
    with torch.device("meta"):
        model = family.build(1, objective)
    return (
        isinstance(model, TokenOutput)
        and model.output_table() is model.body.word_table()
        and model.output_bias() is None
    )


def new_tokens_of(objective: Objective) -> int:
    """How many marks a model pretrained so has to learn; their ids follow the vocabulary."""
    return 0 if objective.masks else NUM_MARKS
