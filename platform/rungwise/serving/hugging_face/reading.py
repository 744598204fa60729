"""Import: the config and the weights of a folder that transformers saved.

Weights are safetensors or the older `pytorch_model.bin`, in one file or in shards. The latter is a
pickle, of which only tensors are read, so that it cannot run code.
"""

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rungwise.core.configuration.config import validate
from rungwise.core.errors import DataError
from rungwise.core.storage.hub import is_hub, local_copy
from rungwise.core.storage.source_files import find_files
from rungwise.models.device import shapes_only
from rungwise.serving.hugging_face.modern import llama_values, modern_bert_values
from rungwise.serving.hugging_face.names import (
    BUFFERS,
    CONFIG,
    FORMATS,
    HEADS,
    INDEX,
    OLD_WEIGHTS,
    WEIGHTS,
    Known,
    count_unused_positions,
)
from rungwise.serving.hugging_face.tensors import ENCODER, list_entries


def load_model(folder: Path) -> tuple[Known, dict[str, Tensor]]:
    """The config and the weights in `folder`, in float32 and under the names of rungwise.

    Names are those of the family's pretraining model, and `classifier` or `qa_outputs` for the last
    layer of a task head; absent heads are left out. The vocabulary size is that of the embedding.
    Raises DataError naming the file and the missing or unsupported key.
    """
    data, config = _read_config(folder / CONFIG)
    kind = data["model_type"]
    paths = [folder / name for name in list_weight_files(folder)]
    path, tensors = paths[0], _read_weights(paths, kind, config)
    entries = list_entries(config)
    groups = {entry.group for entry in entries if not tensors.keys().isdisjoint(entry.parts)}
    state: dict[str, Tensor] = {}
    for entry in entries:
        if entry.group in {ENCODER, *groups}:
            if missing := [part for part in entry.parts if part not in tensors]:
                raise DataError(f"{path}: the tensor {missing[0]} is missing")
            parts = [tensors.pop(part) for part in entry.parts]
            state[entry.name] = entry.join(parts).contiguous()
    if tensors:
        raise DataError(
            f"{path}: {min(tensors)} has no place in a {kind} of {CONFIG}; expected the "
            f"weights of one of the classes that rungwise exports"
        )
    _check_shapes(state, config, data, path)
    return config, state


def weights_folder(path: str, *, config_only: bool = False) -> Path:
    """Return a folder on this machine with the config and the weights of a folder or a model of the
    hub. Raises UserError if the hub fails, DataError if the model has no config."""
    if not is_hub(path):
        return Path(path)
    names = {file.name: file.uri for file in find_files(path) if "/" not in file.name}
    if CONFIG not in names:
        raise DataError(f"pretrain.initial: {path} has no {CONFIG}; is it a model of transformers?")
    needed = [CONFIG]
    for stem, _, suffix in (
        () if config_only else (WEIGHTS.partition("."), OLD_WEIGHTS.partition("."))
    ):
        if files := [name for name in names if name.startswith(stem) and f".{suffix}" in name]:
            needed += files
            break
    copies = [local_copy(names[name]) for name in needed]
    return copies[0].parent


def list_weight_files(folder: Path) -> list[str]:
    """The names of the files in `folder` that hold the weights; an index of shards comes first."""
    for name in (WEIGHTS, OLD_WEIGHTS):
        if (folder / name).is_file():
            return [name]
        index = folder / f"{name}{INDEX}"
        if index.is_file():
            files = _read_json(index).get("weight_map")
            if not isinstance(files, dict) or not files:
                raise DataError(f"{index}: expected a weight_map of tensor to file, found none")
            shards = sorted({str(shard) for shard in files.values()})
            if outside := [
                shard
                for shard in shards
                if Path(shard).name in ("", "..") or Path(shard).name != shard
            ]:
                raise DataError(
                    f"{index}: expected names of files beside it, found {outside[0]!r:.80}"
                )
            if missing := [shard for shard in shards if not (folder / shard).is_file()]:
                raise DataError(f"{index} lists {missing[0]}, which is not beside it; add the file")
            return [index.name, *shards]
    raise DataError(
        f"{folder} has no weights; expected {WEIGHTS} or {OLD_WEIGHTS}, or the index of their "
        f"shards, as save_pretrained of transformers writes them"
    )


def load_config(folder: Path) -> Known:
    """Only the config of `load_model`."""
    return _read_config(folder / CONFIG)[1]


def _read_config(path: Path) -> tuple[dict[str, Any], Known]:
    """The data of the file and the config that they describe."""
    data = _read_json(path)
    _check_settings(data, path)
    kind = data["model_type"]
    layout = FORMATS[kind]
    missing = [key for key in (*layout.sizes.values(), "vocab_size") if key not in data]
    if missing:
        raise DataError(f"{path}: the key {missing[0]} is missing")
    if not isinstance(data["vocab_size"], int) or data["vocab_size"] < 1:
        size = json.dumps(data["vocab_size"])
        raise DataError(f"{path}: vocab_size must be a number above 0, found {size}")
    rates = {name: data.get(name, layout.usual_dropout) for name in layout.dropouts}
    if len(set(rates.values())) > 1:
        raise DataError(
            f"{path}: {' and '.join(rates)} must be the same, found "
            f"{', '.join(str(rate) for rate in rates.values())}; rungwise has one dropout, change "
            f"the file to the one you want"
        )
    values: dict[str, Any] = {name: data[key] for name, key in layout.sizes.items()}
    values["dropout"] = next(iter(rates.values()))
    values["initializer_range"] = data.get("initializer_range", 0.02)
    match kind:
        case "roberta-prelayernorm":
            values["norm"] = "pre"
            values["max_position_embeddings"] -= count_unused_positions(data)
        case "modernbert":
            values |= modern_bert_values(data, path)
        case "llama" | "qwen3":
            values |= llama_values(data, path)
        case "gpt2" | "openai-gpt":
            inner = data.get("n_inner") if kind == "gpt2" else None
            values["intermediate_size"] = 4 * data["n_embd"] if inner is None else inner
            values["norm"] = "pre" if kind == "gpt2" else "post"
    return data, validate(layout.config, values, source=str(path))


def _check_settings(data: dict[str, Any], path: Path) -> None:
    kind = data.get("model_type")
    if kind not in [*FORMATS]:  # JSON may hold what has no hash
        raise DataError(
            f"{path}: model_type must be one of {', '.join(FORMATS)}, found {json.dumps(kind)}"
        )
    for key, allowed in FORMATS[kind].settings.items():
        value = data.get(key, allowed[0])
        if value not in allowed:
            values = sorted(allowed, key=lambda value: value is None)
            expected = " or ".join(json.dumps(each) for each in values)
            raise DataError(
                f"{path}: {key} must be {expected}, found {json.dumps(value)}; rungwise "
                f"has no such {kind}"
            )


def _read_weights(paths: list[Path], kind: str, config: Known) -> dict[str, Tensor]:
    """The tensors under current names of transformers, tied ones once."""
    originals: dict[str, Tensor] = {}
    for path in paths:
        if not path.name.endswith(INDEX):
            originals |= _read_tensors(path)
    prefix = FORMATS[kind].prefix
    prefix = "" if any(name.startswith(prefix) for name in originals) else prefix
    tensors: dict[str, Tensor] = {}
    for name, tensor in originals.items():
        if name.endswith(BUFFERS):
            continue
        # Checkpoints converted from TensorFlow still have its LayerNorm names.
        head, _, leaf = name.rpartition(".")
        leaf = {"gamma": "weight", "beta": "bias"}.get(leaf, leaf)
        full = f"{head}.{leaf}"
        tensors[full if full.startswith(HEADS) else prefix + full] = tensor.float()
    tied = FORMATS[kind].tied if getattr(config, "tied", True) else {}
    for copy, original in tied.items():
        if copy in tensors and not torch.equal(
            tensors.pop(copy), tensors.get(original, torch.empty(0))
        ):
            raise DataError(
                f"{paths[0]}: {copy} differs from {original}; rungwise has them tied, as one tensor"
            )
    return tensors


def _read_tensors(path: Path) -> dict[str, Tensor]:
    kind = "safetensors" if path.suffix == ".safetensors" else "a dictionary of tensors"
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        first = str(error).partition("\n")[0]
        raise DataError(f"{path}: expected {kind}, found {first}") from error
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise DataError(f"{path}: expected {kind}, found other objects")
    return tensors


def _check_shapes(
    state: dict[str, Tensor], config: Known, data: dict[str, Any], path: Path
) -> None:
    with shapes_only():
        model = config.build(data["vocab_size"], config.objectives[0])
    for name, expected in model.state_dict().items():
        if name in state and state[name].shape != expected.shape:
            raise DataError(
                f"{path}: {name} has the shape {list(state[name].shape)}, expected "
                f"{list(expected.shape)} after {path.with_name(CONFIG)}"
            )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path}: expected JSON, found {error}") from error
    except RecursionError:
        raise DataError(f"{path}: expected JSON of a few levels, found too many") from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: expected an object, found {type(data).__name__}")
    return data
