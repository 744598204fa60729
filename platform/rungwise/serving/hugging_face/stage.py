"""Initial stage: the weights of a transformers folder, to start pretraining from.

Padding rows after the tokenizer's last token are left out.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import StageType
from rungwise.core.storage.folder import Folder
from rungwise.models.device import shapes_only
from rungwise.models.family import Family
from rungwise.serving.hugging_face.modules import CONFIG
from rungwise.serving.hugging_face.reading import list_weight_files, load_model, weights_folder
from rungwise.tokenizer import TokenizerFileConfig, load_tokenizer, read_tokenizer
from rungwise.training.initial import IMPORTED, ImportConfig, ImportSummary
from rungwise.training.tensor_files import MODEL, save_tensors


def import_weights(
    config: ImportConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> ImportSummary:
    """Write the weights of `config.path` under own names, with a row for each token of `tokenizer`.

    Raises DataError if the folder's kind of model is unsupported, or the tokenizer is not
    the folder's.
    """
    folder = weights_folder(config.path)
    model: Any
    model, state = load_model(folder)
    before = read_tokenizer(TokenizerFileConfig(path=config.path))
    _refuse_other_tokens(before, load_tokenizer(inputs["tokenizer"].folder), config.path)
    size = before.get_vocab_size()
    for name in _list_vocabulary_tensors(model):
        if name not in state:
            continue
        if len(state[name]) < size:
            raise DataError(
                f"{folder}: {name} has {len(state[name])} rows, fewer than the {size} "
                "tokens of the tokenizer beside it; give the folder the tokenizer of its model"
            )
        state[name] = state[name][:size]
    save_tensors(output, MODEL, state)
    return ImportSummary(
        model=model, vocab_size=size, headline=f"{model.kind}: {model.describe()}  V={size:,}"
    )


def _input_digests(config: ImportConfig) -> Mapping[str, Any]:
    place = weights_folder(config.path)
    folder = Folder.at(place)
    if not folder.exists(CONFIG):
        raise DataError(
            f"pretrain.initial: {config.path} has no {CONFIG}; expected a folder that "
            "save_pretrained of transformers, or rungwise export, has written"
        )
    names = [CONFIG, *list_weight_files(place)]
    return {name: folder.sha256(name) for name in names}


INITIAL_WEIGHTS = StageType(
    IMPORTED, 3, import_weights, ImportSummary, identity=lambda config: {}, outside=_input_digests
)


def _refuse_other_tokens(before: Tokenizer, after: Tokenizer, path: str) -> None:
    """Raise DataError unless both have the same tokens."""
    for index in range(max(before.get_vocab_size(), after.get_vocab_size())):
        if before.id_to_token(index) != after.id_to_token(index):
            raise DataError(
                f"the tokenizer is not that of pretrain.initial: token {index} is "
                f"{after.id_to_token(index)!r}, but {before.id_to_token(index)!r} in {path}; leave "
                "out the block tokenizer"
            )


def _list_vocabulary_tensors(config: Family) -> list[str]:
    """The tensors that have a row for each token."""
    with shapes_only():
        one, other = (config.build(size, config.objectives[0]).state_dict() for size in (7, 8))
    return [name for name, tensor in one.items() if tensor.shape != other[name].shape]
