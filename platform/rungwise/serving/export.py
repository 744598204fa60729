"""Write a built model in a format that other software reads.

trained by gradient,   files for transformers
or fine-tuned          and, of encoders of sentences, for sentence-transformers
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.export import Dim

from rungwise import tokenizer as tokenizers
from rungwise.core.configuration.secrecy import redact
from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.core.exit_codes import plain_console
from rungwise.core.stages.artifact import Artifact, find_input
from rungwise.core.storage.folder import Folder
from rungwise.finetune import DESCRIPTION, describe
from rungwise.finetune.model import TaskModel
from rungwise.models.family import Family
from rungwise.models.trained.capabilities import WordVectors
from rungwise.models.trained.encoders import LayeredEncoder
from rungwise.models.transformer.block import Transformer
from rungwise.serving import hugging_face
from rungwise.serving.card import recorded_licences, write_pretrain_card
from rungwise.serving.hugging_face import writing
from rungwise.serving.predictor import Predictor
from rungwise.tasks.kinds.items import Frame
from rungwise.tokenizer import FILE as TOKENIZER
from rungwise.tokenizer import special_ids
from rungwise.training import pretrained
from rungwise.training.fit_config import fitting_kind
from rungwise.training.initial import read_training_config

TEXT, BINARY = FILES = ("vectors.txt", "vectors.bin")


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
        architecture = hugging_face.export_model(model, config, file, folder, labels, longest)
        auto, sentences = writing.auto_class(architecture), (folder / writing.MODULES).exists()
        text = writing.hub_card(card, sentences)
        (folder / writing.HUB_CARD).write_text(text, encoding="utf-8")
        files = _put(str(folder), to, last=writing.MODULES if sentences else writing.CONFIG)
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
    arguments = [
        torch.ones((4, min(longest or _TRACED, _TRACED)), dtype=torch.int64) for _ in INPUTS
    ]
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
        writing.add_frame(tokenizer, *names)
    tokenizer.save(str(folder / TOKENIZER))


class _Graph(nn.Module):
    """The model with the inputs that Hugging Face's tokenizers produce."""

    def __init__(self, model: LayeredEncoder | TaskModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids_RT: Tensor, segments_RT: Tensor, mask_RT: Tensor) -> Any:
        return self.model.project(ids_RT, segments_RT, mask_RT.sum(dim=1))
