"""The blocks `model` and `pretrain` of a recipe: a family, and the way its weights come about.

A new way of fitting adds its config to the union `PretrainConfig`, with a tag, and a case to
stage.py.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Discriminator, Tag, ValidationInfo, field_validator

from rungwise.core.config import Config
from rungwise.core.errors import ConfigError
from rungwise.models.config import ModelConfig
from rungwise.models.family import Family, Fitting
from rungwise.models.objectives import Objective
from rungwise.training.config import GradientConfig


def _kind(block: Any) -> str | None:
    """The tag of a `pretrain` block: `gradient` where it names none."""
    return block.get("kind", "gradient") if isinstance(block, dict) else getattr(block, "kind", "")


class CountsConfig(Fitting):
    """Fitting by counting, once over the text: there is nothing to choose."""

    reads_tokens: ClassVar[bool] = True

    kind: Literal["counts"] = "counts"


PretrainConfig = Annotated[
    Annotated[GradientConfig, Tag("gradient")] | Annotated[CountsConfig, Tag("counts")],
    Discriminator(_kind),
]

FittingT = TypeVar("FittingT", bound=Fitting)


class PretrainStageConfig(Config):
    """The two blocks of a recipe that decide a pretrained model, the objective filled in.

    Raises ConfigError where the family takes another kind of `pretrain`, or has no such objective.
    """

    model: ModelConfig
    pretrain: PretrainConfig

    @field_validator("pretrain", mode="after")
    @classmethod
    def _fits(cls, pretrain: PretrainConfig, info: ValidationInfo) -> PretrainConfig:
        model: Family | None = info.data.get("model")
        if model is None:
            return pretrain
        if pretrain.kind != model.fitting:
            raise ConfigError(
                f"pretrain.kind is {pretrain.kind}, but model.kind is {model.kind}, whose weights "
                f"come about by {model.fitting}; set pretrain.kind={model.fitting}, or take "
                "another model"
            )
        return with_objective(pretrain, model)

    @property
    def objective(self) -> Objective:
        """The objective of the run."""
        return self.model.objective(self.pretrain.objective)


def with_objective(pretrain: FittingT, model: Family) -> FittingT:
    """`pretrain` with the family's first objective where it names none.

    Raises ConfigError where the family has not the one that it names.
    """
    return pretrain.model_copy(update={"objective": model.objective(pretrain.objective).name})


def by_gradient(pretrain: Fitting, asked: str) -> GradientConfig:
    """`pretrain` as the block of a run by gradient, which alone has what is `asked`.

    Raises ConfigError for another kind.
    """
    if not isinstance(pretrain, GradientConfig):
        raise ConfigError(
            f"pretrain.kind is {pretrain.kind}, which has no {asked}; expected gradient"
        )
    return pretrain
