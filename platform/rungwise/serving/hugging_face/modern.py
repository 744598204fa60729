"""The keys of config.json specific to ModernBERT, Llama and Qwen3: positions and layers.

Since transformers 5 a config lists the attention type of each layer and the rotary base of each
type; before, it had a key for each number. Both forms are read and written.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rungwise.core.errors import DataError
from rungwise.models.families.llama import LlamaConfig
from rungwise.models.families.modern_bert import ModernBertConfig

_FULL, _SLIDING = "full_attention", "sliding_attention"


def modern_bert_keys(config: ModernBertConfig) -> dict[str, Any]:
    """Their keys for `config`."""
    bases = {_FULL: config.global_rotary_base, _SLIDING: config.local_rotary_base}
    return {
        "global_attn_every_n_layers": config.global_every,
        "global_rope_theta": config.global_rotary_base,
        "local_rope_theta": config.local_rotary_base,
        "layer_types": _layer_types(config.num_layers, config.global_every),
        "rope_parameters": {
            name: {"rope_type": "default", "rope_theta": base} for name, base in bases.items()
        },
    }


def modern_bert_values(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Our values of the keys in `data`. Raises DataError for unsupported layers or positions."""
    every, layers = data.get("global_attn_every_n_layers", 3), data.get("layer_types")
    # A stack that is too short to have a second one says nothing against the key.
    if layers is not None and layers != _layer_types(len(layers), every):
        near = [number for number, name in enumerate(layers) if name == _FULL][1:]
        every = near[0] if near else len(layers)
        if layers != _layer_types(len(layers), every):
            raise DataError(
                f"{path}: layer_types must begin with {_FULL} and have it again every so many "
                f"layers, {_SLIDING} between, found {layers}; rungwise has no such modernbert"
            )
    return {
        "global_every": every,
        "global_rotary_base": _read_base(data, path, "global_rope_theta", 160_000.0, _FULL),
        "local_rotary_base": _read_base(data, path, "local_rope_theta", 10_000.0, _SLIDING),
    }


def llama_keys(config: LlamaConfig) -> dict[str, Any]:
    """Their keys for `config`."""
    layer = config.layer(0)
    return {
        "num_key_value_heads": layer.num_key_value_heads,
        "head_dim": layer.head_size,
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tied,
        "rope_theta": config.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
    }


def llama_values(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Our values of the keys in `data`. Raises DataError for unsupported positions."""
    heads, hidden = data["num_attention_heads"], data["hidden_size"]
    is_qwen3 = data["model_type"] == "qwen3"
    shared, size = data.get("num_key_value_heads"), data.get("head_dim", 128 if is_qwen3 else None)
    return {
        "num_key_value_heads": None if shared == heads else shared,
        "head_size": None if size is None or size * heads == hidden else size,
        "query_key_norm": is_qwen3,
        "norm_epsilon": data.get("rms_norm_eps", 1e-6),
        "tied": data.get("tie_word_embeddings", False),
        "rotary_base": _read_base(data, path, "rope_theta", 10_000.0),
    }


def _layer_types(num_layers: int, every: int) -> list[str]:
    return [_SLIDING if number % every else _FULL for number in range(num_layers)]


def _read_base(
    data: Mapping[str, Any], path: Path, key: str, default: float, layer: str | None = None
) -> float:
    """The rotary base, of the layer type `layer` if there are several."""
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if isinstance(rope, dict) and layer is not None:
        rope = rope.get(layer) or {}
    if not isinstance(rope, dict):
        raise DataError(f"{path}: rope_parameters must be an object, found {json.dumps(rope)}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise DataError(
            f"{path}: rope_type must be default, found {kind}; rungwise has no positions that are "
            "scaled"
        )
    return rope.get("rope_theta", data.get(key, default))
