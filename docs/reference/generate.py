"""Write recipe.md: every key of a recipe, from the pydantic models and the comments above or beside
their fields in the source."""

import ast
import functools
import inspect
import io
import tokenize
import types
import typing
from pathlib import Path
from typing import Any, Literal

import annotated_types
import yaml
from pydantic.fields import FieldInfo

from rungwise.core.configuration.canonical import plain
from rungwise.core.configuration.config import Config, block_kind, list_blocks, union_members
from rungwise.pipeline.recipe import Recipe

_INTRO = """\
# Every key of a recipe

`make reference` writes this page from the configuration classes. A key that is left out takes its
default; `rungwise plan WORKFLOW CONFIG --resolved` prints a recipe with every key. Where a block
comes in several kinds, its key `kind` chooses one.
"""
_BOUNDS = {
    annotated_types.Ge: ("ge", "≥ {}"),
    annotated_types.Gt: ("gt", "> {}"),
    annotated_types.Le: ("le", "≤ {}"),
    annotated_types.Lt: ("lt", "< {}"),
    annotated_types.MinLen: ("min_length", "at least {} long"),
    annotated_types.MaxLen: ("max_length", "at most {} long"),
}


def reference() -> str:
    """Write docs/reference/recipe.md: a table for each block."""
    places: dict[type[Config], list[str]] = {}
    _place(Recipe, "", places)
    return "\n".join([_INTRO, *(_section(block, paths) for block, paths in places.items())])


def read_comments(block: type[Config]) -> dict[str, str]:
    """Read the comments above or beside each field in the source, inherited fields included."""
    owners = [owner for owner in block.__mro__ if issubclass(owner, Config) and owner is not Config]
    return {
        name: words
        for owner in reversed(owners)
        for name, words in _module_comments(inspect.getfile(owner))[owner.__name__].items()
    }


@functools.cache
def _module_comments(path: str) -> dict[str, dict[str, str]]:
    """The comments of the fields of each class of a file."""
    source = Path(path).read_text("utf-8")
    lines = source.splitlines()
    by_line = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith("# pyright:")
    }
    comments: dict[str, dict[str, str]] = {}
    for owner in ast.parse(source).body:
        if not isinstance(owner, ast.ClassDef):
            continue
        own_comments = comments[owner.name] = {}
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                first = node.lineno
                while first > 1 and lines[first - 2].lstrip().startswith("#"):
                    first -= 1
                own = range(first, (node.end_lineno or first) + 1)
                words = " ".join(by_line[line] for line in own if line in by_line)
                own_comments[node.target.id] = words
    return comments


def _place(block: type[Config], path: str, places: dict[type[Config], list[str]]) -> None:
    """Collect the paths at which each block occurs. Its own blocks are named after the first."""
    places.setdefault(block, []).append(path)
    if len(places[block]) > 1:
        return
    for name, field in block.model_fields.items():
        below = f"{path}.{name}" if path else name
        origins = {typing.get_origin(part) for part in union_members(field.annotation)}
        below += "[]" * bool(origins & {tuple, list}) + ".NAME" * (dict in origins)
        for child in list_blocks(field.annotation):
            _place(child, below, places)


def _section(block: type[Config], paths: list[str]) -> str:
    kind = block_kind(block)
    title = f"`{paths[0]}`" if paths[0] else "The recipe"
    lines = [f"## {title}" + (f", kind `{kind}`" if kind else ""), ""]
    if others := dict.fromkeys(path for path in paths if path != paths[0]):
        lines += ["Also at " + ", ".join(f"`{path}`" for path in others) + ".", ""]
    lines += [inspect.cleandoc(block.__doc__ or ""), ""]
    comments = read_comments(block)
    rows = [
        (f"`{name}`", _values(field), _default(field), comments[name])
        for name in sorted(block.model_fields, key=lambda name: name != "kind")
        for field in [block.model_fields[name]]
        if name != "kind" or len(typing.get_args(field.annotation)) > 1
    ]
    if rows:
        lines += ["| key | values | default | |", "|---|---|---|---|"]
        lines += [
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
        ]
        lines.append("")
    return "\n".join(lines)


def _values(field: FieldInfo) -> str:
    bounds = [
        words.format(getattr(bound, name))
        for bound in field.metadata
        for kind, (name, words) in _BOUNDS.items()
        if isinstance(bound, kind)
    ]
    return ", ".join([_type(field.annotation), *bounds])


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if len(blocks := list_blocks(annotation)) and origin not in (tuple, list, dict):
        kinds = [f"`{kind}`" for block in blocks if (kind := block_kind(block))]
        text = f"a block of kind {', '.join(kinds)}" if kinds else "a block"
        return f"{text}, null" if types.NoneType in arguments else text
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (tuple, list):
        return f"a list: {_type(arguments[0])}"
    if origin is dict:
        return f"a mapping, by name: {_type(arguments[1])}"
    if isinstance(annotation, types.UnionType) or origin is typing.Union:
        return ", ".join(_type(part) for part in arguments)
    names = {types.NoneType: "null", str: "text", int: "whole number", float: "number"}
    return names.get(annotation, {bool: "true, false", Any: "anything"}.get(annotation, "a value"))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if not isinstance(value, Config):
        text = yaml.safe_dump(
            plain(value),
            default_flow_style=True,
            width=1 << 30,
            allow_unicode=True,
            sort_keys=False,
        )
        text = text.removesuffix("\n").removesuffix("\n...")
        return f"`{text}`"
    kind = block_kind(type(value))
    return f"of kind `{kind}`" if kind else "its defaults"


if __name__ == "__main__":
    print(reference(), end="")
