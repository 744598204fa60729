"""Read a configuration from a YAML file and `key.path=value` overrides; and the block `compute`.

    recipe = load(Recipe, "workflows/configs/quickstart.yaml", ["pretrain.steps=100"])

A file is complete: no includes, no interpolation. An override is named in errors that it causes.
"""

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from pydantic import Field, ValidationError, field_validator

from rungwise.core.configuration import config as blocks
from rungwise.core.configuration.config import Config, ConfigT, Problem, find_types, validate
from rungwise.core.errors import ConfigError

_MOST_NODES = 1_000_000  # of YAML, however few lines name them
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
    """Read the YAML file at `path`, apply overrides, validate. Calls `note` with a line for each
    that drops keys of the file. Raises ConfigError naming the override or the file, and the key."""
    path = Path(path)
    data = read_mapping(path)
    parsed = parse_overrides(overrides)
    dropped: dict[str, list[str]] = {}
    result = _validate(model, with_overrides(data, parsed, model, dropped))
    if isinstance(result, list):
        of_file = _validate(model, data) if parsed else result
        by_key = {item.partition("=")[0].strip(): item for item in overrides}
        in_file = of_file if isinstance(of_file, list) else []
        lines = (f"{path}: {p}" if p in in_file else _blame(p, by_key) for p in result)
        raise ConfigError("; ".join(lines), blocks.join_changes(result))
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
        return json.loads(_to_json(text, name))
    except (yaml.YAMLError, ValueError, KeyError, RecursionError) as error:
        raise ConfigError(f"{what} is not YAML: {' '.join(str(error).split())}") from error


@functools.lru_cache(128)  # recipes are read again and again, and slowly
def _to_json(text: str, name: str) -> str:
    loader = _Loader(text)
    loader.name = name
    node = loader.get_single_node()
    if node is None:
        return "null"
    if _count_nodes(node, {}) > _MOST_NODES:
        raise yaml.YAMLError(f"its aliases stand for more than {_MOST_NODES:,} values")
    return json.dumps(loader.construct_document(node))


def _count_nodes(node: yaml.Node, counts: dict[yaml.Node, int]) -> int:
    """Return the values in the text of a node, those of an alias each time that it stands there.
    `counts` has those of earlier nodes."""
    if node not in counts:
        counts[node] = 1  # of one that contains itself, which is refused later
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        nodes = [each for part in parts for each in (part if isinstance(part, tuple) else [part])]
        counts[node] += sum(_count_nodes(each, counts) for each in nodes)
    return counts[node]


def _validate(model: type[ConfigT], data: dict[str, Any]) -> ConfigT | list[Problem]:
    """`data` as `model`, or its problems."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        return blocks.list_problems(model, error, data)
    except ConfigError as error:
        return [Problem("", error.message, error.changes)]


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


def resolve(
    model: type[ConfigT], data: Mapping[str, Any], overrides: Mapping[str, Any], source: str
) -> ConfigT:
    """Validate `data` with dotted keys replaced as `model`. Raises ConfigError naming `source`."""
    return validate(model, with_overrides(data, overrides, model), source)


def with_overrides(
    data: Mapping[str, Any],
    overrides: Mapping[str, Any],
    model: type[Config] | None = None,
    dropped_keys: dict[str, list[str]] | None = None,
) -> dict[str, Any]:
    """Copy `data` with dotted keys replaced; a number in a path is an index into a list. If `model`
    is given, overriding a `kind` drops the keys that only other kinds of the block have (listed in
    `dropped_keys`), and null drops a key that cannot be null."""
    _refuse_contradictions(overrides)
    result = json.loads(json.dumps(data))
    paths: dict[str, list[str]] = {}
    for dotted, value in overrides.items():
        parts = paths[dotted] = _split(dotted, result, model)
        node = result
        for depth in range(len(parts) - 1):
            key = _node_key(node, parts, depth)
            inner = node[key] if isinstance(node, list) else node.get(key)
            node[key] = inner if isinstance(inner, dict | list) else {}
            node = node[key]
        node[_node_key(node, parts, len(parts) - 1)] = value
    if model is None:
        return result
    dropped: list[list[str]] = []
    for dotted, parts in paths.items():
        # A later override may have made a block of a null.
        types_here = find_types(model, parts)
        # A key of no known type is one that validation will report.
        may_be_null = not types_here or any(each in (None, type(None), Any) for each in types_here)
        value = functools.reduce(_child, parts, result)
        if value is None and not may_be_null:
            dropped.append(parts)
        elif parts[-1] == "kind":
            block = functools.reduce(_child, parts[:-1], result)
            names = _keys_of_other_kinds(block, find_types(model, parts[:-1]), value)
            prefix = dotted.removesuffix("kind")
            own = {key[len(prefix) :].split(".")[0] for key in overrides if key.startswith(prefix)}
            names = [name for name in names if name not in own]
            dropped += [[*parts[:-1], name] for name in names]
            if names and dropped_keys is not None:
                dropped_keys[dotted] = names
    # Delete from the end of a list, so that earlier indices stay valid.
    for parts in sorted(dropped, key=lambda parts: [part.zfill(9) for part in parts], reverse=True):
        node = functools.reduce(_child, parts[:-1], result)
        del node[_node_key(node, parts, len(parts) - 1)]
    return result


def _split(dotted: str, data: Any, model: type[Config] | None) -> list[str]:
    """The path of a dotted key; of keys with dots the longest that is there, or a free one."""
    words, parts, node = dotted.split("."), list[str](), data
    while words:
        count = 1
        if model is not None and dict[str, Any] in find_types(model, parts):
            count = len(words)
        elif isinstance(node, dict):
            lengths = range(len(words), 0, -1)
            count = next((n for n in lengths if ".".join(words[:n]) in node), 1)
        parts.append(".".join(words[:count]))
        words = words[count:]
        node = _child(node, parts[-1])
    return parts


def _child(node: Any, key: str) -> Any:
    if isinstance(node, list):
        return node[int(key)] if key.isdecimal() and int(key) < len(node) else None
    return node.get(key) if isinstance(node, dict) else None


def find_value(data: Any, key: str) -> Any:
    """The value at a dotted key of plain data, None if there is none."""
    return functools.reduce(_child, key.split("."), data)


def _refuse_contradictions(overrides: Mapping[str, Any]) -> None:
    """Refuse an override above an earlier one, or inside what an earlier one set to a value."""
    for earlier, later in itertools.combinations(overrides, 2):
        is_value = not isinstance(overrides[earlier], dict | list | None)
        if earlier.startswith(f"{later}.") or (is_value and later.startswith(f"{earlier}.")):
            raise ConfigError(f"{earlier} and {later} undo each other; give one of them")


def _keys_of_other_kinds(block: Any, types_here: list[Any], kind: Any) -> list[str]:
    """The keys of a block that only other kinds have. Validation reports keys that no kind has."""
    models = [each for each in types_here if blocks.is_block(each)]
    of_kind = [each for each in models if kind in blocks.block_kinds(each)]
    own = {name for each in of_kind for name in each.model_fields}
    others = {name for each in models for name in each.model_fields} - own
    return [name for name in block if name in others] if own else []


def _node_key(node: Any, parts: Sequence[str], depth: int) -> Any:
    """Interpret `parts[depth]` of a dotted key as a key of a block or an index into a list."""
    part = parts[depth]
    if isinstance(node, list):
        if not part.isdecimal() or int(part) >= len(node):
            here = ".".join(parts[: depth + 1])
            raise ConfigError.at(here, f"an index below {len(node)}", repr(part))
        return int(part)
    return part


class ComputeConfig(Config):
    """Where and how stages are computed. Changing a value here rebuilds nothing."""

    num_workers: int = Field(default=2, ge=1)  # Ray Train workers of a training stage
    cpus_per_worker: float = Field(default=1.0, gt=0)
    gpus_per_worker: float = Field(default=0.0, ge=0)
    micro_batch_size: int = Field(default=32, ge=1)  # instances that a worker computes at once
    # parts of a batch that the workers share out, each with its own micro-batches and dropout, so
    # that their number changes neither; null: one for each worker
    logical_workers: int | None = Field(default=None, ge=1)
    # continue with this few workers when machines are lost; null: num_workers
    min_workers: int | None = Field(default=None, ge=1)
    parallel: Literal["ddp", "fsdp"] = "ddp"  # ddp: each worker holds the model; fsdp: a part of it
    compile: bool = False  # torch.compile; micro-batches are then padded to one shape
    # in the backward pass: a third more work for about a tenth of the memory
    recompute_activations: bool = False
    # of all machines together; null: costs are not shown
    price_per_hour: float | None = Field(default=None, ge=0)
    # cost of a run above which it alerts, but does not end; null: none
    budget: float | None = Field(default=None, gt=0)
    max_failures: int = Field(default=3, ge=0)  # worker failures before a training stage gives up
    checkpoint_every_steps: int = Field(default=100, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)  # latest checkpoints to keep
    # keep the checkpoints of every so many steps for good; null: none
    keep_checkpoint_every_steps: int | None = Field(default=None, ge=1)
    max_concurrent_stages: int = Field(default=1, ge=1)  # independent stages built at the same time
    # trials of a sweep at the same time; fewer if fewer fit
    max_concurrent_trials: int = Field(default=2, ge=1)
    cpus_per_trial: float = Field(default=1.0, gt=0)
    gpus_per_trial: float = Field(default=0.0, ge=0)  # or a share of one; the first is used
    shard_cache_megabytes: int = Field(default=8192, ge=1)  # cache for remote shards, per machine
    # object store of a Ray that rungwise starts
    object_store_megabytes: int = Field(default=512, ge=80)

    @property
    def is_one_process(self) -> bool:
        """Whether training takes a single process on CPUs."""
        return self.num_workers == 1 and not self.gpus_per_worker

    def parts_of_a_batch(self, world_size: int) -> int:
        """The logical workers; one for each worker if those left after a loss cannot share them."""
        logical = self.logical_workers
        return logical if logical and logical % world_size == 0 else world_size

    @field_validator("gpus_per_trial")
    @classmethod
    def _whole_gpus(cls, gpus: float) -> float:
        if gpus > 1 and gpus % 1:
            raise ValueError(
                f"expected a part of one GPU or a whole number of GPUs, found {gpus:g}"
            )
        return gpus
