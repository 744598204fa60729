"""A whole experiment: its variants, each resolved and checked before anything is built, and the
stages that train, measure and compare them.

A recipe without tasks ends with the pretraining of every variant. Variants share equal stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile

from rungwise.core.configuration.overrides import resolve, with_overrides
from rungwise.core.errors import ConfigError, UserError
from rungwise.core.stages.stage import Stage, Title
from rungwise.corpus.summary import CORPUS
from rungwise.evaluation.comparison.summary import (
    EVALUATE,
    TABLE,
    CompareConfig,
    TableConfig,
    input_name,
)
from rungwise.finetune import FinetuneConfig, check
from rungwise.models.family import LayeredFamily
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import (
    Graph,
    TrainedStep,
    measure_stage,
    pretrain_config,
    register_stage,
    train_steps,
)
from rungwise.tasks.config import TASK, FilesTaskConfig
from rungwise.tasks.kinds.examples import TaskInfo
from rungwise.training.estimate import Measures, training_cost
from rungwise.training.fit_config import PretrainStageConfig, require_gradient
from rungwise.tuning.trials import SWEEP, SweepStageConfig, check_values

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
_FINETUNE_INPUTS = ("tokenizer", "pretrain")  # of a variant
Budgets = dict[int | None, Stage]  # the examples of a task by label budget; None: all of them
Pretrainings = dict[str, list[list[TrainedStep]]]  # by variant, one for each seed
Measured = dict[str, list[Stage]]  # the same of what measures them


@dataclass(frozen=True)
class ExperimentVariant:
    """A recipe that an experiment compares under one name. `other_seeds` holds the recipe with each
    further seed of pretraining, `finetune` the settings for each task that the variant is
    fine-tuned on."""

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
            with name_variant(recipe, name):
                config = _finetune_config(recipes[name], name, task, configs[name])
                finetune[name][task] = config
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
        ExperimentVariant(name, each, _reseed(each, name), finetune[name])
        for name, each in recipes.items()
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

        def rename(key: str) -> str:
            below = any(f"{key}.".startswith(each) or each.startswith(f"{key}.") for each in own)
            return f"variants.{name}.{key}" if below else key

        raise error.rename_keys(rename) from error


def _finetune_config(
    recipe: Recipe, name: str, task: str, config: PretrainStageConfig
) -> FinetuneConfig:
    """The finetune block of a variant on a task. The task's own keys override the recipe's; the
    variant's changes override both. Raises ConfigError if the model cannot be fine-tuned; checks on
    labels come later."""
    changes, entry = recipe.variants[name], recipe.tasks[task]
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
        raise error.rename_keys(
            lambda key: f"tasks.{task}.{key}" if key in own_of_task else key
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


@dataclass(frozen=True)
class Experiment:
    """The stages of a recipe by title, inputs first: among them those that measure each variant,
    one for each seed of pretraining, and those that compare variants on a task."""

    stages: dict[str, Stage]
    measured: Measured
    evaluated: list[Stage]


@dataclass(frozen=True)
class Candidate:
    """A variant that is compared on a task: the steps of its pretrainings up to that task, one for
    each seed, and its sweep."""

    variant: ExperimentVariant
    pretrainings: list[list[TrainedStep]]
    sweep: Stage | None


def experiment_stages(recipe: Recipe, variants: Sequence[ExperimentVariant]) -> dict[str, Stage]:
    """Every stage from the corpus to the registered models and the table, by title. Raises
    ConfigError if a block is missing or there is nothing to compare."""
    if not recipe.tasks and not recipe.measure and [*recipe.variants.values()] == [{}]:
        raise ConfigError(
            f"this workflow fine-tunes and compares, but {recipe.name} has no tasks to fine-tune "
            "on, nor other variants or suites to measure; the workflow pretrain takes it as it "
            "is, and rungwise tasks FILE writes the block tasks for labelled data"
        )
    return plan_experiment(recipe, variants).stages


def plan_experiment(recipe: Recipe, variants: Sequence[ExperimentVariant]) -> Experiment:
    """Plan every stage of a recipe's `variants`; the first gives its corpus to tasks that are made
    from text."""
    planner = Planner(Graph(), recipe, variants)
    graph = planner.graph
    # Before any training, so that mistakes in files, or too little text, are found at once.
    budgets = {
        task: planner.read_task(task)
        for task, entry in recipe.tasks.items()
        if isinstance(entry.data, FilesTaskConfig)
    }
    corpus = graph.add(CORPUS.stage(variants[0].recipe.corpus), Title("corpus"))
    corpus_tasks = [task for task in recipe.tasks if task not in budgets]
    budgets |= {task: planner.read_task(task, corpus) for task in corpus_tasks}
    pretrainings: Pretrainings = {}
    measured: Measured = {}
    for variant in variants:
        runs = pretrainings[variant.name] = planner.pretrain(variant)
        if recipe.measure:
            measure = Title("measure", variant=planner.label(variant))
            measured[variant.name] = [
                graph.add(measure_stage(recipe, steps), replace(measure, seed=number or None))
                for number, steps in enumerate(runs)
            ]
    evaluated: list[Stage] = []
    for task in recipe.tasks:
        examples = budgets[task]
        candidates = planner.tune(task, pretrainings, examples[None])
        compared = planner.compare(task, candidates, examples)
        if recipe.registry is not None:
            inputs = {"evaluate": compared[0], "task": examples[None]}
            planner.register(task, candidates, measured, inputs)
        evaluated += compared
    if recipe.tasks:
        assert recipe.evaluate
        columns = {task: entry.published for task, entry in recipe.tasks.items()}
        config = TableConfig(published=recipe.evaluate.published, columns=columns)
        inputs = {stage.display_name: stage for stage in evaluated}
        graph.add(TABLE.stage(config, inputs), Title("table"))
    return Experiment(graph.stages, measured, evaluated)


@dataclass(frozen=True)
class Planner:
    """Adds the stages of a recipe's `variants` to a graph."""

    graph: Graph
    recipe: Recipe
    variants: Sequence[ExperimentVariant]

    def label(self, variant: ExperimentVariant) -> str | None:
        """The variant in titles, but of the first."""
        return None if variant is self.variants[0] else variant.name

    def read_task(self, task: str, corpus: Stage | None = None) -> Budgets:
        """Read a task, whole and at each label budget; `corpus` for a task on its paragraphs."""
        assert self.recipe.evaluate
        data = self.recipe.tasks[task].data
        inputs = {} if corpus is None else {"corpus": corpus}
        stages: Budgets = {}
        for budget in (None, *(self.recipe.evaluate.label_budgets or ())):
            try:
                config = data if budget is None else data.with_budget(budget)
                stage = TASK.stage(config, inputs)
            except UserError as error:
                raise type(error)(f"tasks.{task}: {error}") from error
            stages[budget] = self.graph.add(stage, Title("task", task=task, budget=budget))
        return stages

    def pretrain(
        self, variant: ExperimentVariant, task: str | None = None, examples: Stage | None = None
    ) -> list[list[TrainedStep]]:
        """Pretrain a variant, once for each seed. Steps on the text of each task differ for each,
        as do those after them: they are taken with the `examples` of a `task`, and their titles
        contain it."""
        pretrainings = []
        is_common = examples is None and bool(variant.finetune)
        for number, recipe in enumerate([variant.recipe, *variant.other_seeds]):
            title = Title("", variant=self.label(variant), seed=number or None)
            trained = train_steps(recipe, examples, common=is_common)
            common = list(takewhile(lambda each: not each.step.reads_each_task, trained))
            steps = self.graph.add_steps(common, title, variant.name)
            own = replace(title, task=task)
            steps += self.graph.add_steps(trained[len(common) :], own, variant.name)
            pretrainings.append(steps)
        return pretrainings

    def tune(self, task: str, pretrainings: Pretrainings, examples: Stage) -> list[Candidate]:
        """Take the steps of the variants that read the text of a task, then sweep the settings of
        each variant that has a sweep."""
        by_name = {each.name: each for each in self.variants if task in each.finetune}
        candidates = []
        for name in self.recipe.tasks[task].variants or by_name:
            variant, runs, sweep = by_name[name], pretrainings[name], None
            if any(step.reads_each_task for step in variant.recipe.steps):
                runs = self.pretrain(variant, task, examples)
            if variant.recipe.sweep is not None:
                trained = {of: runs[0][-1].stages[of] for of in _FINETUNE_INPUTS}
                config = SweepStageConfig(
                    finetune=variant.finetune[task], sweep=variant.recipe.sweep
                )
                title = Title("sweep", task=task, variant=name)
                sweep = self.graph.add(SWEEP.stage(config, {"task": examples} | trained), title)
            candidates.append(Candidate(variant, runs, sweep))
        return candidates

    def compare(
        self, task: str, candidates: list[Candidate], budgets: Budgets, part: str | None = None
    ) -> list[Stage]:
        """Compare candidates on a task, and at each label budget those that the recipe names.
        `part` is the share of their pretraining that they had, if not the whole."""
        evaluate = self.recipe.evaluate
        assert evaluate
        stages = []
        for budget, examples in budgets.items():
            names = evaluate.budget_variants if budget is not None else None
            compared = [each for each in candidates if names is None or each.variant.name in names]
            inputs = {"task": examples}
            for each in compared:
                for seed, steps in enumerate(each.pretrainings):
                    for name in ("pretrain",) if seed else _FINETUNE_INPUTS:
                        key = input_name(name, each.variant.name, seed or None)
                        inputs[key] = steps[-1].stages[name]
                if each.sweep is not None:
                    inputs[input_name("sweep", each.variant.name)] = each.sweep
            settings = {each.variant.name: each.variant.finetune[task] for each in compared}
            config = CompareConfig(task=task, budget=budget, variants=settings, evaluate=evaluate)
            title = Title("evaluate", task=task, budget=budget, part=part)
            stages.append(self.graph.add(EVALUATE.stage(config, inputs), title))
        return stages

    def register(
        self, task: str, candidates: list[Candidate], measured: Measured, inputs: dict[str, Stage]
    ) -> None:
        """Register the candidate that `evaluate.keep` names, else the first. `inputs` are its task,
        since a step may have read another one, and the stage that compares it."""
        assert self.recipe.registry
        assert self.recipe.evaluate
        keep = self.recipe.evaluate.keep or candidates[0].variant.name
        (candidate,) = (each for each in candidates if each.variant.name == keep)
        inputs = {**candidate.pretrainings[0][-1].stages, **inputs}
        if keep in measured:
            inputs["measure"] = measured[keep][0]
        stage = register_stage(self.recipe.registry, task, inputs)
        self.graph.add(stage, Title("register", task=task))
