"""The base of every configuration block, and what is said of data that does not fit it.

An unknown key is refused with its path and the nearest known key. Derived values are never keys but
properties or functions.
"""

from __future__ import annotations

import difflib
import re
import typing
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from rungwise.core.configuration.schema import block_kind, find_blocks
from rungwise.core.errors import ConfigError

# Redundant end of "Input should be a valid integer, unable to parse string as an integer".
_PARSED = re.compile(", unable to (parse|interpret) .*$")


class Config(BaseModel):
    """Base of every configuration block: frozen, refuses unknown keys and NaN."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )

    @model_validator(mode="before")
    @classmethod
    def _kinds_of_defaults(cls, data: Any) -> Any:
        """Give a nested block without `kind` the kind of its default."""
        if not isinstance(data, dict):
            return data
        kinds = {
            key: block_kind(type(field.default))
            for key, field in cls.model_fields.items()
            if isinstance(field.default, Config) and isinstance(data.get(key), dict)
        }
        return data | {key: {"kind": kind} | data[key] for key, kind in kinds.items() if kind}


ConfigT = TypeVar("ConfigT", bound=Config)


def validate(model: type[ConfigT], data: dict[str, Any], source: str = "config") -> ConfigT:
    """Validate `data` as `model`. Raises ConfigError listing every problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(str(problem) for problem in list_problems(model, error))
        raise ConfigError(f"{source}: {problems}") from None


class Problem(typing.NamedTuple):
    """A fault of the value at a dotted key. The key is empty for a check of a whole block, whose
    message names the key."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


def list_problems(model: type[Config], error: ValidationError) -> list[Problem]:
    """The problems that pydantic found in data for `model`, by keys as written in YAML."""
    items = error.errors()
    problems = [_problem(model, item) for item in items]
    # Pydantic does not count invalid items, so it also reports their list as too short.
    return [
        problem
        for problem, item in zip(problems, items, strict=True)
        if item["type"] != "too_short"
        or not any(other.key.startswith(f"{problem.key}.") for other in problems)
    ]


def _problem(model: type[Config], item: Any) -> Problem:
    path, blocks = find_blocks(model, item["loc"])
    key = ".".join(str(part) for part in path)
    if item["type"] == "extra_forbidden":
        _, blocks = find_blocks(model, item["loc"][:-1])
        names = sorted({name for block in blocks for name in block.model_fields})
        near = _nearest(str(path[-1]), names) or f"known here: {', '.join(names)}"
        return Problem(key, f"unknown key; {near}")
    if item["type"] == "missing":
        return Problem(key, "this key is missing")
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        tag = item.get("ctx", {}).get("tag")
        kinds = [str(block_kind(block)) for block in blocks]
        value = [f"found {tag!r}", _nearest(str(tag), kinds)] if tag else ["this key is missing"]
        expected = f"expected one of {', '.join(kinds)}; " + "; ".join(filter(None, value))
        return Problem(f"{key}.kind", expected)
    message = _PARSED.sub("", item["msg"].removeprefix("Value error, "))
    value = "" if item["type"] == "value_error" else f", found {shorten(item.get('input'))}"
    return Problem(key, f"{message[0].lower() + message[1:]}{value}")


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else ""


def shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
