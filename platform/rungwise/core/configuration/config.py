"""The base of every configuration block, and what is said of data that does not fit it."""

import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from rungwise.core.errors import BlockError, ConfigError


def find_types(model: type[BaseModel], parts: Sequence[str]) -> list[Any]:
    """The types that the value at a dotted key may have, for any kind of the blocks above it."""
    types_here: list[Any] = [model]
    for part in parts:
        types_here = list(_types_below(types_here, part))
    return types_here


def find_blocks(
    model: type[BaseModel], location: tuple[int | str, ...]
) -> tuple[list[int | str], list[type[BaseModel]]]:
    """Follow pydantic's location of an error: its keys without tags of unions, the blocks there."""
    path: list[int | str] = []
    types_here: list[Any] = [model]
    for part in location:
        types_here, is_key = _follow(types_here, part)
        if is_key:
            path.append(part)
    return path, [each for each in types_here if is_block(each)]


def list_blocks(annotation: Any) -> list[Any]:
    """List the configuration classes inside a type: in unions, lists, dicts and Annotated."""
    if is_block(annotation):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in list_blocks(part)]


def union_members(annotation: Any) -> list[Any]:
    """The members of a union without Annotated; any other type by itself."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return union_members(typing.get_args(annotation)[0])
    if origin is typing.Union or isinstance(annotation, types.UnionType):
        return [each for part in typing.get_args(annotation) for each in union_members(part)]
    return [annotation]


def is_block(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def block_kind(block: type[BaseModel]) -> Any:
    """The `kind` of a block, None if it has none."""
    field = block.model_fields.get("kind")
    return field.default if field is not None else None


def block_kinds(block: type[BaseModel]) -> tuple[Any, ...]:
    """Every `kind` that a class accepts: all values of a Literal."""
    field = block.model_fields.get("kind")
    return () if field is None else typing.get_args(field.annotation) or (field.default,)


def _types_below(types_here: list[Any], part: int | str) -> Iterator[Any]:
    for each in types_here:
        if is_block(each) and part in each.model_fields:
            yield from union_members(each.model_fields[str(part)].annotation)
        elif typing.get_origin(each) in (dict, list, tuple):
            for inner in typing.get_args(each):
                yield from union_members(inner)


def _follow(types_here: list[Any], part: int | str) -> tuple[list[Any], bool]:
    """The types at a part of pydantic's location, and whether it is a key and no tag of a union."""
    tagged = [each for each in types_here if is_block(each) and block_kind(each) == part]
    is_union = sum(is_block(each) for each in types_here) > 1
    if tagged and is_union:
        return tagged, False
    below = list(_types_below(types_here, part))
    return (below, part != "[key]") if below or not tagged else (tagged, False)


# Redundant end of "Input should be a valid integer, unable to parse string as an integer".
_PARSED = re.compile(", unable to (parse|interpret) .*$")
# A name that is no English word: hidden_size, masking.rate.
_KEY = re.compile(r"(?<![\w.])([a-z]+)(?:[._][a-z_]+)+(?![\w.]*[(:])")
_MOST_PLACES = 3  # to name where a key is that stands in a wrong one
_MOST_DEPTH = 3


class Config(BaseModel):
    """Base of every configuration block: frozen, refuses unknown keys and NaN."""

    # Deferred, since a process uses few of the blocks that it imports.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _kinds_of_defaults(cls, data: Any) -> Any:
        """Give a nested block without `kind` the kind of its default."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for key, field in cls.model_fields.items():
            if isinstance(field.default, Config) and isinstance(data.get(key), dict):
                kind = block_kind(type(field.default))
                data[key] = ({"kind": kind} if kind else {}) | data[key]
        return data


ConfigT = TypeVar("ConfigT", bound=Config)


def validate(model: type[ConfigT], data: dict[str, Any], source: str = "config") -> ConfigT:
    """Validate `data` as `model`. Raises ConfigError listing every problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = list_problems(model, error, data)
        text = "; ".join(str(problem) for problem in problems)
        raise ConfigError(f"{source}: {text}", join_changes(problems)) from None


class Problem(typing.NamedTuple):
    """A fault of the value at a dotted key ("" if the text names it), and the keys that mend it."""

    key: str
    text: str
    changes: Mapping[str, Any] = {}

    def __str__(self) -> str:
        names_it = not self.key or f"{self.key}." in self.text
        return self.text if names_it else f"{self.key}: {self.text}"


def join_changes(problems: Iterable[Problem]) -> dict[str, Any]:
    """The changes that mend all `problems`."""
    return {key: value for problem in problems for key, value in problem.changes.items()}


def list_problems(model: type[Config], error: ValidationError, data: Any) -> list[Problem]:
    """The problems that pydantic found in `data` for `model`, by keys as written in YAML."""
    problems = [(_problem(model, item, data), item["type"]) for item in error.errors()]

    def has_inner(key: str) -> bool:
        return any(problem.key.startswith(f"{key}.") for problem, _ in problems)

    # Pydantic does not count invalid items, so it also reports their list as too short.
    return [p for p, kind in problems if kind != "too_short" or not has_inner(p.key)]


def _problem(model: type[Config], item: Any, data: Any) -> Problem:
    path, blocks = find_blocks(model, item["loc"])
    key = ".".join(str(part) for part in path)
    if item["type"] == "extra_forbidden":
        _, blocks = find_blocks(model, item["loc"][:-1])
        names = sorted({name for block in blocks for name in block.model_fields})
        block = key.rpartition(".")[0]
        keys = suggest_keys(model, data, key, (block,) if block else ("pretrain", ""))
        near = "" if keys else _nearest(str(path[-1]), names)
        if not keys and not near:
            keys = suggest_keys(model, data, key)
        if keys:
            near = f"did you mean {' or '.join(f'{each}=...' for each in keys)}?"
        near = near or f"known here: {', '.join(names)}"
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
    message = message[0].lower() + message[1:]
    if item["type"] != "value_error":
        value, near = item.get("input"), ""
        if item["type"] == "list_type" and isinstance(value, int):  # steps=5 for pretrain.steps=5
            keys = suggest_keys(model, data, key, ("pretrain",))
            near = f"; did you mean {keys[0]}=...?" if keys else ""
        return Problem(key, f"{message}, found {shorten(value)}{near}")
    within, error = f"{key}." if key else "", item["ctx"]["error"]
    changes = error.changes if isinstance(error, BlockError) else {}
    names = {name for block in blocks for name in block.model_fields}
    message = _KEY.sub(
        lambda match: within * (match[0].partition(".")[0] in names) + match[0], message
    )
    return Problem(key, message, {f"{within}{name}": value for name, value in changes.items()})


# Names that other tools have for what is set here.
_OTHER_NAMES = {
    **dict.fromkeys(("lr", "alpha"), "learning_rate"),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs", "max_steps", "iter"), "steps"),
    **dict.fromkeys(("bs", "batch_size", "train_batch_size"), "global_batch_size"),
    **dict.fromkeys(("n_layer", "n_layers", "num_hidden_layers", "depth"), "num_layers"),
    **dict.fromkeys(("n_head", "n_heads", "num_attention_heads"), "num_heads"),
    **dict.fromkeys(("d_model", "n_embd", "hidden_dim", "dim"), "hidden_size"),
    **dict.fromkeys(("max_length", "max_seq_length", "block_size", "seq_len"), "sequence_length"),
    "wd": "weight_decay",
}


def suggest_keys(
    model: type[BaseModel], data: Any, key: str, blocks: Sequence[str] = ("pretrain", "")
) -> list[str]:
    """The keys of `data` that an unknown key may mean: the least deep of the first block."""
    name = key.rpartition(".")[2]
    ways = dict.fromkeys(_list_keys([model], data, ()))
    alike = [way for way in ways if way[-1] in (name, _OTHER_NAMES.get(name))]
    for block in blocks:
        near = [way for way in alike if not block or ".".join(way).startswith(f"{block}.")]
        if near:
            least = min(map(len, near))
            return [".".join(way) for way in near if len(way) == least][:_MOST_PLACES]
    return []


def _list_keys(
    blocks: Sequence[Any], data: Any, path: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the keys of blocks: of the kind in `data`, else of the most alike one."""
    data = data if isinstance(data, dict) else {}
    own = [each for each in blocks if data.get("kind") in block_kinds(each)]
    own = own or sorted(blocks, key=lambda each: -len(data.keys() & each.model_fields))[:1]
    for block in own:
        for name, field in block.model_fields.items():
            yield (*path, name)
            below = [each for each in union_members(field.annotation) if is_block(each)]
            default = [type(field.default)] if is_block(type(field.default)) else below
            has_kind = isinstance(data.get(name), dict) and "kind" in data[name]
            if len(path) < _MOST_DEPTH:
                yield from _list_keys(below if has_kind else default, data.get(name), (*path, name))


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else ""


def shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
