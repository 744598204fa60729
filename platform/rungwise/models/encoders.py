"""Any pretrained model as an encoder: ids of rows in, one state for each token out.

    model                          states                                  width  causal
    bert: MLM, with or without     both directions in every layer          D      no
      pairs or sentence order
    bert: left_to_right            itself and what came before             D      yes
    gpt, pre-norm or post-norm     itself and what came before             D      yes
    bidirectional                        left to right and right to left, each   2D     no
                                   up to the token, concatenated

What stands on top (heads.py) knows nothing of the family. The parameters have the names that they
have in pretraining, so that the weights of a run load as they are; its heads stay behind, BERT's
pooler too: it is loaded as a part of the head that uses it.

Rows are framed by three marks (tasks/items.py). What was pretrained on packed blocks has never seen
[CLS] and [SEP] in that role, if it has them at all. It gets three new tokens instead, start,
delimiter and extract, as in Radford et al. 2018 ("Improving Language Understanding by Generative
Pre-Training", section 3.3): three more rows of the token embedding, drawn afresh.

Shapes: B batch, T sequence, D hidden, E width of a state, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rungwise.core.errors import DataError
from rungwise.models.bert import Bert, BertConfig
from rungwise.models.bidirectional import Bidirectional, BidirectionalConfig
from rungwise.models.config import AnyModelConfig, ObjectiveKind, check_objective
from rungwise.models.gpt import Gpt, GptConfig
from rungwise.models.transformer import Transformer

NUM_MARKS = 3  # start, delimiter, extract
_OF_BLOCKS: tuple[ObjectiveKind, ...] = ("causal", "left_to_right", "bidirectional")


class Encoder(nn.Module, ABC):
    """What every pretrained model is to a task.

    `width` is E; `causal` says that a state knows only its token and those before it;
    `longest_row` is the number of positions, None where there is no bound.
    """

    width: int
    causal: bool
    longest_row: int | None
    new_tokens: int

    @property
    @abstractmethod
    def tokens(self) -> nn.Embedding:
        """The token embedding; its last `new_tokens` rows were not pretrained."""

    def forward(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> Tensor:
        """The states (B, T, E) of the last layer.

        `lengths_B` are the numbers of real tokens in the rows, None says that no row is padded.
        What comes out at padding means nothing.
        """
        return self.layers(ids_BT, segments_BT, lengths_B)[-1]

    @abstractmethod
    def layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        """The embeddings and the states of each layer, every one (B, T, E)."""

    @abstractmethod
    def levels(self) -> list[list[nn.Module]]:
        """The parts with parameters, lowest first: the embeddings, then each layer."""

    def depth(self) -> list[list[nn.Parameter]]:
        """The parameters of each level, every one once."""
        return [[p for part in level for p in part.parameters()] for level in self.levels()]

    @property
    def num_layers(self) -> int:
        """How many layers there are above the embeddings."""
        return len(self.levels()) - 1


class BertEncoder(Encoder):
    """BERT, or with `causal` the body of BertLeftToRight, without its pooler."""

    def __init__(
        self, config: BertConfig, vocab_size: int, new_tokens: int = 0, *, causal: bool = False
    ) -> None:
        super().__init__()
        self.bert = Bert(config, vocab_size + new_tokens, pooler=False, causal=causal)
        self.width = config.hidden_size
        self.causal = causal
        learned = config.positions == "learned"
        self.longest_row = config.max_position_embeddings if learned else None
        self.new_tokens = new_tokens

    @property
    def tokens(self) -> nn.Embedding:
        return self.bert.token_embedding

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
        return [embeddings, *_layers_of([bert.transformer])]


class GptEncoder(Encoder):
    """GPT without its output. Segments are not for it: the delimiter says where a text ends."""

    def __init__(self, config: GptConfig, vocab_size: int, new_tokens: int = 0) -> None:
        super().__init__()
        self.gpt = Gpt(config, vocab_size + new_tokens)
        self.width = config.hidden_size
        self.causal = True
        self.longest_row = config.max_position_embeddings
        self.new_tokens = new_tokens

    @property
    def tokens(self) -> nn.Embedding:
        return self.gpt.token_embedding

    def layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        return self.gpt.encode_layers(ids_BT)

    def levels(self) -> list[list[nn.Module]]:
        embeddings: list[nn.Module] = [self.gpt.token_embedding, self.gpt.position_embedding]
        return [embeddings, *_layers_of([self.gpt.transformer])]


class BidirectionalEncoder(Encoder):
    """The two directions, their states side by side; a level has the same part of both."""

    def __init__(self, config: BidirectionalConfig, vocab_size: int, new_tokens: int = 0) -> None:
        super().__init__()
        self.bidirectional = Bidirectional(config, vocab_size + new_tokens)
        self.width = 2 * config.hidden_size
        self.causal = False
        self.longest_row = config.max_position_embeddings
        self.new_tokens = new_tokens

    @property
    def tokens(self) -> nn.Embedding:
        return self.bidirectional.token_embedding

    def layers(
        self,
        ids_BT: Tensor,
        segments_BT: Tensor | None = None,
        lengths_B: Tensor | None = None,
    ) -> list[Tensor]:
        return self.bidirectional.encode_layers(ids_BT, lengths_B)

    def levels(self) -> list[list[nn.Module]]:
        both = (self.bidirectional.left_to_right, self.bidirectional.right_to_left)
        embeddings: list[nn.Module] = [way.position_embedding for way in both]
        embeddings.insert(0, self.bidirectional.token_embedding)
        return [embeddings, *_layers_of([way.transformer for way in both])]


def _layers_of(stacks: Sequence[Transformer]) -> list[list[nn.Module]]:
    """The blocks of each layer; the norm at the end of a pre-norm stack is of the highest."""
    layers = [list(blocks) for blocks in zip(*(stack.blocks for stack in stacks), strict=True)]
    layers[-1] += [stack.final_norm for stack in stacks]
    return layers


def new_tokens_of(objective: ObjectiveKind) -> int:
    """How many marks a model pretrained so has to learn; their ids follow the vocabulary."""
    return NUM_MARKS if objective in _OF_BLOCKS else 0


def build_encoder(
    config: AnyModelConfig,
    objective: ObjectiveKind,
    vocab_size: int,
    dropout: float,
    new_tokens: int = 0,
) -> Encoder:
    """The encoder of a model pretrained on `objective`, its weights drawn from PyTorch's generator.

    `dropout` takes the place of pretraining's. Raises ConfigError where model and objective do not
    fit.
    """
    check_objective(config, objective)
    config = config.model_copy(update={"dropout": dropout})
    match config:
        case BertConfig():
            causal = objective == "left_to_right"
            return BertEncoder(config, vocab_size, new_tokens, causal=causal)
        case GptConfig():
            return GptEncoder(config, vocab_size, new_tokens)
        case BidirectionalConfig():
            return BidirectionalEncoder(config, vocab_size, new_tokens)


@torch.no_grad()
def load_encoder(
    encoder: Encoder, pretrained: Mapping[str, Tensor], loaded_layers: int | None = None
) -> None:
    """Copy the encoder out of the state dict of a pretraining model.

    With `loaded_layers` only the embeddings and so many of the lowest layers are copied, and what
    is above keeps its random start (Yosinski et al. 2014, arXiv:1411.1792, for images); None
    copies all. New tokens keep theirs. Raises DataError naming the first tensor that does not fit,
    before anything has been copied.
    """
    names = {id(parameter): name for name, parameter in encoder.named_parameters()}
    levels = encoder.depth()
    kept = levels if loaded_layers is None else levels[: loaded_layers + 1]
    copies: list[tuple[Tensor, Tensor]] = []
    for parameter in (parameter for level in kept for parameter in level):
        name = names[id(parameter)]
        # The rows of new tokens are the last ones.
        added = encoder.new_tokens if parameter is encoder.tokens.weight else 0
        target = parameter[: len(parameter) - added]
        found = pretrained.get(name)
        if found is None:
            raise DataError(
                f"the pretrained weights lack {name}, expected with shape {list(target.shape)}; "
                "give the model the config of the pretraining run"
            )
        if found.shape != target.shape:
            raise DataError(
                f"{name}: expected shape {list(target.shape)}, found {list(found.shape)} in the "
                "pretrained weights; give the model the config and the tokenizer of the "
                "pretraining run"
            )
        copies.append((target, found))
    _refuse_left_over(pretrained, set(names.values()))
    for target, found in copies:
        target.copy_(found)


def _refuse_left_over(pretrained: Mapping[str, Tensor], known: set[str]) -> None:
    families = {f"{name.partition('.')[0]}." for name in known}
    for key in pretrained:
        if key in known or not key.startswith(tuple(families)) or key.startswith("bert.pooler."):
            continue
        raise DataError(
            f"the pretrained weights hold {key}, for which the model has no place; give the model "
            f"the config of the pretraining run"
        )
