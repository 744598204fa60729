"""The space and measure of a search over pretraining where its block leaves them open, and
refusals of what would not compare."""

from rungwise.core.errors import ConfigError
from rungwise.core.storage.outside import matching
from rungwise.evaluation.search.config import (
    BitsPerByte,
    HalvingRounds,
    SearchConfig,
    ValidationLoss,
    WordList,
)
from rungwise.evaluation.suites.similarity import SimilaritySuite, read_pairs
from rungwise.models.family import LayeredFamily
from rungwise.models.suggestion import Size
from rungwise.models.word_vectors.vector_family import VectorFamily
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import pretrain_config
from rungwise.pretraining.config import CooccurrenceConfig
from rungwise.sweep.space import Choice, LogUniform, Space
from rungwise.training.config import GradientConfig

_LENGTHS = ("pretrain.steps", "pretrain.epochs", "pretrain.max_tokens")
_AROUND = 5.0  # how far from a suggested number it is searched, as a factor
_TOKENS, _SECONDS = 2_000_000, 60.0  # of a trial, where there is no budget to say it
_VOCABULARY = 10_000  # where only the tokenizer knows
# Keys that change what a loss is of, or its scale: losses with other values do not compare.
_LOSS_KEYS = ("pretrain.objective", "pretrain.mixture", "instances.kind", "instances.masking")
_SAME_PAIRS = 0.5  # a list with so many of its pairs in another is that list


def complete_search(recipe: Recipe) -> SearchConfig:
    """The search of a recipe with the measure of its kind of model, and with what the family
    suggests where the block has no space."""
    config = recipe.search
    assert config
    if isinstance(recipe.model, VectorFamily) and config.measure_of_vectors is not None:
        config = config.model_copy(update={"measure": config.measure_of_vectors})
    if not config.space:
        space = {
            key: allowed
            for key, allowed in suggest_space(recipe).items()
            if not (isinstance(config.measure, ValidationLoss) and _is_other_loss(recipe, key))
        }
        config = config.model_copy(update={"space": space})
    return config


def _is_other_loss(recipe: Recipe, key: str) -> bool:
    """Whether losses with other values of a key are other losses, which do not compare."""
    of_vectors = isinstance(recipe.model, VectorFamily) and key.startswith("model.")
    return key.startswith(_LOSS_KEYS) or (of_vectors and key != "model.size")


def suggest_space(recipe: Recipe) -> dict[str, Space]:
    """The space around what the family of a recipe suggests for the time of one trial; {} if it
    suggests nothing besides how long to train."""
    assert recipe.model
    assert recipe.search
    trials = recipe.search.trials or 1
    size = Size(
        tokens=(recipe.search.tokens or trials * _TOKENS) // trials,
        vocabulary=getattr(recipe.tokenizer, "vocab_size", _VOCABULARY),
        seconds=(recipe.search.seconds or trials * _SECONDS) / trials,
        workers=recipe.compute.num_workers,
    )
    space: dict[str, Space] = {}
    for key, value in recipe.model.suggest(size).items():
        if key in _LENGTHS or isinstance(value, bool):
            continue
        if isinstance(value, float):
            space[key] = LogUniform(low=value / _AROUND, high=value * _AROUND)
        elif isinstance(value, int):
            space[key] = Choice(values=[*sorted({max(1, value // 2), value, 2 * value})])
    return space


def check_search(config: SearchConfig, recipe: Recipe, variant: str) -> None:
    """Raise ConfigError if scores of the space would not compare, or budgets not be kept."""
    objective = pretrain_config(recipe).objective
    space, model = list(config.space), recipe.model
    if isinstance(config.measure, WordList):
        _check_list(config.measure, recipe)
    elif isinstance(recipe.pretrain, CooccurrenceConfig):
        raise ConfigError(
            f"search.measure of {variant} is {config.measure.kind}, but the loss of "
            f"{model.kind} is on the pairs that it learns from, where the longest training "  # pyright: ignore[reportOptionalMemberAccess]
            "always wins; set search.measure to {kind: word_list, path: ...}, or on a ladder "
            "search.measure_of_vectors"
        )
    elif isinstance(config.measure, BitsPerByte):
        if not objective.is_code_length:
            raise ConfigError(
                f"search.measure is bits_per_byte, but the loss of {objective.name} is not the "
                "length of a code; take validation_loss"
            )
    else:
        for key in space:
            if key.startswith("tokenizer."):
                raise ConfigError(
                    f"search.space.{key}: losses over several tokenizers do not compare; set "
                    "search.measure to {kind: bits_per_byte}"
                )
            if _is_other_loss(recipe, key):
                other = (
                    "set search.measure to {kind: word_list, path: ...}"
                    if isinstance(model, VectorFamily)
                    else "leave it out"
                )
                raise ConfigError(
                    f"search.space.{key}: another value is another loss, and these do not "
                    f"compare; {other}"
                )
    for key in _LENGTHS:
        if config.budget and key in space:
            raise ConfigError(
                f"search.space.{key}: the length of a trial is its share of search."
                f"{config.budget}; leave one of them out"
            )
    if isinstance(config.scheduler, HalvingRounds):
        _check_rounds(recipe, variant)


def _check_list(measure: WordList, recipe: Recipe) -> None:
    if not isinstance(recipe.model, LayeredFamily):
        raise ConfigError(
            f"search.measure is word_list, but model.kind {recipe.model.kind} has no "  # pyright: ignore[reportOptionalMemberAccess]
            "vectors of words; take validation_loss"
        )
    key = "search.measure.path"
    for name, suite in recipe.measure.items():
        if not isinstance(suite, SimilaritySuite):
            continue
        reported = {
            pair for _, pairs in _read_lists(suite, f"measure.{name}.path") for pair in pairs
        }
        for file, pairs in _read_lists(SimilaritySuite(path=measure.path), key):
            shared = sum(pair in reported for pair in pairs)
            if shared >= _SAME_PAIRS * len(pairs):
                raise ConfigError(
                    f"{key}: {shared} of {len(pairs)} pairs of {file} are in "
                    f"measure.{name}, which the page reports; choose by another list"
                )


def _read_lists(suite: SimilaritySuite, key: str) -> list[tuple[str, list[frozenset[str]]]]:
    """The name of each file with its pairs of words, whatever their order and case."""
    return [
        (file.name, [frozenset((p.first.lower(), p.second.lower())) for p in read_pairs(file, key)])
        for file in matching(suite.path, key)
    ]


def _check_rounds(recipe: Recipe, variant: str) -> None:
    """Raise ConfigError unless longer runs continue shorter ones."""
    pretrain = recipe.pretrain
    if not isinstance(pretrain, GradientConfig) or not pretrain.shared_steps:
        schedule = "{kind: warmup_stable_decay, warmup_steps: 100}"
        raise ConfigError(
            f"search.scheduler of {variant} is halving, where trials go on from their "
            "first steps, but these depend on how many follow; set pretrain.optimizer.schedule "
            f"to {schedule}, without a budget or early stop, or take scheduler none"
        )
