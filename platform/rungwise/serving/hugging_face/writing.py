"""Export: a model and its tokenizer as a folder for transformers, and sentence-transformers if it
gives vectors of texts. The counterpart of its family (models/counterpart.py) says how.

The metadata of the card names no licence: that of a model is for its owner to choose.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer, processors
from torch import Tensor
from torch.nn import functional

from rungwise.core.configuration.canonical import canonical_json
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.tokens import END_OF_TEXT, ROLE_NAMES, SEP
from rungwise.models.config import FAMILIES
from rungwise.models.counterpart import Architecture, Counterpart, SentenceModule
from rungwise.models.family import Family
from rungwise.models.transformer.block import Pooling
from rungwise.serving.hugging_face.reading import FILES, count_unused_positions

CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG = FILES


def export_model(
    model: Any,
    config: Family,
    tokenizer_file: Path,
    folder: Path,
    labels: Sequence[str] = (),
    longest: int | None = None,
) -> str:
    """Write `model` and its tokenizer to `folder`, created if needed; returns their class name, ""
    for one that only sentence-transformers loads. `labels` names the classes or tags of a
    HeadedEncoder, `longest` is the longest row it was fine-tuned on. A tokenizer that frames
    nothing gets [CLS] A [SEP] B [SEP] if the model reads that, as in training. Raises ConfigError
    for a model without a counterpart, DataError for a tokenizer of another size."""
    counterpart, architecture = _find_counterpart(model, config)
    body = model.body
    # Fine-tuning and some objectives have a dropout of their own.
    config = config.model_copy(update={"dropout": body.dropout.p})
    heads = _list_head_keys(model, architecture, labels) if architecture.linear else {}
    tokenizer, roles = read_tokenizer(tokenizer_file, body.vocab_size, counterpart.framed)
    if counterpart.after_padding and "pad_token" not in roles:
        raise DataError(
            f"{tokenizer_file}: expected a token for padding, [PAD] or <pad>, found none; "
            f"{architecture.name} counts positions from its id on"
        )
    names = [roles[role] for role in ("cls_token", "sep_token", "sep_token") if role in roles]
    if counterpart.framed and tokenizer.post_processor is None and len(names) == 3:
        add_frame(tokenizer, *((name, tokenizer.get_vocab()[name]) for name in names))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / TOKENIZER))
    if counterpart.modules is not None:
        write_modules(folder, counterpart.modules(model))
        return ""
    data = _make_config(config, counterpart, tokenizer, roles) | {
        "architectures": [architecture.name],
        "vocab_size": body.vocab_size,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        **architecture.keys,
        **heads,
    }
    longest_key = counterpart.sizes.get("max_position_embeddings", "max_position_embeddings")
    length = data[longest_key]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest or length,
        "model_input_names": counterpart.inputs,
        "clean_up_tokenization_spaces": False,
    }
    unused = count_unused_positions(counterpart, data)
    data[longest_key] += unused
    tensors = _convert_tensors(model, config, counterpart, architecture, unused)
    write_json(folder / CONFIG, data)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    write_json(folder / TOKENIZER_CONFIG, {**settings, **roles})
    if pooling := getattr(model, "pooling", None):
        size = {"word_embedding_dimension": body.width, f"pooling_mode_{POOLING[pooling]}": True}
        pool = SentenceModule("Pooling", size)
        write_modules(folder, [SentenceModule("Transformer"), pool], length)
    return architecture.name


def _find_counterpart(model: Any, config: Family) -> tuple[Counterpart, Architecture]:
    purpose: Any = getattr(model, "purpose", None)
    if problem := getattr(model, "unusual_parts", None):
        raise ConfigError(f"transformers has no model that {problem}")
    for counterpart in config.counterparts():
        if counterpart.holds(config) and purpose in counterpart.architectures:
            counterpart.check(model, config)
            architecture = counterpart.architectures[purpose]
            if architecture.pool and model.head.pool.dense is None:
                raise ConfigError(
                    f"finetune.pooling is {model.head.pool.pooling} without a pooler, and "
                    f"{architecture.name} has one; expected cls, of a model pretrained on pairs"
                )
            return counterpart, architecture
    kinds = [each.model_fields["kind"].default for each in FAMILIES if each.counterparts()]
    raise ConfigError(
        f"a {type(model).__name__} has no counterpart in transformers, so it cannot be exported; "
        f"expected a model.kind of {', '.join(kinds)}, with an objective that it knows"
    )


def _make_config(
    config: Any, counterpart: Counterpart, tokenizer: Tokenizer, roles: Mapping[str, str]
) -> dict[str, Any]:
    """Make what every class of this `model_type` has in config.json."""
    return {
        "model_type": counterpart.model_type,
        **{key: getattr(config, name) for name, key in counterpart.sizes.items()},
        **{key: getattr(config, name) for name, (key, _) in counterpart.defaults.items()},
        **dict.fromkeys(counterpart.dropouts, config.dropout),
        **{key: allowed[0] for key, allowed in counterpart.settings.items() if allowed[0]},
        **{
            key: tokenizer.token_to_id(roles[role]) if role in roles else None
            for key, role in counterpart.token_ids.items()
        },
        **counterpart.keys(config),
    }


def _convert_tensors(
    model: Any, config: Family, counterpart: Counterpart, architecture: Architecture, unused: int
) -> dict[str, Tensor]:
    """Convert the tensors that the class has; the table of positions begins with `unused` rows."""
    body, state = model.body, dict(model.state_dict())
    if architecture.linear:
        state = rename_headed(state, architecture)
    elif model.purpose == "vectors":
        state = {name: state[name] for name in state if name.startswith(f"{body.name}.")}
    tensors: dict[str, Tensor] = {}
    for name, tensor in (state | {**counterpart.computed(body, config)}).items():
        if name.startswith(architecture.leaves_out):
            continue
        if name == counterpart.after_padding:
            tensor = functional.pad(tensor, (0, 0, unused, 0))
        tensors |= counterpart.store(name, tensor.detach().cpu(), config)
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def rename_headed(state: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Give the tensors of a HeadedEncoder the names that `load_model` returns."""
    pool, linear = f"{architecture.pool}.", f"{architecture.linear}."
    modules = {"encoder": "", "head.pool.dense": pool, "head.linear": linear}
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        own = next(each for each in modules if name.startswith(f"{each}."))
        tensors[modules[own] + name.removeprefix(f"{own}.")] = tensor
    return tensors


def _list_head_keys(
    model: Any, architecture: Architecture, labels: Sequence[str]
) -> dict[str, Any]:
    dropout = getattr(model.head, "dropout", None)
    data = {} if dropout is None else {"classifier_dropout": dropout.p}
    if architecture.labels is None:
        return data
    count = model.head.linear.out_features
    names = list(labels) or [f"LABEL_{index}" for index in range(count)]
    if len(names) != count:
        raise ConfigError(f"labels: expected {count} names, one a class, found {len(names)}")
    data["id2label"] = {str(index): name for index, name in enumerate(names)}
    data["label2id"] = {name: index for index, name in enumerate(names)}
    if architecture.labels == "classes":
        one = "single_label_classification" if count > 1 else "regression"
        data["problem_type"] = "multi_label_classification" if model.labels_add else one
    return data


# Additional files of sentence-transformers, and its names of poolings.
MODULES, SENTENCES = "modules.json", "sentence_bert_config.json"
POOLING: Mapping[Pooling, str] = {
    "mean": "mean_tokens",
    "root": "mean_sqrt_len_tokens",
    "max": "max_tokens",
    "last": "lasttoken",
}


def auto_class(architecture: str) -> str:
    """The auto class of transformers that loads a class that is exported."""
    if architecture.endswith("LMHeadModel"):
        return "AutoModelForCausalLM"
    _, has_head, head = architecture.partition("For")
    return f"AutoModelFor{head}" if has_head else "AutoModel"


def write_modules(
    folder: Path, modules: Sequence[SentenceModule], longest: int | None = None
) -> None:
    """Write modules of sentence-transformers in the order of use, each to a folder of its own but
    the first; `longest` is the longest row of a Transformer, which is there already."""
    entries = []
    for number, module in enumerate(modules):
        path = f"{number}_{module.name}" if number else ""
        (folder / path).mkdir(exist_ok=True)
        if module.tensors:
            tensors = {name: each.float().contiguous() for name, each in module.tensors.items()}
            save_file(tensors, folder / path / WEIGHTS)
        if module.settings:
            write_json(folder / path / CONFIG, module.settings)
        kind = f"sentence_transformers.models.{module.name}"
        entries.append({"idx": number, "name": str(number), "path": path, "type": kind})
    write_json(folder / MODULES, entries)
    if longest is not None:
        write_json(folder / SENTENCES, {"max_seq_length": longest, "do_lower_case": False})


def write_json(path: Path, data: Any) -> None:
    text = json.dumps(json.loads(canonical_json(data)), indent=2, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


HUB_CARD = "README.md"


def hub_card(card: str, sentences: bool) -> str:
    """Return `card` below its metadata. The hub finds what a model does by the class it names."""
    from huggingface_hub import ModelCardData

    library = "sentence-transformers" if sentences else "transformers"
    data = ModelCardData(library_name=library, tags=["rungwise"])
    return f"---\n{data.to_yaml()}\n---\n\n{card}"


# Their role names, and the special tokens that can fill each, of texts that are framed or not.
_ROLES: dict[bool, dict[str, tuple[str, ...]]] = {
    True: {f"{role}_token": ROLE_NAMES[role] for role in ("pad", "unk", "cls", "sep", "mask")},
    False: {
        "pad_token": ROLE_NAMES["pad"],
        "unk_token": ROLE_NAMES["unk"],
        "bos_token": (END_OF_TEXT, "<s>", SEP),
        "eos_token": ROLE_NAMES["end"],
    },
}


def read_tokenizer(path: Path, vocab_size: int, framed: bool) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer, and its special token for each role, of `framed` or other texts. Raises
    DataError if it cannot be read, or does not have `vocab_size` tokens."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no class of its own
        raise DataError(f"{path}: expected a tokenizer.json, found {error}") from error
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size != vocab_size:
        raise DataError(
            f"{path}: expected {vocab_size} tokens as the model has, found {size}; give the "
            f"tokenizer that the model was trained with"
        )
    special = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
    roles = {
        role: next(name for name in names if name in special)
        for role, names in _ROLES[framed].items()
        if special.intersection(names)
    }
    return tokenizer, roles


def add_frame(
    tokenizer: Tokenizer, start: tuple[str, int], between: tuple[str, int], end: tuple[str, int]
) -> None:
    """Frame as start A end, and start A between B end with B in segment 1."""
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{start[0]} $A {end[0]}",
        pair=f"{start[0]} $A {between[0]} $B:1 {end[0]}:1",
        special_tokens=list(dict([start, between, end]).items()),
    )
