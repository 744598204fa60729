"""The stage that reads the weights which a run begins with: those of transformers, or counts."""

import gzip
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Inputs
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import StageType
from rungwise.core.storage.folder import Folder
from rungwise.core.storage.source_files import digest_matching_files, on_disk
from rungwise.models.config import FAMILIES
from rungwise.models.family import Family
from rungwise.models.fitting import FileFamily, fill_arrays
from rungwise.serving.hugging_face.reading import digest_folder, import_folder
from rungwise.tokenizer import load_tokenizer, special_ids
from rungwise.training.initial import IMPORTED, ImportConfig, ImportSummary
from rungwise.training.tensor_files import MODEL, create_arrays, save_tensors


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
        model, state, size = import_folder(config, tokenizer)
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
    return digest_folder(config)


INITIAL_WEIGHTS = StageType(
    IMPORTED, 3, import_weights, ImportSummary, identity=lambda config: {}, outside=_digest_files
)
