"""Configuration as data: frozen pydantic models, one YAML file, dotted overrides, canonical JSON.

    recipe = load(Recipe, "workflows/configs/quickstart.yaml", ["pretrain.steps=100"])

A YAML file is complete: no includes, no interpolation. An unknown key is refused with its path and
the nearest known key; an error caused by an override names the override. Overriding a `kind` drops
the keys that only other kinds have; `key=null` drops a key that cannot be null. Derived values are
never keys but properties or functions.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from rungwise.core.errors import ConfigError

# Redundant end of "Input should be a valid integer, unable to parse string as an integer".
_PARSED = re.compile(", unable to (parse|interpret) .*$")
_TYPES = ("null", "bool", "int", "float", "str", "seq", "map")  # of YAML, that JSON has too


class Config(BaseModel):
    """Base of every configuration block: frozen, refuses unknown keys and NaN. `renamed` maps
    former keys of the block and former values of its `kind` to the current ones; a file that uses
    an old name is refused with the new name."""

    renamed: ClassVar[Mapping[str, str]] = {}
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
            key: tag_of(type(field.default))
            for key, field in cls.model_fields.items()
            if isinstance(field.default, Config) and isinstance(data.get(key), dict)
        }
        return data | {key: {"kind": kind} | data[key] for key, kind in kinds.items() if kind}

    def model_post_init(self, context: Any) -> None:
        """Count `kind` as given, so that `given` names it."""
        if "kind" in type(self).model_fields:
            self.model_fields_set.add("kind")


ConfigT = TypeVar("ConfigT", bound=Config)


class _Loader(yaml.SafeLoader):
    """Reads what JSON has too: a date is text. Refuses a key given twice in one block, where PyYAML
    silently takes the last."""

    yaml_constructors: ClassVar = {  # pyright: ignore[reportIncompatibleVariableOverride]
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in _TYPES
    }
    yaml_implicit_resolvers: ClassVar = {  # pyright: ignore[reportIncompatibleVariableOverride]
        first: [each for each in resolvers if not each[0].endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        keys: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in keys and name != "<<":
                raise yaml.MarkedYAMLError(
                    problem=f"the key {name} is given twice", problem_mark=key.start_mark
                )
            keys.add(name)
        return node


def load(
    model: type[ConfigT],
    path: str | Path,
    overrides: Sequence[str] = (),
    note: Callable[[str], None] = lambda line: None,
) -> ConfigT:
    """Read the YAML file at `path`, apply `key.path=value` overrides, validate. Calls `note` with
    one line per override that drops keys of the file. Raises ConfigError naming the override or the
    file, the key, what was expected and the nearest known key."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the config {path} is not UTF-8: {error}") from error
    data = _from_yaml(text, f"the config {path}", path.name)
    if not isinstance(data, dict):
        raise ConfigError(f"the config {path} must be a mapping of blocks, found {_kind(data)}")
    parsed = parse_overrides(overrides)
    fallen: dict[str, list[str]] = {}
    changed = with_overrides(data, parsed, model, fallen)
    result = _tried(model, changed)
    if isinstance(result, list):
        alone = _tried(model, data) if parsed else result
        before = alone if isinstance(alone, list) else []
        given = {item.partition("=")[0].strip(): item for item in overrides}
        raise ConfigError(
            "; ".join(
                f"{path}: {problem}" if problem in before else _blamed(problem, given)
                for problem in result
            )
        )
    for key, names in fallen.items():
        note(f"{key}={parsed[key]} has no {', '.join(names)}: left out of {path.name}")
    return result


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """`["a.b=1", "c=[x, y]"]` -> `{"a.b": 1, "c": ["x", "y"]}`; each value is read as YAML."""
    parsed: dict[str, Any] = {}
    for item in overrides:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"expected key.path=value on the command line, found {item!r}")
        parsed[key.strip()] = _from_yaml(value, f"the value of {key.strip()}", "it")
    return parsed


def _from_yaml(text: str, what: str, name: str) -> Any:
    """Read YAML as JSON data, whose keys are text. Raises ConfigError that begins with `what`, and
    says where in `name`."""
    try:
        loader = _Loader(text)
        loader.name = name
        return json.loads(json.dumps(loader.get_single_data()))
    except (yaml.YAMLError, ValueError, KeyError, RecursionError) as error:
        raise ConfigError(f"{what} is not YAML: {_one_line(error)}") from error


def with_overrides(
    data: dict[str, Any],
    overrides: Mapping[str, Any],
    model: type[Config] | None = None,
    fallen: dict[str, list[str]] | None = None,
) -> dict[str, Any]:
    """Copy `data` with dotted keys replaced. A number in a path is an index into a list. If `model`
    is given, overriding a `kind` drops the keys that only other kinds of the block have (listed in
    `fallen`), and null drops a key that cannot be null."""
    _refuse_contradictions(overrides)
    result = json.loads(json.dumps(data))
    for dotted, value in overrides.items():
        parts = dotted.split(".")
        node = result
        for depth in range(len(parts) - 1):
            key = _key_in(node, parts, depth)
            inner = node[key] if isinstance(node, list) else node.get(key)
            node[key] = inner if isinstance(inner, dict | list) else {}
            node = node[key]
        node[_key_in(node, parts, len(parts) - 1)] = value
    if model is None:
        return result
    dropped: list[list[str]] = []
    for dotted in overrides:
        parts = dotted.split(".")
        # A later override may have made a block of a null.
        if _at(result, parts) is None and not _may_be_null(types_at(model, parts)):
            dropped.append(parts)
        elif parts[-1] == "kind":
            block, kind = _at(result, parts[:-1]), _at(result, parts)
            names = _of_other_kinds(block, types_at(model, parts[:-1]), kind)
            prefix = dotted.removesuffix("kind")
            names = [name for name in names if not _sets(overrides, prefix + name)]
            dropped += [[*parts[:-1], name] for name in names]
            if names and fallen is not None:
                fallen[dotted] = names
    # Delete from the end of a list, so that earlier indices stay valid.
    for parts in sorted(dropped, key=lambda parts: [part.zfill(9) for part in parts], reverse=True):
        node = _at(result, parts[:-1])
        del node[_key_in(node, parts, len(parts) - 1)]
    return result


def given(config: Config) -> dict[str, Any]:
    """The keys that were given, and every `kind`, as plain data to override: what is left out
    follows the defaults of a kind that an override changes."""
    return config.model_dump(mode="json", exclude_unset=True)


def _refuse_contradictions(overrides: Mapping[str, Any]) -> None:
    """Refuse an override that undoes part of another: one above an earlier one, or one inside what
    an earlier one set to a value."""
    keys = list(overrides)
    for place, earlier in enumerate(keys):
        for later in keys[place + 1 :]:
            if earlier.startswith(f"{later}."):
                raise ConfigError(f"{later} replaces {earlier}; give {later} first, or one of them")
            if later.startswith(f"{earlier}.") and not isinstance(
                overrides[earlier], dict | list | None
            ):
                found = _shorten(overrides[earlier])
                raise ConfigError(
                    f"{later} is inside {earlier}, which is set to {found}; give one of them"
                )


def _at(node: Any, parts: Sequence[str]) -> Any:
    for depth in range(len(parts)):
        node = node[_key_in(node, [*parts], depth)]
    return node


def _sets(overrides: Iterable[str], key: str) -> bool:
    return any(other == key or other.startswith(f"{key}.") for other in overrides)


def _may_be_null(types_here: list[Any]) -> bool:
    """Whether the key accepts null. True for unknown keys, which validation will report."""
    return not types_here or any(each in (None, type(None), Any) for each in types_here)


def _of_other_kinds(block: Any, types_here: list[Any], kind: Any) -> list[str]:
    """The keys of a block that only other kinds have. Validation reports keys that no kind has."""
    models = [each for each in types_here if _is_model(each)]
    own = {name for each in models if kind in tags_of(each) for name in each.model_fields}
    known = {name for each in models for name in each.model_fields}
    return [name for name in block if name in known - own] if own else []


def _key_in(node: Any, parts: list[str], depth: int) -> Any:
    """Interpret `parts[depth]` of a dotted key as a key of a block or an index into a list."""
    part = parts[depth]
    if isinstance(node, list):
        if not part.isdecimal() or int(part) >= len(node):
            here = ".".join(parts[: depth + 1])
            raise ConfigError(f"{here}: expected an index below {len(node)}, found {part!r}")
        return int(part)
    return part


def validate(model: type[ConfigT], data: dict[str, Any], source: str = "config") -> ConfigT:
    """Validate `data` as `model`. Raises ConfigError listing every problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [str(_problem(model, item)) for item in error.errors()]
        raise ConfigError(f"{source}: " + "; ".join(problems)) from None


class _Problem(typing.NamedTuple):
    """A fault of the value at a dotted key. The key is empty for a check of a whole block, whose
    message names the key."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


def _tried(model: type[ConfigT], data: dict[str, Any]) -> ConfigT | list[_Problem]:
    """`data` as `model`, or a list of its problems."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [_problem(model, item) for item in error.errors()]
        # Pydantic does not count invalid items, so it also reports their list as too short.
        return [
            problem
            for problem, item in zip(problems, error.errors(), strict=True)
            if item["type"] != "too_short"
            or not any(other.key.startswith(f"{problem.key}.") for other in problems)
        ]
    except ConfigError as error:
        return [_Problem("", str(error))]


def _blamed(problem: _Problem, overrides: Mapping[str, str]) -> str:
    """Blame overrides for a problem that the file alone does not have: those at, above or below its
    key, or all of them if there are none."""
    if problem.key in overrides:
        return f"{overrides[problem.key]}: {problem.text}"
    near = [
        item
        for key, item in overrides.items()
        if f"{problem.key}.".startswith(f"{key}.") or key.startswith(f"{problem.key}.")
    ]
    return f"{' '.join(near or overrides.values())}: {problem}"


def canonical_json(value: Any) -> str:
    """Serialise `value` in a unique form: sorted keys, no blanks. Raises TypeError for a value that
    is neither a Config nor plain JSON data, and ValueError for NaN and infinities, so that no
    fingerprint depends on a `repr`."""
    return json.dumps(
        plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def fingerprint(value: Any, length: int = 12) -> str:
    """The first `length` hexadecimal digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()[:length]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested blocks as `{"a.b": leaf}`, as used for MLflow parameters and by `plan`."""
    data = plain(value)
    if isinstance(data, dict) and data:
        flat: dict[str, Any] = {}
        for key, item in data.items():
            flat.update(flatten(item, f"{prefix}.{key}" if prefix else key))
        return flat
    return {prefix: data} if prefix else {}


def plain(value: Any) -> Any:
    """Turn Configs and tuples into dicts and lists. Raises as `canonical_json` does."""
    if isinstance(value, Config):
        return plain(value.model_dump(mode="json"))
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no exact JSON text")
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        if bad := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"keys must be strings, found {bad[0]!r}")
        return {key: plain(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} cannot be written exactly as JSON")


def _problem(model: type[Config], item: Any) -> _Problem:
    # Report the key as written in YAML; pydantic's path also contains the tags of unions.
    location, nodes = _walk(model, item["loc"])
    key = ".".join(str(part) for part in location)
    if item["type"] == "extra_forbidden":
        last = str(location[-1])
        nodes = _walk(model, item["loc"][:-1])[1]
        if new := _renamed(nodes, last):
            return _Problem(key, f"this key is called {new} now")
        known = sorted({name for node in nodes for name in node.model_fields})
        near = _nearest(last, known) or f"known here: {', '.join(known)}"
        return _Problem(key, f"unknown key; {near}")
    if item["type"] == "missing":
        return _Problem(key, "this key is missing")
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        tag = item.get("ctx", {}).get("tag")
        if new := _renamed(nodes, str(tag)):
            return _Problem(f"{key}.kind", f"{tag} is called {new} now")
        kinds = [str(tag_of(node)) for node in nodes]
        given = [f"found {tag!r}", _nearest(str(tag), kinds)] if tag else ["this key is missing"]
        expected = f"expected one of {', '.join(kinds)}; " + "; ".join(filter(None, given))
        return _Problem(f"{key}.kind", expected)
    message = _PARSED.sub("", item["msg"].removeprefix("Value error, "))
    given = "" if item["type"] == "value_error" else f", found {_shorten(item.get('input'))}"
    return _Problem(key, f"{message[0].lower() + message[1:]}{given}")


def _renamed(nodes: list[type[Config]], name: str) -> str | None:
    """The current name of a former key or kind of these blocks."""
    return next((node.renamed[name] for node in nodes if name in node.renamed), None)


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else ""


def _walk(
    model: type[Config], location: tuple[int | str, ...]
) -> tuple[list[int | str], list[type[Config]]]:
    """Follow pydantic's location: its keys without union tags, and the blocks found there."""
    path: list[int | str] = []
    types_here: list[Any] = [model]
    for part in location:
        types_here, is_key = _below(types_here, part)
        if is_key:
            path.append(part)
    return path, [each for each in types_here if _is_model(each)]


def types_at(model: type[Config], parts: Sequence[str]) -> list[Any]:
    """The types that the value at a dotted key may have, for any kind of the blocks above it."""
    types_here: list[Any] = [model]
    for part in parts:
        types_here = list(_of_key(types_here, part))
    return types_here


def _of_key(types_here: list[Any], part: int | str) -> Iterator[Any]:
    for each in types_here:
        if _is_model(each) and part in each.model_fields:
            yield from _members(each.model_fields[str(part)].annotation)
        elif typing.get_origin(each) in (dict, list, tuple):
            for inner in typing.get_args(each):
                yield from _members(inner)


def _below(types_here: list[Any], part: int | str) -> tuple[list[Any], bool]:
    """Follow one part of pydantic's path: return the types there, and whether the part is a key of
    the file. It is not if it is the tag that pydantic inserts before the keys of a union member."""
    tagged = [each for each in types_here if _is_model(each) and tag_of(each) == part]
    is_union = sum(_is_model(each) for each in types_here) > 1
    if tagged and is_union:
        return tagged, False
    below = list(_of_key(types_here, part))
    return (below, part != "[key]") if below or not tagged else (tagged, False)


def _members(annotation: Any) -> list[Any]:
    """The members of a union without Annotated; any other type by itself."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _members(typing.get_args(annotation)[0])
    if origin is typing.Union or isinstance(annotation, types.UnionType):
        return [each for part in typing.get_args(annotation) for each in _members(part)]
    return [annotation]


def models_in(annotation: Any) -> list[Any]:
    """List the Config classes inside a type: in unions, lists, dicts and Annotated."""
    if _is_model(annotation):
        return [annotation]
    if typing.get_origin(annotation) in (None, typing.Literal) and not isinstance(
        annotation, types.UnionType
    ):
        return []
    return [model for part in typing.get_args(annotation) for model in models_in(part)]


def _is_model(node: Any) -> bool:
    return isinstance(node, type) and issubclass(node, BaseModel)


def tag_of(node: type[BaseModel]) -> Any:
    field = node.model_fields.get("kind")
    return field.default if field is not None else None


def tags_of(node: type[BaseModel]) -> tuple[Any, ...]:
    """Every `kind` that a class accepts: all values of a Literal."""
    field = node.model_fields.get("kind")
    return () if field is None else typing.get_args(field.annotation) or (field.default,)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
