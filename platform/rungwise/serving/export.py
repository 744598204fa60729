"""Write a built model in a format that other software reads.

trained by gradient,   files for transformers, as the counterpart of the family says, and, of
or fine-tuned          encoders of sentences, for sentence-transformers
n-gram model           an ARPA file, for kenlm and SRILM
class n-gram model     the bits of each word's path in the tree of classes, a tab and the word
token vectors          the formats of word2vec.c, text and binary, which gensim and others load:
                       a line `V D`, then a token and its numbers; white space as ␣, without special
                       tokens and all-zero vectors
encoder states,        ONNX, for onnxruntime, with the tokenizer that frames texts as in training
or answers of a task

ONNX takes int64 (R, T), padding last; its outputs are in docs/how-to/hugging-face.md.

Shapes: V tokens written, D vector size, R rows, T sequence.
"""

import json
import logging
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from rungwise import tokenizer as tokenizers
from rungwise.core.configuration.canonical import canonical_json
from rungwise.core.configuration.secrecy import redact
from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.core.exit_codes import plain_console
from rungwise.core.stages.artifact import Artifact, find_input
from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import END_OF_TEXT, ROLE_NAMES, SEP
from rungwise.finetune import DESCRIPTION, describe
from rungwise.finetune.model import TaskModel
from rungwise.models.config import FAMILIES
from rungwise.models.counterpart import Architecture, Counterpart, SentenceModule
from rungwise.models.family import Family
from rungwise.models.trained.capabilities import WordVectors
from rungwise.models.trained.encoders import LayeredEncoder
from rungwise.models.transformer.block import Pooling, Transformer
from rungwise.serving.card import recorded_licences, write_pretrain_card
from rungwise.serving.importing import FILES, count_unused_positions
from rungwise.serving.predictor import Predictor
from rungwise.tasks.kinds.items import Frame
from rungwise.tokenizer import special_ids
from rungwise.training import pretrained
from rungwise.training.fit_config import fitting_kind
from rungwise.training.initial import read_training_config

TEXT, BINARY = "vectors.txt", "vectors.bin"
CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG = FILES


def export_vectors(model: WordVectors, tokenizer: Tokenizer, folder: Path) -> None:
    """Write both files."""
    special = set(special_ids(tokenizer).ids)
    vectors_VD = model.vectors(range(model.vocab_size))
    tokens = [t for t in np.flatnonzero(vectors_VD.any(axis=1)).tolist() if t not in special]
    header = f"{len(tokens)} {vectors_VD.shape[1]}\n".encode()
    with (folder / TEXT).open("wb") as text, (folder / BINARY).open("wb") as binary:
        text.write(header)
        binary.write(header)
        for token in tokens:
            spelling = tokenizer.id_to_token(token) or ""
            name = "".join("␣" if sign.isspace() else sign for sign in spelling)
            numbers = " ".join(f"{value:.9g}" for value in vectors_VD[token].tolist())
            text.write(f"{name} {numbers}\n".encode())
            binary.write(f"{name} ".encode() + vectors_VD[token].astype("<f4").tobytes() + b"\n")


@dataclass(frozen=True)
class Export:
    """The names of the files, and which software loads them."""

    files: tuple[str, ...]
    loader: str


def write_pretrained(pretrain: Artifact, to: Folder, vectors: bool = False) -> Export:
    """Export the model of an artifact with its tokenizer, or its token vectors. Raises UserError if
    `to` holds a model, ConfigError if the format cannot, DataError if an input is gone."""
    tokenizer = pretrained.find_tokenizer(pretrain)
    training = read_training_config(pretrain)
    config, objective = training.model, training.objective
    if vectors or not (objective.predicts_text or objective.sentences):
        with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
            vocabulary = tokenizers.load_tokenizer(tokenizer.folder)
            export_vectors(pretrained.load_word_vectors(pretrain), vocabulary, Path(scratch))
            files = _put(scratch, to)
        loader = "gensim's KeyedVectors.load_word2vec_format, binary=True for vectors.bin"
        return Export(files, loader)
    if fitting_kind(config) == "counts":
        return _write_counted(pretrain, config, tokenizer, to)
    if parts := training.pretrain.parts(config):
        folders = (find_input(pretrain, name).folder.uri for name in parts)
        raise ConfigError(
            f"no other program reads a {config.kind}; export the models that it is made of: "
            + ", ".join(f"rungwise export {folder}" for folder in folders)
        )
    reader = tokenizers.load_reader(tokenizer.folder)
    try:
        card = write_pretrain_card(config.kind, {"pretrain": pretrain}, recorded_licences(pretrain))
    except DataError as error:
        plain_console().print(f"the card lacks what the model was trained on: {redact(str(error))}")
        card = ""
    return _write_for_transformers(pretrained.load_module(pretrain), config, reader, to, card)


def write_task_model(predictor: Predictor, to: Folder, card: str = "") -> Export:
    """Export a fine-tuned model, tokenizer and card for transformers; see `write_pretrained`."""
    model = predictor.model.cpu()
    longest, labels = predictor.frame.sequence_length, predictor.info.labels
    family, reader = model.pretrained.family, predictor.tokenizer
    return _write_for_transformers(model, family, reader, to, card, labels, longest)


def write_onnx(model: Artifact | Predictor, to: Folder) -> Export:
    """Export the encoder of a pretraining, or a fine-tuned model, as ONNX. Raises UserError if `to`
    holds a model or packages are missing, ConfigError if the model has no ONNX form."""
    if isinstance(model, Predictor):
        module, tokenizer, frame = model.model.cpu(), model.tokenizer, model.frame
    else:
        module = pretrained.load_encoder(model)
        if module is None:
            kind = read_training_config(model).model.kind
            raise ConfigError(f"a {kind} has no token states to export as ONNX")
        tokenizer, frame = tokenizers.load_reader(pretrained.find_tokenizer(model).folder), None
        if read_training_config(model).objective.masks:
            cls, sep = special_ids(tokenizer).require("cls", "sep")
            frame = Frame(cls, sep, sep, module.max_length or 0)
    with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
        export_onnx(module, tokenizer, frame, Path(scratch))
        if isinstance(model, Predictor):
            description = json.dumps(describe(model.model), indent=1)
            (Path(scratch) / DESCRIPTION).write_text(description, encoding="utf-8")
        # Weights above 2 GB are in a separate file, which the graph names.
        files = _put(scratch, to, last=GRAPH)
    return Export(files, "onnxruntime.InferenceSession and tokenizers.Tokenizer.from_file")


def _write_counted(pretrain: Artifact, family: Any, tokenizer: Artifact, to: Folder) -> Export:
    vocabulary = tokenizers.load_tokenizer(tokenizer.folder)
    model: Any = pretrained.load_model(pretrain)
    words = [vocabulary.id_to_token(index) or f"[{index}]" for index in range(model.vocab_size)]
    file = family.text_file(model, words, special_ids(vocabulary))
    _check_empty(to, (file.name,))
    with to.staged(file.name) as path, path.open("w", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in file.lines)
    return Export((file.name,), file.loader)


def _write_for_transformers(
    model: nn.Module,
    config: Family,
    tokenizer: Tokenizer,
    to: Folder,
    card: str,
    labels: Sequence[str] = (),
    longest: int | None = None,
) -> Export:
    with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
        file, folder = Path(scratch) / "read.json", Path(scratch) / "model"
        tokenizer.save(str(file))
        architecture = export_model(model, config, file, folder, labels, longest)
        auto, sentences = auto_class(architecture), (folder / MODULES).exists()
        text = hub_card(card, sentences)
        (folder / HUB_CARD).write_text(text, encoding="utf-8")
        files = _put(str(folder), to, last=MODULES if sentences else CONFIG)
    if sentences:
        return Export(files, "SentenceTransformer from sentence-transformers")
    loaders = f"{auto}.from_pretrained and AutoTokenizer.from_pretrained"
    return Export(files, f"{loaders} from transformers")


def _put(scratch: str, to: Folder, last: str = "") -> tuple[str, ...]:
    """Copy the files, `last` at the end since it marks a complete model; return their names."""
    files = sorted(Folder.at(scratch).names(), key=last.__eq__)
    _check_empty(to, files)
    for name in files:
        to.copy_file(Path(scratch) / name, name)
    return tuple(files)


def _check_empty(to: Folder, files: Sequence[str]) -> None:
    if existing := [name for name in files if to.exists(name)]:
        raise UserError(
            f"--to {to.uri} already holds {', '.join(existing)}; give another folder, or empty it"
        )


GRAPH = "model.onnx"
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
_TRACED = 16  # the longest row that is traced; the graph takes any length


def export_onnx(
    model: LayeredEncoder | TaskModel, tokenizer: Tokenizer, frame: Frame | None, folder: Path
) -> None:
    """Write both files. Raises ConfigError without an ONNX form, UserError without packages."""
    problem = model.stepwise_part
    if not any(isinstance(part, Transformer) for part in model.modules()):
        problem = "model.kind is no Transformer: it reads its text step by step"
    if problem:
        raise ConfigError(f"{problem}, which cannot be written as ONNX; change it, or the format")
    longest: Any = model.max_length
    # Three tensors, since one passed twice would become a single input.
    length = min(longest or _TRACED, _TRACED)
    arguments = [torch.ones((4, length), dtype=torch.int64) for _ in INPUTS]
    rows: Any = Dim("rows") if model.rows_per_item == 1 else model.rows_per_item * Dim("items")
    sizes = {0: rows, 1: Dim("length", max=longest)}
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        import onnxscript  # noqa: F401  # what torch.onnx writes with

        logger.setLevel(logging.ERROR)
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            traced = torch.export.export(
                _Graph(model).eval(), tuple(arguments), dynamic_shapes=(sizes,) * len(INPUTS)
            )
            program = torch.onnx.export(
                traced, verbose=False, input_names=INPUTS, output_names=model.outputs
            )
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install 'rungwise[onnx]'") from error
    finally:
        logger.setLevel(level)
    assert program is not None, "dynamo returns the program"
    program.save(folder / GRAPH)
    if frame is not None:
        # Marks that fine-tuning added are not in the vocabulary.
        marks = {"[START]": frame.start, "[BETWEEN]": frame.between, "[END]": frame.end}
        names = ((tokenizer.id_to_token(mark) or name, mark) for name, mark in marks.items())
        add_frame(tokenizer, *names)
    tokenizer.save(str(folder / TOKENIZER))


class _Graph(nn.Module):
    """The model with the inputs that Hugging Face's tokenizers produce."""

    def __init__(self, model: LayeredEncoder | TaskModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids_RT: Tensor, segments_RT: Tensor, mask_RT: Tensor) -> Any:
        return self.model.project(ids_RT, segments_RT, mask_RT.sum(dim=1))


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
    """Return `card` below its metadata. The hub finds what a model does by the class it names. No
    licence is named: that of a model is for its owner to choose."""
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
