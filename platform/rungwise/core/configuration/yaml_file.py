"""Read a configuration from a YAML file and `key.path=value` overrides.

    recipe = load(Recipe, "workflows/configs/quickstart.yaml", ["pretrain.steps=100"])

A file is complete: no includes, no interpolation. An override is named in errors that it causes.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import ValidationError

from rungwise.core.configuration.config import ConfigT, Problem, join_changes, list_problems
from rungwise.core.configuration.overrides import with_overrides
from rungwise.core.errors import ConfigError

_TYPES = ("null", "bool", "int", "float", "str", "seq", "map")  # of YAML, that JSON has too


class _Loader(yaml.SafeLoader):
    """Reads what JSON has too: a date is text. Refuses a key given twice in one block."""

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
    data = read_mapping(path)
    parsed = parse_overrides(overrides)
    dropped: dict[str, list[str]] = {}
    result = _resolve(model, with_overrides(data, parsed, model, dropped))
    if isinstance(result, list):
        of_file = _resolve(model, data) if parsed else result
        by_key = {item.partition("=")[0].strip(): item for item in overrides}
        raise ConfigError(
            "; ".join(
                f"{path}: {problem}"
                if isinstance(of_file, list) and problem in of_file
                else _blame(problem, by_key)
                for problem in result
            ),
            join_changes(result),
        )
    for key, names in dropped.items():
        note(f"{key}={parsed[key]} has no {', '.join(names)}: left out of {path.name}")
    return result


def read_mapping(path: Path) -> dict[str, Any]:
    """The blocks of a file as they stand there. Raises ConfigError naming the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the config {path} is not UTF-8: {error}") from error
    data = _parse(text, f"the config {path}", path.name)
    if not isinstance(data, dict):
        kind = "nothing" if data is None else f"a {type(data).__name__}"
        raise ConfigError.at(f"the config {path}", "a mapping of blocks", kind)
    return data


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """`["a.b=1", "c=[x, y]"]` -> `{"a.b": 1, "c": ["x", "y"]}`; each value is read as YAML."""
    parsed: dict[str, Any] = {}
    for item in overrides:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"expected key.path=value on the command line, found {item!r}")
        parsed[key.strip()] = _parse(value, f"the value of {key.strip()}", "it")
    return parsed


def _parse(text: str, what: str, name: str) -> Any:
    """Read YAML as JSON data. Raises ConfigError about `what` that says where in `name`."""
    try:
        loader = _Loader(text)
        loader.name = name
        node = loader.get_single_node()
        if node is None:
            return None
        return json.loads(json.dumps(loader.construct_document(node)))
    except (yaml.YAMLError, ValueError, KeyError, RecursionError) as error:
        raise ConfigError(f"{what} is not YAML: {' '.join(str(error).split())}") from error


def _resolve(model: type[ConfigT], data: dict[str, Any]) -> ConfigT | list[Problem]:
    """`data` as `model`, or its problems."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        return list_problems(model, error, data)
    except ConfigError as error:
        return [Problem("", str(error.with_changes({})), error.changes)]


def _blame(problem: Problem, overrides: Mapping[str, str]) -> str:
    """Blame the overrides at, above or below the key of a problem, or all if there are none."""
    if problem.key in overrides:
        return f"{overrides[problem.key]}: {problem.text}"
    near = [
        item
        for key, item in overrides.items()
        if f"{problem.key}.".startswith(f"{key}.") or key.startswith(f"{problem.key}.")
    ]
    return f"{' '.join(near or overrides.values())}: {problem}"
