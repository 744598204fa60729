"""The weights that a run starts with: random, or those of a finished run or another library's.

Only weights are taken over (Howard & Ruder 2018, arXiv:1801.06146), matched by name. New tensors
are drawn ("fresh"); old ones that are not trained are written beside the new ones ("carried").
Word vectors replace the token vectors of any model that has some of their size, and are fixed.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from rungwise.core.configuration.canonical import flatten
from rungwise.core.configuration.config import Config
from rungwise.core.errors import ConfigError, DataError
from rungwise.core.stages.artifact import Artifact, find_input
from rungwise.core.stages.summary import Summary
from rungwise.instances.reader import InstanceReader
from rungwise.instances.shards import read_shard
from rungwise.instances.summary import InstancesSummary
from rungwise.models.config import ModelConfig
from rungwise.models.device import shapes_only
from rungwise.models.family import Family
from rungwise.models.losses.objectives import Objective
from rungwise.models.trained.capabilities import ReadsSpelling
from rungwise.models.transformer.body import OnBody, TokenOutput
from rungwise.models.word_vectors.vector_family import TABLE, VectorFamily
from rungwise.tokenizer import load_tokenizer, token_bytes
from rungwise.training.config import GradientFit
from rungwise.training.fit_config import read_training_config
from rungwise.training.summary import BeganWith
from rungwise.training.tensor_files import MODEL, load_tensors

INITIAL = "initial"  # the input of the stage
IMPORTED = "initial"  # the name of the stage that imports weights
_MOST_COUNTED, _ROWS_AT_ONCE = 1 << 24, 1024  # tokens and rows, for the output bias
# Keys of a model that say how it is trained, and do not affect tensors.
NOT_OF_WEIGHTS = ("dropout", "initializer_range", "crosses_documents")


class ImportConfig(Config):
    """Where imported weights are; they are known by their bytes and not by their place."""

    path: str = Field(min_length=1)


class ImportSummary(Summary):
    """The imported model, and the rows of its vocabulary."""

    model: ModelConfig
    vocab_size: int


class Start(NamedTuple):
    """A model before training, the tensors of `initial` that are carried, and the first loss in
    nats that random weights should have, None if unknown."""

    model: nn.Module
    carried: dict[str, Tensor]
    first_loss: float | None


def start_model(config: GradientFit, instances: Artifact, initial: Artifact | None) -> Start:
    """Build the model with the weights it starts from."""
    summary = InstancesSummary.of(instances)
    model: Any = build_model(config, summary.vocab_size)
    first_loss = math.log(summary.vocab_size) if config.model.starts_evenly else None
    if isinstance(model, OnBody) and isinstance(body := model.body, ReadsSpelling):
        tokenizer = find_input(find_input(instances, "tokens"), "tokenizer")
        spelling = token_bytes(load_tokenizer(tokenizer.folder))
        body.spell(spelling, *summary.special.require("end"))
    if isinstance(model, TokenOutput):
        model.read_text(lambda: _streams(instances))
    by_frequency = config.pretrain.output_bias == "frequencies"
    if by_frequency and model.set_word_shares(shares_of_words(instances)):
        first_loss = summary.unigram_loss
    return Start(model, {} if initial is None else load_initial(model, initial), first_loss)


def shares_of_words(instances: Artifact) -> Tensor:
    """The share of each token (V,) among those that the training rows ask for, each counted once
    more, so that none is 0. Of a long text it reads every n-th shard."""
    reader = InstanceReader(instances, "train")
    counts_V = np.ones(reader.vocabulary.size)
    sizes = reader.rows_per_shard
    every = -(-int(sizes.sum()) * reader.config.length // _MOST_COUNTED)
    for shard in range(0, len(sizes), every):
        rows = sizes[:shard].sum() + np.arange(sizes[shard])
        for part in np.array_split(rows, -(-len(rows) // _ROWS_AT_ONCE)):
            words = reader.batch(part, np.zeros_like(part), 0).predicted_ids()
            counts_V += np.bincount(words, minlength=len(counts_V))
    return torch.from_numpy(counts_V / counts_V.sum()).float()


def _streams(instances: Artifact) -> Iterator[NDArray[np.integer]]:
    """Yield the ids of each training shard; blocks repeat the last token of the one before."""
    for row in InstancesSummary.of(instances).split_files("train"):
        shard = read_shard(instances.folder.local(row.file))
        yield np.delete(shard.ids, shard.offsets[1:-1].astype(np.int64))


def build_model(config: GradientFit, vocab_size: int, meta: bool = False) -> nn.Module:
    """The model with the random weights of its seed; with `meta`, only its shapes."""
    with shapes_only() if meta else contextlib.nullcontext():
        torch.manual_seed(config.pretrain.seed)
        return config.model.build(vocab_size, config.objective)


def check_initial(config: GradientFit, initial: Artifact, instances: Artifact) -> None:
    """Raise ConfigError, naming keys, if the weights do not fit these blocks and tokens."""
    family, trained_on = _read_model(initial)
    name = f"the weights this run begins with ({initial.label}-{initial.fingerprint})"
    if isinstance(family, VectorFamily):
        check_vectors(config, family)
    else:
        _check_model(config, initial, family, trained_on, name)
    source = initial if is_imported(initial) else find_tokens(initial)
    before, now = (
        each.record["inputs"]["tokenizer"]["fingerprint"]
        for each in (source, find_input(instances, "tokens"))
    )
    if now != before:
        raise ConfigError(
            f"the instances are of the tokenizer {now}, but {name} were "
            f"trained with the tokenizer {before}, so their ids mean other tokens; build the "
            "instances with that one (block tokenizer)"
        )


def fixes_vectors(initial: Artifact | None) -> bool:
    """Whether a run begins with word vectors, which stay as they are."""
    return initial is not None and isinstance(_read_model(initial)[0], VectorFamily)


def check_vectors(config: GradientFit, family: VectorFamily) -> None:
    """Raise ConfigError if the model has no token vectors of the size of this family's."""
    model = build_model(config, 1, meta=True)
    table = model.body.token_embedding if isinstance(model, OnBody) else None
    if not isinstance(table, nn.Embedding):
        raise ConfigError(
            f"a step of word vectors is for a model with a vector of each token, and a "
            f"{config.model.kind} has none; leave that step out"
        )
    if table.embedding_dim != family.size:
        raise ConfigError(
            f"the vectors of the step before have {family.size} units, but those of this "
            f"{config.model.kind} have {table.embedding_dim}; give the step before that size"
        )


def _check_model(
    config: GradientFit, initial: Artifact, family: Family, trained_on: Objective, name: str
) -> None:
    old, new = flatten(family), flatten(config.model)
    differing = [key for key in sorted(old | new) if old.get(key) != new.get(key)]
    if is_imported(initial):
        differing = [key for key in differing if key not in NOT_OF_WEIGHTS]
    if differing:
        differences = "; ".join(
            f"model.{key} is {new.get(key)}, but there it was {old.get(key)}" for key in differing
        )
        raise ConfigError(f"{name} are of another model: {differences}; take the same model")
    # Training on vectors of texts leaves no head for words.
    fitting = [
        each.name for each in config.model.objectives if each.sentences >= trained_on.sentences
    ]
    if config.objective.name not in fitting:
        raise ConfigError(
            f"pretrain.objective is {config.objective.name}, but {name} were trained on "
            f"{trained_on.name}",
            {"pretrain.objective": fitting[0]} if fitting else {},
        )


def find_tokens(pretrain: Artifact) -> Artifact:
    """The tokens that a finished run read. Raises DataError if they are below another root."""
    direct = "tokens" in pretrain.record["inputs"]  # a fit by counting reads no instances
    return find_input(pretrain if direct else find_input(pretrain, "instances"), "tokens")


@torch.no_grad()
def load_initial(model: nn.Module, initial: Artifact) -> dict[str, Tensor]:
    """Load what `model` has; return the rest. Raises DataError if a tensor is missing."""
    saved = load_tensors(initial.folder, MODEL)
    if fixes_vectors(initial):
        assert isinstance(model, OnBody)
        table = model.body.token_embedding.weight.requires_grad_(False)
        table.copy_(saved[TABLE])
        return {}
    own = model.state_dict()
    required = _required_tensors(initial)
    if missing := [name for name in own if name not in saved and name in required]:
        raise DataError(
            f"{initial.folder.path(MODEL)} lacks {missing[0]}; remove the folder to train it again"
        )
    model.load_state_dict({name: saved[name] for name in own if name in saved}, strict=False)
    return {name: tensor for name, tensor in saved.items() if name not in own}


def _required_tensors(initial: Artifact) -> set[str]:
    """The names of tensors that the file must have; imported weights may lack any head."""
    family, objective = _read_model(initial)
    with shapes_only():
        if is_imported(initial):
            return set(family.encoder(objective, 1, 0.0).state_dict())
        return set(family.build(1, objective).state_dict())


def compare_tensors(model: nn.Module, initial: Artifact) -> BeganWith:
    """Which tensors of the model are fresh, and which of `initial` are carried."""
    own = set(model.state_dict())
    if fixes_vectors(initial):
        assert isinstance(model, OnBody)
        before = {f"{model.body.name}.token_embedding.weight"}
    else:
        with safetensors.safe_open(initial.folder.local(MODEL), framework="pt") as file:
            before = set(file.keys())
    return BeganWith(
        fingerprint=initial.fingerprint,
        label=initial.label,
        objective=_read_model(initial)[1].name,
        fresh=tuple(sorted(own - before)),
        carried=tuple(sorted(before - own)),
    )


def is_imported(initial: Artifact) -> bool:
    return initial.stage == IMPORTED


def _read_model(initial: Artifact) -> tuple[Family, Objective]:
    """The model of these weights and its objective, the family's first for imported ones."""
    if is_imported(initial):
        model = ImportSummary.of(initial).model
        return model, model.objectives[0]
    config = read_training_config(initial)
    return config.model, config.objective
