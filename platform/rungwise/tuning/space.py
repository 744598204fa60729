"""The allowed values of a swept key: a list, or a range to draw from.

A key is a dotted key of the recipe, such as `finetune.learning_rate` or `model.num_layers`.
"""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from rungwise.core.configuration.config import Config, ConfigT
from rungwise.core.configuration.overrides import find_value, resolve
from rungwise.core.errors import ConfigError

_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
# Position inside a range to test as well: 9.7 in 8 to 12 reveals that a key takes only integers.
_INSIDE = 0.4142


def _number(value: Any) -> Any:
    # PyYAML follows YAML 1.1 and reads 5e-5, without a decimal point, as a string.
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


Value = Annotated[
    bool | int | float | str | list[Any] | dict[str, Any] | None, BeforeValidator(_number)
]


class Listed(Config):
    values: list[Value] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for place, value in enumerate(self.values):
            if value in self.values[:place]:
                raise ValueError(f"expected values that differ, found {value!r} twice")
        return self

    def finite(self) -> list[Any] | None:
        return list(self.values)

    def probes(self) -> list[Any]:
        return list(self.values)

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]


class OneOf(Listed):
    """One of `values`, all equally likely."""

    kind: Literal["choice"] = "choice"


class Grid(Listed):
    """Each of `values`, combined with those of all other grid keys."""

    kind: Literal["grid"] = "grid"


class _Range(Config):
    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low must be below high, found {self.low:g} and {self.high:g}")
        return self

    def finite(self) -> list[Any] | None:
        return None

    def probes(self) -> list[Any]:
        return [self.low, self.low + _INSIDE * (self.high - self.low), self.high]

    def _bound(self, value: float) -> float:
        return min(max(value, self.low), self.high)


class Uniform(_Range):
    """A number drawn uniformly from `low` to `high`."""

    kind: Literal["uniform"] = "uniform"

    def draw(self, rng: np.random.Generator) -> float:
        return self._bound(float(rng.uniform(self.low, self.high)))


class LogUniform(_Range):
    """A number drawn uniformly from `low` to `high` on a logarithmic scale."""

    kind: Literal["loguniform"] = "loguniform"
    low: float = Field(gt=0)
    high: float = Field(gt=0)

    def draw(self, rng: np.random.Generator) -> float:
        exponent = float(rng.uniform(math.log(self.low), math.log(self.high)))
        return self._bound(math.exp(exponent))


class Integer(Config):
    """A whole number: `low`, `low` + `step` and so on up to `high`, which is one of them."""

    kind: Literal["integer"] = "integer"
    low: int
    high: int
    step: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _reached(self) -> Self:
        if self.low >= self.high or (self.high - self.low) % self.step:
            raise ValueError(
                "high must lie a whole number of steps above low, found "
                f"{self.low} to {self.high} by {self.step}"
            )
        return self

    def finite(self) -> list[Any] | None:
        return list(range(self.low, self.high + 1, self.step))

    def probes(self) -> list[Any]:
        return [self.low, self.high]

    def draw(self, rng: np.random.Generator) -> int:
        return self.low + self.step * int(rng.integers((self.high - self.low) // self.step + 1))


Space = Annotated[OneOf | Grid | Uniform | LogUniform | Integer, Field(discriminator="kind")]


def check_space(
    model: type[ConfigT], data: Mapping[str, Any], space: Mapping[str, Space], block: str = "sweep"
) -> None:
    """Test every listed value, and each range's bounds and one inner point, in `data`.

    `data` is a valid `model` as plain data. Raises ConfigError with `<block>.space.<key>`, the
    value and, for an unknown key, the nearest one.
    """
    for key, allowed in space.items():
        for value in allowed.probes():
            where = f"{block}.space.{key}: {value!r} does not fit"
            config = resolve(model, data, {key: value}, where)
            resolved = find_value(config.model_dump(mode="json"), key)
            if not matches(resolved, value):
                raise ConfigError(
                    f"{block}.space.{key}: {value!r} would become {resolved!r}; give values as the "
                    "key takes them (whole numbers: kind integer)"
                )


def matches(resolved: Any, value: Any) -> bool:
    """True if `resolved` equals `value`; dicts may have more keys than `value`."""
    if isinstance(value, dict) and isinstance(resolved, dict):
        return all(name in resolved and matches(resolved[name], one) for name, one in value.items())
    # 1 == True in Python, and no key takes both.
    return resolved == value and isinstance(resolved, bool) == isinstance(value, bool)
