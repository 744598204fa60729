"""A family in the format of Hugging Face transformers, as data: config, names and exceptions.

    names    gpt.transformer.blocks.{}.mlp.expand  <->  transformer.h.{}.mlp.c_fc
    sizes    num_layers                            <->  n_layer

serving/importing.py reads folders by `Family.counterparts`, serving/export.py writes them, and both
know no family.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from rungwise.core.errors import DataError

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")

# Modules of theirs: one, or those of queries, keys and values, or of the halves of a gated layer.
Modules = str | tuple[str, ...]
SIZES: Mapping[str, str] = {  # keys of `TransformerFamily` under their usual names
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
}


@dataclass(frozen=True)
class Architecture:
    """A class of theirs. `pool` and `linear` are our names of the layers of a task's head."""

    name: str
    keys: Mapping[str, Any] = field(default_factory=dict)  # of the config, for this class only
    leaves_out: tuple[str, ...] = ()  # how the names begin of our tensors that it has no place for
    pool: str = ""
    linear: str = ""
    labels: Literal["classes", "tags"] | None = None  # which its outputs are


@dataclass(frozen=True)
class SentenceModule:
    """A module of sentence-transformers: its class, settings and tensors."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Counterpart:
    """How transformers stores one `model_type`."""

    model_type: str
    # Their class by the `purpose` of a model, or of the head of a task.
    architectures: Mapping[str, Architecture]
    when: Mapping[str, Any] = field(default_factory=dict)  # values of our keys that it stands for
    is_read: bool = True  # or only written
    names: Mapping[str, Modules] = field(default_factory=dict)  # of modules, by ours
    prefix: str = ""  # of their tensors, which those of a model without heads lack
    transposed: tuple[str, ...] = ()  # modules of ours
    reversed_rows: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)  # tensors that must equal others
    buffers: tuple[str, ...] = ()  # how names end of masks and counters of old versions
    # Our table of positions, if theirs begins behind the number of the padding token.
    after_padding: str = ""
    # Tensors under our names that a body computes or lacks, from it and the config.
    computed: Callable[[Any, Any], Mapping[str, Tensor]] = lambda body, config: {}
    sizes: Mapping[str, str] = field(default_factory=lambda: SIZES)
    # Keys that may be missing, and the values that then hold.
    defaults: Mapping[str, tuple[str, Any]] = field(
        default_factory=lambda: {"initializer_range": ("initializer_range", 0.02)}
    )
    dropouts: tuple[str, ...] = ()
    usual_dropout: float = 0.0  # if the keys are missing
    # Keys that are fixed here, with the values that are allowed. The first holds if a key is
    # missing.
    settings: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    keys: Callable[[Any], Mapping[str, Any]] = lambda config: {}  # other keys, from our config
    # Our other keys from theirs; raises DataError for what we lack.
    values: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda data: {}
    # Raises ConfigError for a model or a config that it cannot hold.
    check: Callable[[Any, Any], None] = lambda model, config: None
    framed: bool = False  # texts are framed by [CLS] and [SEP]
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    token_ids: Mapping[str, str] = field(
        default_factory=lambda: {
            f"{role}_id": role for role in ("pad_token", "bos_token", "eos_token")
        }
    )
    # The whole model as modules of sentence-transformers, without a config of transformers.
    modules: Callable[[Any], list[SentenceModule]] | None = None

    def holds(self, config: Any) -> bool:
        """Whether it stands for a config of its family."""
        return all(getattr(config, key) == value for key, value in self.when.items())

    def list_names(self, name: str) -> tuple[str, ...]:
        """Return their names of a tensor of ours, several if they have it in parts."""
        pattern, leaf, number = _split_name(name)
        modules = _list_modules(self.names.get(pattern, ()))
        return tuple(f"{module.format(number)}.{leaf}" for module in modules)

    def find_own_name(self, name: str) -> str:
        """Return our name of a tensor of theirs or of its whole; empty if we have none."""
        pattern, leaf, number = _split_name(name)
        module = self._sources.get(pattern)
        return "" if module is None else f"{module.format(number)}.{leaf}"

    @cached_property
    def _sources(self) -> dict[str, str]:
        return {module: name for name, each in self.names.items() for module in _list_modules(each)}

    def store(self, name: str, tensor: Tensor, config: Any) -> dict[str, Tensor]:
        """Return a tensor of ours under their names."""
        names = self.list_names(name)
        assert names, f"no place for {name}"
        if len(names) == 1:
            return {names[0]: self._turn(name, tensor)}
        sizes = config.blocks()[0].attention_sizes if len(names) == 3 else len(tensor) // 2
        return dict(zip(names, tensor.split(sizes), strict=True))

    def join(self, name: str, tensors: Sequence[Tensor]) -> Tensor:
        """Return our tensor of this name, made of theirs under `list_names`."""
        return torch.cat(list(tensors)) if len(tensors) > 1 else self._turn(name, tensors[0])

    def _turn(self, name: str, tensor: Tensor) -> Tensor:
        """Transpose or reverse; each is its own inverse."""
        pattern, leaf, _ = _split_name(name)
        if pattern in self.transposed and leaf == "weight":
            return tensor.T
        return tensor.flip(0) if pattern in self.reversed_rows else tensor


def _split_name(name: str) -> tuple[str, str, str]:
    """Return the module with {} for its layer, the tensor in it, and the number of the layer."""
    number = _NUMBER.search(name)
    module, _, leaf = _NUMBER.sub("{}", name, count=1).rpartition(".")
    return module, leaf, number.group() if number else ""


def _list_modules(modules: Modules) -> tuple[str, ...]:
    return (modules,) if isinstance(modules, str) else modules


def read_rotary_base(
    data: Mapping[str, Any], key: str, default: float, layer: str | None = None
) -> float:
    """Return the rotary base, of a type of layers. Raises DataError for scaled positions."""
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if isinstance(rope, dict) and layer is not None:
        rope = rope.get(layer) or {}
    if not isinstance(rope, dict):
        raise DataError(f"rope_parameters must be an object, found {json.dumps(rope)}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise DataError(
            f"rope_type must be default, found {kind}; rungwise has no positions that are scaled"
        )
    return rope.get("rope_theta", data.get(key, default))
