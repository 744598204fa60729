"""The types of configuration classes: what a dotted key may hold, for any kind of its blocks."""

import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

from pydantic import BaseModel


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
    if typing.get_origin(annotation) in (None, typing.Literal) and not isinstance(
        annotation, types.UnionType
    ):
        return []
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
    """The types at one more part of pydantic's location, and whether the part is a key of the file.
    It is none if it is the tag that pydantic inserts before the keys of a union member."""
    tagged = [each for each in types_here if is_block(each) and block_kind(each) == part]
    is_union = sum(is_block(each) for each in types_here) > 1
    if tagged and is_union:
        return tagged, False
    below = list(_types_below(types_here, part))
    return (below, part != "[key]") if below or not tagged else (tagged, False)
