"""The two ends of a rung that every rung has: its family, and the way its weights come about.

A family is one file here: a config with the sizes, derived from `Family`, and the modules that it
builds. The config answers for the family wherever the platform asks, so that no other place knows
which families there are; config.py names them in one union.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from pydantic import field_validator
from torch import nn

from rungwise.core.config import Config
from rungwise.core.errors import ConfigError
from rungwise.models.encoders import LayeredEncoder
from rungwise.models.objectives import Objective

if TYPE_CHECKING:  # a bare machine with PyTorch has no tokenizers
    from rungwise.tokenizer.special import SpecialIds


class Family(Config):
    """A kind of model with its sizes; each subclass has a literal `kind` with its default.

    What a family leaves out raises ConfigError naming `model.kind` and what was asked.
    """

    kind: Any
    objectives: ClassVar[tuple[Objective, ...]]  # the first is the default
    fitting: ClassVar[str] = "gradient"  # the kind of the pretrain block that it takes
    # Whether it goes on where the row before has ended: the `CarriesState` of objectives.py.
    carries_state: ClassVar[bool] = False
    # Tensors, by the beginnings of their names, that only some of its objectives train: what goes
    # on from other weights may lack them.
    optional_tensors: ClassVar[tuple[str, ...]] = ()

    @property
    def max_length(self) -> int | None:
        """Tokens of the longest row that it reads; None where there is no bound."""
        return None

    @property
    def depth(self) -> int:
        """Blocks whose activations backward needs, for the estimate of memory."""
        self._lacks("layers")

    @property
    def width(self) -> int:
        """Hidden units of a block, for the same."""
        self._lacks("layers")

    def describe(self) -> str:
        """Its sizes in words: `2 layers, 2 heads, hidden size 128`."""
        raise NotImplementedError

    def page_name(self, objective: Objective) -> str:
        """Its name on the page, after the indefinite article: `BERT`."""
        raise NotImplementedError

    def build(
        self, vocab_size: int, objective: Objective, pad_vocab_to_multiple_of: int = 1
    ) -> nn.Module:
        """The model with the parts that the objective trains, its weights drawn from PyTorch's
        generator. The padding rounds the rows of the embedding up, for faster products."""
        self._lacks("weights that are learnt by gradient")

    def encoder(
        self, objective: Objective, vocab_size: int, dropout: float, new_tokens: int = 0
    ) -> LayeredEncoder:
        """The model without what only pretraining needs, its weights drawn likewise.

        `dropout` takes the place of pretraining's; `new_tokens` follow the vocabulary.
        """
        self._lacks("encoder to fine-tune")

    def trained(self, model: nn.Module, objective: Objective, special: SpecialIds) -> object:
        """The trained model with the capabilities of the family (capabilities.py)."""
        raise NotImplementedError

    def flops_per_token(
        self,
        vocab_size: int,
        sequence_length: int,
        objective: Objective,
        masked_per_sequence: float = 0.0,
    ) -> float:
        """Floating-point operations a token of one training step, forward and backward.

        `masked_per_sequence` is for objectives that mask. Padding of the vocabulary is not counted.
        """
        self._lacks("count of operations")

    def objective(self, name: str | None) -> Objective:
        """The objective of that name, the default for None.

        Raises ConfigError where the family cannot be trained on it.
        """
        if name is None:
            return self.objectives[0]
        for objective in self.objectives:
            if objective.name == name:
                return objective
        *others, last = (objective.name for objective in self.objectives)
        names = f"{', '.join(others)} or {last}" if others else last
        raise ConfigError(
            f"pretrain.objective is {name}, but model.kind is {self.kind}, which takes {names}; "
            "change one of them"
        )

    def _lacks(self, what: str) -> NoReturn:
        raise ConfigError(f"model.kind is {self.kind}, which has no {what}; choose another kind")


class Fitting(Config):
    """A way in which the weights of a family come about: the block `pretrain` of a recipe.

    `objective` is the name of one of the family's; null stands for its first, which takes its place
    as soon as the family is known (pretraining/config.py).
    """

    kind: Any
    objective: str | None = None  # one that the family takes; null: its first

    reads_tokens: ClassVar[bool] = False  # and not instances

    @property
    def reads_longer(self) -> bool:
        """Whether it reads `longer_instances` too."""
        return False

    @field_validator("objective", mode="before")
    @classmethod
    def _plain_name(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            name = value.get("kind", "mlm_nsp")
            raise ValueError(f"expected a plain name, objective: {name}, found {dict(value)}")
        return value
