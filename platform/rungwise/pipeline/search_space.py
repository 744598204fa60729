"""The space and measure of a search over pretraining where its block leaves them open, and
refusals of what would not compare."""

from rungwise.core.errors import ConfigError
from rungwise.evaluation.search.config import SearchConfig
from rungwise.models.suggestion import Size
from rungwise.models.word_vectors.vector_family import VectorFamily
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import pretrain_config
from rungwise.tuning.space import LogUniform, OneOf, Space

_LENGTHS = ("pretrain.steps", "pretrain.epochs", "pretrain.max_tokens")
_AROUND = 5.0  # how far from a suggested number it is searched, as a factor
_TOKENS, _SECONDS = 2_000_000, 60.0  # of a trial, where there is no budget to say it
_VOCABULARY = 10_000  # where only the tokenizer knows


def complete_search(recipe: Recipe) -> SearchConfig:
    """The search of a recipe with the measure of its kind of model, and with what the family
    suggests where the block has no space."""
    config = recipe.search
    assert config
    if isinstance(recipe.model, VectorFamily) and config.measure_of_vectors is not None:
        config = config.model_copy(update={"measure": config.measure_of_vectors})
    if config.space:
        return config
    space = {
        key: allowed
        for key, allowed in suggest_space(recipe).items()
        if not config.measure.explain_key(key, recipe.model)
    }
    return config.model_copy(update={"space": space})


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
            space[key] = OneOf(values=[*sorted({max(1, value // 2), value, 2 * value})])
    return space


def check_search(config: SearchConfig, recipe: Recipe, variant: str) -> None:
    """Raise ConfigError if scores of the space would not compare, or budgets not be kept."""
    pretrain = recipe.pretrain
    config.measure.check(pretrain_config(recipe), recipe.measure)
    for key in config.space:
        if reason := config.measure.explain_key(key, recipe.model):
            raise ConfigError(f"search.space.{key}: {reason}")
        if config.budget and key in _LENGTHS:
            raise ConfigError(
                f"search.space.{key}: the length of a trial is its share of search."
                f"{config.budget}; leave one of them out"
            )
    if config.halving and not (pretrain and pretrain.shared_steps):
        raise ConfigError(
            f"search.halving of {variant} lets trials go on from their first steps, but these "
            "depend on how many follow; set pretrain.optimizer.schedule to {kind: "
            "warmup_stable_decay, warmup_steps: 100}, without a budget or early stop, or leave "
            "halving out"
        )
