"""The stage that reads the weights which a run begins with: counts, or a folder of transformers.

Only safetensors are read: the older `pytorch_model.bin` is a pickle, which can run code. Padding
rows after the tokenizer's last token are left out.
"""

import gzip
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from rungwise.core.configuration.config import validate
from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Inputs
from rungwise.core.stages.stage import Context, StageType
from rungwise.core.storage.folder import Folder
from rungwise.core.storage.hub import is_hub, local_copy
from rungwise.core.storage.source_files import digest_matching_files, find_files, on_disk
from rungwise.models.config import FAMILIES
from rungwise.models.counterpart import Counterpart
from rungwise.models.device import shapes_only
from rungwise.models.family import Family
from rungwise.models.fitting import FileFamily, fill_arrays
from rungwise.tokenizer import TokenizerFileConfig, load_tokenizer, read_tokenizer, special_ids
from rungwise.training.initial import IMPORTED, ImportConfig, ImportSummary
from rungwise.training.tensor_files import MODEL, create_arrays, save_tensors

CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
INDEX = f"{WEIGHTS}.index.json"  # lists shards
FILES = (CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG)


def import_weights(
    config: ImportConfig, inputs: Inputs, output: Folder, context: Context
) -> ImportSummary:
    """Write the weights of `config.path` under own names. Raises DataError for a model that is not
    supported, or of other tokens than those of `tokenizer`."""
    tokenizer = load_tokenizer(inputs["tokenizer"].folder)
    model: Any
    if family := _find_family(config.path):
        model = _import_file(family, config.path, tokenizer, output)
        size = tokenizer.get_vocab_size()
    else:
        model, state, size = import_folder(config.path, tokenizer)
        save_tensors(output, MODEL, state)
    return ImportSummary(
        model=model, vocab_size=size, headline=f"{model.kind}: {model.describe()}  V={size:,}"
    )


def _find_family(path: str) -> Any:
    """Return the `FileFamily` that reads files of this name, None if none does."""
    return next((family for family in FAMILIES if path.endswith(family.suffixes)), None)


def _import_file(
    family: type[FileFamily], path: str, tokenizer: Tokenizer, output: Folder
) -> Family:
    """Write the model of a text file; return its config."""
    words = [tokenizer.id_to_token(id_) or f"[{id_}]" for id_ in range(tokenizer.get_vocab_size())]
    [file] = on_disk(path)
    try:
        with file.open() as stream:
            lines = gzip.GzipFile(fileobj=stream) if path.endswith(".gz") else stream
            model, arrays = family.read_text_file(path, lines, words, special_ids(tokenizer))
    except (EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: expected a gzip file, found {error}") from error
    with output.staged(MODEL) as place:
        fill_arrays(lambda shapes: create_arrays(place, shapes), arrays)
    return model


def _digest_files(config: ImportConfig) -> Mapping[str, Any]:
    if _find_family(config.path):
        return digest_matching_files([config.path], "pretrain.initial")
    return digest_folder(config.path)


def count_unused_positions(counterpart: Counterpart, data: Mapping[str, Any]) -> int:
    """How many unused rows their position table has before the first position."""
    return 1 + (data.get("pad_token_id", 1) or 0) if counterpart.after_padding else 0


def load_model(folder: Path) -> tuple[Family, dict[str, Tensor]]:
    """The config and the weights in `folder`, in float32 and under the names of rungwise. Names are
    those of the family's pretraining model, and `classifier` or `qa_outputs` for the last layer of
    a task head; absent heads are left out. The vocabulary size is that of the embedding. Raises
    DataError naming the file and the missing or unsupported key."""
    data, config, counterpart = _read_config(folder / CONFIG)
    paths = [folder / name for name in list_weight_files(folder)]
    path, tensors = paths[0], _read_weights(paths, counterpart, config)
    with shapes_only():
        model: Any = config.build(data["vocab_size"], config.objectives[0])
        body = config.encoder(config.objectives[0], data["vocab_size"], 0.0).state_dict()
    own = model.state_dict()
    names = {theirs: counterpart.find_own_name(theirs) for theirs in tensors}
    for theirs, name in sorted(names.items()):
        if not name or (name.startswith(f"{model.body.name}.") and name not in own):
            raise DataError(
                f"{path}: {theirs} has no place in a {counterpart.model_type} of {CONFIG}; "
                "expected the weights of one of the classes that rungwise exports"
            )
    # A head is there as a whole or not at all.
    heads = {name.partition(".")[0] for name in names.values() if name not in body}
    whole = [name for name in own if name in body or name.partition(".")[0] in heads]
    unused = count_unused_positions(counterpart, data)
    state: dict[str, Tensor] = {}
    for name in dict.fromkeys((*whole, *names.values())):
        parts = counterpart.list_names(name)
        if missing := [part for part in parts if part not in tensors]:
            raise DataError(f"{path}: the tensor {missing[0]} is missing")
        tensor = counterpart.join(name, [tensors[part] for part in parts]).contiguous()
        state[name] = tensor[unused:] if name == counterpart.after_padding else tensor
        if name in own and state[name].shape != own[name].shape:
            raise DataError(
                f"{path}: {name} has the shape {list(state[name].shape)}, expected "
                f"{list(own[name].shape)} after {path.with_name(CONFIG)}"
            )
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
    if not config_only:
        needed += [name for name in names if name.startswith("model") and ".safetensors" in name]
    copies = [local_copy(names[name]) for name in needed]
    return copies[0].parent


def list_weight_files(folder: Path) -> list[str]:
    """The names of the files in `folder` that hold the weights; an index of shards comes first."""
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    index = folder / INDEX
    if not index.is_file():
        raise DataError(
            f"{folder} has no {WEIGHTS} and no {INDEX}; save_pretrained of transformers writes them"
        )
    files = _read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise DataError(f"{index}: expected a weight_map of tensor to file, found none")
    shards = sorted({Path(str(shard)).name for shard in files.values()})  # beside it only
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise DataError(f"{index} lists {missing[0]}, which is not beside it; add the file")
    return [INDEX, *shards]


def load_config(path: str) -> Family:
    """Only the config of a folder or a model of the hub."""
    return _read_config(weights_folder(path, config_only=True) / CONFIG)[1]


def _read_config(path: Path) -> tuple[dict[str, Any], Family, Counterpart]:
    """The data of the file, and the config that they describe."""
    data = _read_json(path)
    counterparts = {
        counterpart.model_type: (family, counterpart)
        for family in FAMILIES
        for counterpart in family.counterparts()
        if counterpart.is_read
    }
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in counterparts:
        raise DataError(
            f"{path}: model_type must be one of {', '.join(counterparts)}, found {json.dumps(kind)}"
        )
    family, counterpart = counterparts[kind]
    _check_keys(data, counterpart, path)
    values: dict[str, Any] = {name: data[key] for name, key in counterpart.sizes.items()}
    for name, (key, default) in counterpart.defaults.items():
        values[name] = data.get(key, default)
    values["dropout"] = data.get(counterpart.dropouts[0], counterpart.usual_dropout)
    try:
        values["max_position_embeddings"] -= count_unused_positions(counterpart, data)
        values |= {**counterpart.when, **counterpart.values(data)}
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except (TypeError, ArithmeticError) as error:
        raise DataError(f"{path}: a value is not of the type of its key: {error}") from error
    return data, validate(family, values, source=str(path)), counterpart


def _check_keys(data: Mapping[str, Any], counterpart: Counterpart, path: Path) -> None:
    """Raise DataError for a key that is missing, or a value that the family cannot follow."""
    for key, allowed in counterpart.settings.items():
        value = data.get(key, allowed[0])
        if value not in allowed:
            values = sorted(allowed, key=lambda value: value is None)
            expected = " or ".join(json.dumps(each) for each in values)
            raise DataError(
                f"{path}: {key} must be {expected}, found {json.dumps(value)}; rungwise "
                f"has no such {counterpart.model_type}"
            )
    for key in (*counterpart.sizes.values(), "vocab_size"):
        if key not in data:
            raise DataError(f"{path}: the key {key} is missing")
        if not isinstance(data[key], int) or data[key] < 1:
            size = json.dumps(data[key])
            raise DataError(f"{path}: {key} must be a number above 0, found {size}")
    rates = {name: data.get(name, counterpart.usual_dropout) for name in counterpart.dropouts}
    if any(rate != other for rate, other in pairwise(rates.values())):
        raise DataError(
            f"{path}: {' and '.join(rates)} must be the same, found "
            f"{', '.join(str(rate) for rate in rates.values())}; rungwise has one dropout, change "
            f"the file to the one you want"
        )


def _read_weights(paths: list[Path], counterpart: Counterpart, config: Any) -> dict[str, Tensor]:
    """The tensors under current names of transformers, tied ones once."""
    originals: dict[str, Tensor] = {}
    for path in paths:
        if path.name == INDEX:
            continue
        try:
            originals |= load_file(path)
        except (SafetensorError, OSError) as error:
            first = str(error).partition("\n")[0]
            raise DataError(f"{path}: expected safetensors, found {first}") from error
    prefix = counterpart.prefix
    if any(name.startswith(prefix) for name in originals):
        prefix = ""
    tied = counterpart.tied if getattr(config, "tied", True) else {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in originals.items():
        if name.endswith(counterpart.buffers):
            continue
        # Checkpoints converted from TensorFlow still have its LayerNorm names.
        module, _, leaf = name.rpartition(".")
        name = f"{module}.{ {'gamma': 'weight', 'beta': 'bias'}.get(leaf, leaf) }"
        is_head = name in tied or counterpart.find_own_name(name)
        tensors[name if is_head else prefix + name] = tensor.float()
    for copy, original in tied.items():
        if copy in tensors and not torch.equal(
            tensors.pop(copy), tensors.get(original, torch.empty(0))
        ):
            raise DataError(
                f"{paths[0]}: {copy} differs from {original}; rungwise has them tied, as one tensor"
            )
    return tensors


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected JSON, found {error}") from error
    if not isinstance(data, dict):
        raise DataError(f"{path}: expected an object, found {type(data).__name__}")
    return data


def import_folder(path: str, tokenizer: Tokenizer) -> tuple[Family, dict[str, Tensor], int]:
    """Return the model of a folder, its weights under own names with a row for each token of
    `tokenizer`, and their number. Raises DataError for an unsupported model, or a tokenizer that is
    not the folder's."""
    folder = weights_folder(path)
    model: Any
    model, state = load_model(folder)
    before = read_tokenizer(TokenizerFileConfig(path=path))
    _refuse_other_tokens(before, tokenizer, path)
    size = before.get_vocab_size()
    with shapes_only():
        one, other = (model.build(rows, model.objectives[0]).state_dict() for rows in (7, 8))
    for name in (name for name in one if one[name].shape != other[name].shape):
        if name not in state:
            continue
        if len(state[name]) < size:
            raise DataError(
                f"{folder}: {name} has {len(state[name])} rows, fewer than the {size} "
                "tokens of the tokenizer beside it; give the folder the tokenizer of its model"
            )
        state[name] = state[name][:size]
    return model, state, size


def digest_folder(path: str) -> Mapping[str, Any]:
    """Return the digest of each file that an import reads. Raises DataError without a config."""
    place = weights_folder(path)
    folder = Folder.at(place)
    if not folder.exists(CONFIG):
        raise DataError(
            f"pretrain.initial: {path} has no {CONFIG}; expected a folder that "
            "save_pretrained of transformers, or rungwise export, has written, or counts as a file "
            "that ends in .arpa or .arpa.gz"
        )
    names = [CONFIG, *list_weight_files(place)]
    return {name: folder.sha256(name) for name in names}


def _refuse_other_tokens(before: Tokenizer, after: Tokenizer, path: str) -> None:
    """Raise DataError unless both have the same tokens."""
    for index in range(max(before.get_vocab_size(), after.get_vocab_size())):
        if before.id_to_token(index) != after.id_to_token(index):
            raise DataError(
                f"the tokenizer is not that of pretrain.initial: token {index} is "
                f"{after.id_to_token(index)!r}, but {before.id_to_token(index)!r} in {path}; leave "
                "out the block tokenizer"
            )


INITIAL_WEIGHTS = StageType(
    IMPORTED, 3, import_weights, ImportSummary, identity=lambda config: {}, outside=_digest_files
)
