"""Load the data of fine-tuning, and reject impossible settings before training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from rungwise.core.errors import ConfigError, DataError
from rungwise.core.recent import Recent
from rungwise.core.stages.artifact import Artifact
from rungwise.finetune.config import FeaturesAdaptation, FinetuneConfig
from rungwise.finetune.model import PretrainedBody
from rungwise.models.device import shapes_only
from rungwise.models.family import Family, LayeredFamily
from rungwise.models.losses.objectives import Objective
from rungwise.models.trained.encoders import LayeredEncoder, count_marks
from rungwise.tasks.data.files import read_splits
from rungwise.tasks.interface import KINDS, task_kind
from rungwise.tasks.kinds.examples import TaskInfo, TaskSummary
from rungwise.tasks.kinds.items import Frame, Item
from rungwise.tokenizer import load_reader, special_ids
from rungwise.training.summary import PretrainSummary
from rungwise.training.tensor_files import MODEL, load_tensors

_USUAL = FinetuneConfig()


@dataclass(frozen=True)
class SplitData:
    """Examples, and the items made of them."""

    examples: list[Any]
    items: list[Item]


# The trials of a sweep and the seeds of an evaluation that follow each other in a process differ in
# their settings, and rarely in what they read.
_READERS: Recent[Tokenizer] = Recent()
_SPLITS: Recent[dict[str, SplitData]] = Recent(3)  # as BERT, GPT and two directions frame a text
_WEIGHTS: Recent[dict[str, Tensor]] = Recent()


@dataclass(frozen=True)
class TaskData:
    """A task encoded for a pretrained model, and that model."""

    info: TaskInfo
    splits: dict[str, SplitData]
    pretrained: PretrainedBody
    weights: dict[str, Tensor]  # with the names of pretraining
    tokenizer: Tokenizer


def load_data(
    task: Artifact,
    tokenizer: Artifact,
    pretrain: Artifact,
    config: FinetuneConfig,
    noise: Sequence[float] = (),
) -> TaskData:
    """Load the task, encoded for the model, and the model's weights. The splits are those of
    `read_splits`. Raises ConfigError if config, task and model do not fit together, DataError if
    the tokenizer is not of the size of the model's vocabulary."""
    info, trained = TaskSummary.of(task).info, PretrainSummary.of(pretrain)
    objective = trained.model.objective(trained.objective)
    pretrained = PretrainedBody(trained.model, objective, trained.vocab_size)
    check(config, info, trained.model, objective)
    task_key, words_key, model_key = (
        (each.fingerprint, each.folder.uri) for each in (task, tokenizer, pretrain)
    )
    splitter = _READERS.get(words_key, lambda: load_reader(tokenizer.folder))
    if (size := splitter.get_vocab_size(with_added_tokens=True)) != trained.vocab_size:
        raise DataError(
            f"{tokenizer.folder.uri}: expected the {trained.vocab_size} tokens of the pretrained "
            f"model, found {size}; give the tokenizer that the model was trained with"
        )
    frame = build_frame(config, pretrained, splitter)
    kind, rates = task_kind(info, config.reading), tuple(noise)

    def encode() -> dict[str, SplitData]:
        return {
            name: SplitData(each, kind.encode(each, splitter, frame))
            for name, each in read_splits(task, rates).items()
        }

    splits = _SPLITS.get((task_key, words_key, frame, config.reading, rates), encode)
    weights = _WEIGHTS.get(model_key, lambda: load_tensors(pretrain.folder, MODEL))
    return TaskData(info, splits, pretrained, weights, splitter)


def build_frame(config: FinetuneConfig, pretrained: PretrainedBody, tokenizer: Tokenizer) -> Frame:
    """Return how rows are framed for a pretrained model. Raises DataError if the model needs [CLS]
    and [SEP] and the tokenizer lacks them."""
    objective, vocab_size = pretrained.objective, pretrained.vocab_size
    ahead = not _outline(pretrained.family, objective).causal
    if count_marks(objective):
        marks = (vocab_size, vocab_size + 1, vocab_size + 2)
    else:
        cls_id, sep_id = special_ids(tokenizer).require("cls", "sep")
        marks = (cls_id, sep_id, sep_id)
    return Frame(*marks, sequence_length=config.sequence_length, reads_ahead=ahead)


def check(config: FinetuneConfig, info: TaskInfo, model: Family, objective: Objective) -> None:
    """Raise ConfigError, naming the key, for settings that do not fit this model or this task."""
    encoder = _outline(model, objective)
    kind = task_kind(info)
    if kind.writes:
        encoder.write()
    if config.gradient_length is not None:
        encoder.truncate(config.gradient_length)
    if kind.pools and config.pooling == "cls" and encoder.causal and config.top.kind == "linear":
        raise ConfigError(
            f"finetune.pooling is cls, but a {model.kind} pretrained on {objective.name} reads "
            "from left to right, and its first token sees nothing but itself",
            {"finetune.pooling": "mean"},
        )
    if config.loaded_layers is not None and config.loaded_layers > encoder.num_layers:
        raise ConfigError(
            f"finetune.loaded_layers is {config.loaded_layers}, but the pretrained model has "
            f"{encoder.num_layers} layers",
            {"finetune.loaded_layers": encoder.num_layers},
        )
    if isinstance(config.adaptation, FeaturesAdaptation):
        layers = config.adaptation.layers
        layers = range(encoder.num_layers + 1) if layers == "all" else layers
        if above := [layer for layer in layers if layer > encoder.num_layers]:
            raise ConfigError(
                f"finetune.adaptation.layers names {above[0]}, but the pretrained model has 0, the "
                f"embeddings, to {encoder.num_layers}",
                {"finetune.adaptation.layers": "all"},
            )
        widths = [encoder.widths[layer] for layer in layers]
        if config.adaptation.combine == "mix" and len(set(widths)) > 1:
            raise ConfigError(
                f"finetune.adaptation.layers mixes layers of {', '.join(map(str, widths))} units, "
                "which have no mean; name layers of one width, or set finetune.adaptation.combine "
                "to join"
            )
    if config.auxiliary_language_model:
        _check_auxiliary(config, info, model, objective)
    check_task(config, info)
    longest = encoder.max_length
    if longest is not None and config.sequence_length > longest:
        raise ConfigError(
            f"finetune.sequence_length is {config.sequence_length}, but the pretrained model has "
            f"{longest} positions (model.max_position_embeddings)",
            {"finetune.sequence_length": longest},
        )


def _check_auxiliary(
    config: FinetuneConfig, info: TaskInfo, model: Family, objective: Objective
) -> None:
    if config.fixes_encoder:
        why = f"finetune.adaptation.kind is {config.adaptation.kind}, where the encoder is fixed"
    elif task_kind(info).writes:
        why = f"a task of {info.kind} is a language model itself"
    elif not (isinstance(model, LayeredFamily) and model.predicts_by_table(objective)):
        why = (
            f"{model.kind} pretrained on {objective.name} does not predict the next token by its "
            "table of tokens, as a gpt does"
        )
    else:
        return
    value = config.auxiliary_language_model
    raise ConfigError(f"finetune.auxiliary_language_model is {value:g}, but {why}; leave it out")


# Settings of fine-tuning that only some kinds of task take, and of which texts.
_OF_KINDS = {"pairs": " of pairs", "class_weights": "", "windows": " of single texts", "crf": ""}


def check_task(config: FinetuneConfig, info: TaskInfo) -> None:
    """Raise ConfigError, naming the key, for settings that do not fit this task."""
    kind = task_kind(info)
    for key, texts in _OF_KINDS.items():
        value = getattr(config, key)
        if value != getattr(_USUAL, key) and not kind.takes(key):
            kinds = " and ".join(each.name for each in KINDS.values() if key in each.finetune_keys)
            raise ConfigError(
                f"finetune.{key} is {str(value).lower()}, which is for tasks of {kinds}{texts}, "
                f"found a task of {info.kind}; leave it out"
            )
    if kind.writes and config.top.kind != "linear":
        raise ConfigError(
            "finetune.top.kind is bilstm, which reads what is still to be written; a task of "
            f"{info.kind} needs linear"
        )
    if kind.writes and config.sequence_length < 5:
        raise ConfigError(
            f"finetune.sequence_length is {config.sequence_length}, which leaves no room to write "
            "beside three marks and a source; choose 5 or more"
        )


def _outline(model: Family, objective: Objective) -> LayeredEncoder:
    """Build the encoder without allocating weights, to ask for its properties."""
    with shapes_only():
        return model.encoder(objective, vocab_size=1, dropout=0.0)
