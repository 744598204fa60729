"""A pretrained model as an encoder: ids of rows in, one state for each token out.

    model                          states                                  width  causal
    bert: MLM, with or without     both directions in every layer          D      no
      pairs or sentence order
    bert: left_to_right            itself and what came before             D      yes
    gpt, pre-norm or post-norm     itself and what came before             D      yes
    bidirectional                  left to right and right to left, each   2D     no
                                   up to the token, concatenated

What stands on top (finetune/heads.py) knows nothing of the family, whose file has its encoder. The
parameters have the names that they have in pretraining, so that the weights of a run load as they
are; its heads stay behind.

Rows are framed by three marks (tasks/items.py). What was pretrained on packed blocks has never seen
[CLS] and [SEP] in that role, if it has them at all. It gets three new tokens instead, start,
delimiter and extract, as in Radford et al. 2018 ("Improving Language Understanding by Generative
Pre-Training", section 3.3): three more rows of the token embedding, drawn afresh.

Shapes: B batch, T sequence, E width of a state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from rungwise.core.errors import DataError
from rungwise.models.objectives import Objective
from rungwise.models.transformer import Transformer

NUM_MARKS = 3  # start, delimiter, extract


class LayeredEncoder(nn.Module, ABC):
    """The `Encoder` (capabilities.py) that the families share.

    `width` is E; `causal` says that a state knows only its token and those before it; `max_length`
    is the longest row, None where there is no bound; `new_tokens` were not pretrained.
    """

    # What of the pretrained weights has no place here, by the beginnings of its names; of it,
    # `pooler` stood on the last state of the first token, and a head may take it up.
    left_behind: ClassVar[tuple[str, ...]] = ()
    pooler: str | None = None

    width: int
    causal: bool
    max_length: int | None
    new_tokens: int

    def forward(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> Tensor:
        """The states (B, T, E) of the last layer; see `layers`."""
        return self.layers(ids_BT, segments_BT, lengths_B)[-1]

    @abstractmethod
    def layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        """The embeddings and the states of each layer, every one (B, T, E).

        `lengths_B` are the numbers of real tokens in the rows, None says that no row is padded.
        States at padding mean nothing.
        """

    @abstractmethod
    def levels(self) -> list[list[nn.Module]]:
        """The parts with parameters, lowest first: the embeddings, then each layer."""

    @abstractmethod
    def word_table(self) -> Tensor | None:
        """The parameter with a row for each token, the new ones last; None where there is none."""

    def depth(self) -> list[list[nn.Parameter]]:
        """The parameters of each level, every one once."""
        return [[p for part in level for p in part.parameters()] for level in self.levels()]

    @property
    def num_layers(self) -> int:
        """How many layers there are above the embeddings."""
        return len(self.levels()) - 1

    @torch.no_grad()
    def load(self, pretrained: Mapping[str, Tensor], loaded_layers: int | None = None) -> None:
        """Copy the weights out of the state dict of a pretraining model.

        With `loaded_layers` only the embeddings and so many of the lowest layers are copied, and
        what is above keeps its random start (Yosinski et al. 2014, arXiv:1411.1792, for images);
        None copies all. New tokens keep theirs. Raises DataError naming the first tensor that does
        not fit, before anything has been copied.
        """
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        levels = self.depth()
        kept = levels if loaded_layers is None else levels[: loaded_layers + 1]
        table = self.word_table()
        copies: list[tuple[Tensor, Tensor]] = []
        for parameter in (parameter for level in kept for parameter in level):
            name = names[id(parameter)]
            added = self.new_tokens if parameter is table else 0
            target = parameter[: len(parameter) - added]
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
        self._refuse_left_over(pretrained, set(names.values()))
        for target, source in copies:
            target.copy_(source)

    def _refuse_left_over(self, pretrained: Mapping[str, Tensor], known: set[str]) -> None:
        bodies = tuple({f"{name.partition('.')[0]}." for name in known})
        for key in pretrained:
            if key in known or not key.startswith(bodies) or key.startswith(self.left_behind):
                continue
            raise DataError(
                f"the pretrained weights hold {key}, for which the model has no place; give the "
                "model the config of the pretraining run"
            )


def blocks_by_layer(stacks: Sequence[Transformer]) -> list[list[nn.Module]]:
    """The blocks of each layer of stacks side by side; the norm at the end of a pre-norm stack
    belongs to the highest."""
    layers = [list(blocks) for blocks in zip(*(stack.blocks for stack in stacks), strict=True)]
    layers[-1] += [stack.final_norm for stack in stacks]
    return layers


def new_tokens_of(objective: Objective) -> int:
    """How many marks a model pretrained so has to learn; their ids follow the vocabulary."""
    return 0 if objective.masks else NUM_MARKS
