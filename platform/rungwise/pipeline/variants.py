"""The variants of an experiment, each resolved and checked before anything is built."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rungwise.core.configuration.overrides import resolve, with_overrides
from rungwise.core.errors import ConfigError
from rungwise.finetune import FinetuneConfig, check
from rungwise.models.family import LayeredFamily
from rungwise.pipeline.recipe import Recipe, TaskEntry
from rungwise.pipeline.stages import pretrain_config
from rungwise.tasks.kinds.examples import TaskInfo
from rungwise.training.estimate import Measures, training_cost
from rungwise.training.fit_config import PretrainStageConfig, require_gradient
from rungwise.tuning import SweepStageConfig, check_values

# Blocks that a variant may change; the rest is common to all variants.
_BLOCKS = (
    "corpus",
    "text_share",
    "tokenizer",
    "instances",
    "longer_instances",
    "model",
    "pretrain",
    "steps",
    "pretraining_seeds",
    "finetune",
    "sweep",
    "search",
)
_FINETUNE = "finetune."


@dataclass(frozen=True)
class ExperimentVariant:
    """A recipe that an experiment compares under one name.

    `other_seeds` holds the recipe with each further seed of pretraining, `finetune` the settings
    for each task that the variant is fine-tuned on.
    """

    name: str
    recipe: Recipe
    other_seeds: list[Recipe]
    finetune: dict[str, FinetuneConfig]


def resolve_variants(recipe: Recipe) -> list[ExperimentVariant]:
    """Resolve every variant of a recipe. Unless a task names its variants, those without an
    encoder, such as n-grams, are left out of it. Raises ConfigError if a block is missing or one
    does not fit."""
    recipe.require("pretrains and compares", "model", "pretrain", "variants")
    if recipe.tasks:
        recipe.require("fine-tunes", "finetune", "evaluate")
    recipes = {name: change_recipe(recipe, name) for name in recipe.variants}
    configs: dict[str, PretrainStageConfig] = {}
    for name, each in recipes.items():
        with name_variant(recipe, name):
            configs[name] = pretrain_config(each)
    encoders = [name for name, config in configs.items() if isinstance(config.model, LayeredFamily)]
    finetune: dict[str, dict[str, FinetuneConfig]] = {name: {} for name in recipes}
    for task, entry in recipe.tasks.items():
        names = entry.variants or encoders or list(recipes)
        for name in names:
            changes = recipe.variants[name]
            with name_variant(recipe, name):
                settings = _finetune_config(
                    recipes[name], changes, task, entry, configs[name], name
                )
            finetune[name][task] = settings
        evaluate = recipe.evaluate
        picks = [("keep", evaluate.keep)] if evaluate and evaluate.keep else []
        if evaluate and evaluate.label_budgets:
            picks += [("budget_variants", each) for each in evaluate.budget_variants or ()]
        for key, pick in picks:
            if pick not in names:
                raise ConfigError(
                    f"evaluate.{key}: expected a variant of the task {task}, {', '.join(names)}, "
                    f"found {pick!r}"
                )
    for name, each in recipes.items():
        # No score may be reported with a seed that a sweep used for selection.
        if recipe.evaluate is None or each.sweep is None:
            continue
        first = recipe.evaluate.first_seed
        last = recipe.evaluate.seeds(_count_pretrainings(each) - 1)[-1]
        if first <= each.sweep.seed <= last:
            raise ConfigError(
                f"evaluate.first_seed {first} makes the seeds {first} to {last}, which hold the "
                f"sweep's own ({each.sweep.seed}, variant {name}); choose another first_seed"
            )
    if recipe.match_pretraining == "flops":
        recipes = _match_flops(recipes)
    return [
        ExperimentVariant(
            name=name, recipe=each, other_seeds=_reseed(each, name), finetune=settings
        )
        for (name, each), settings in zip(recipes.items(), finetune.values(), strict=True)
    ]


def _count_pretrainings(recipe: Recipe) -> int:
    """`pretraining_seeds`, or 1 of a model that is fitted without a seed, as by counts."""
    return recipe.pretraining_seeds if hasattr(recipe.pretrain, "seed") else 1


def _reseed(recipe: Recipe, name: str) -> list[Recipe]:
    """The recipe with each further seed of pretraining, in every step of its model: one on the
    vectors of another model keeps these."""
    blocks = {"pretrain": recipe.pretrain} | {
        f"steps.{n}.pretrain": step.pretrain
        for n, step in enumerate(recipe.steps)
        if step.model in (None, recipe.model)
    }
    seeds = {
        f"{key}.seed": seed
        for key, block in blocks.items()
        if (seed := getattr(block, "seed", None)) is not None
    }
    return [
        recipe.with_changes({key: seed + n for key, seed in seeds.items()}, f"variants.{name}")
        for n in range(1, _count_pretrainings(recipe))
    ]


def change_recipe(recipe: Recipe, name: str) -> Recipe:
    """Return the recipe of a variant. Raises ConfigError if there is none, or if it changes what
    variants have in common."""
    if name not in recipe.variants:
        raise ConfigError(
            f"{recipe.name} has no variant {name!r}; it has {', '.join(recipe.variants) or 'none'}"
        )
    changes = recipe.variants[name]
    for key in changes:
        if key.partition(".")[0] not in _BLOCKS:
            raise ConfigError(
                f"variants.{name}.{key}: a variant may change {', '.join(_BLOCKS)}; what is "
                "compared has the rest in common"
            )
    with name_variant(recipe, name):
        return recipe.with_changes(changes, f"variants.{name}") if changes else recipe


@contextmanager
def name_variant(recipe: Recipe, name: str) -> Iterator[None]:
    """Let an error ask for a change of the variant where it has set the key or a part of it."""
    try:
        yield
    except ConfigError as error:
        own = [f"{key}." for key in recipe.variants[name]]
        raise error.with_changes(
            {
                f"variants.{name}.{key}"
                if any(f"{key}.".startswith(each) or each.startswith(f"{key}.") for each in own)
                else key: value
                for key, value in error.changes.items()
            }
        ) from error


def _finetune_config(
    recipe: Recipe,
    changes: Mapping[str, object],
    task: str,
    entry: TaskEntry,
    config: PretrainStageConfig,
    name: str,
) -> FinetuneConfig:
    """The finetune block of a variant on a task. The task's own keys override the recipe's; the
    variant's `changes` override both. Raises ConfigError if the model cannot be fine-tuned; checks
    on labels come later."""
    own = {
        key.removeprefix(_FINETUNE): value
        for key, value in changes.items()
        if key.startswith(_FINETUNE)
    }
    data = with_overrides(recipe.raw["finetune"], entry.finetune, FinetuneConfig)
    settings = resolve(FinetuneConfig, data, own, f"finetune of {name}")
    info = TaskInfo(entry.data.task_kind, (), pair=True, metric="")
    try:
        check(settings, info, config.model, config.objective)
    except ConfigError as error:
        own_of_task = {f"{_FINETUNE}{key}" for key in entry.finetune} - changes.keys()
        raise error.with_changes(
            {
                f"tasks.{task}.{key}" if key in own_of_task else key: value
                for key, value in error.changes.items()
            }
        ) from error
    if recipe.sweep is not None:
        check_values(SweepStageConfig(finetune=settings, sweep=recipe.sweep), info)
    return settings


def _match_flops(recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """Set `pretrain.steps` of each variant so that the blocks of its recipe cost as many
    floating-point operations as those of the first, whatever other steps it takes. This assumes
    full rows, as `rungwise dry-run` does before instances exist; the table shows the real counts.
    """
    flops: dict[str, float] = {}
    steps: dict[str, int] = {}
    for name, recipe in recipes.items():
        assert recipe.model
        assert recipe.pretrain
        blocks = PretrainStageConfig(model=recipe.model, pretrain=recipe.pretrain)
        config = require_gradient(blocks, "match_pretraining: flops")
        measures = [
            Measures.planned(instances, recipe.planned_vocab_size())
            for instances in (recipe.instances, recipe.longer_instances)
            if instances is not None
        ]
        flops[name] = training_cost(config, measures).flops
        steps[name] = config.pretrain.steps
    target = next(iter(flops.values()))
    return {
        name: recipe.with_changes(
            {"pretrain.steps": max(1, round(steps[name] * target / flops[name]))},
            f"variants.{name}",
        )
        for name, recipe in recipes.items()
    }
