"""A whole experiment as stages: variants, tasks and label budgets.

A recipe without tasks ends with the pretraining of every variant. Variants share equal stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from rungwise.core.errors import ConfigError, UserError
from rungwise.core.stages.stage import Stage, Title
from rungwise.corpus.summary import CORPUS
from rungwise.evaluation.comparison.seeds import input_name
from rungwise.evaluation.comparison.summary import EVALUATE, CompareConfig
from rungwise.evaluation.comparison.table import TABLE, TableConfig
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import Graph, TrainedStep, measure_stage, register_stage, train_steps
from rungwise.pipeline.variants import ExperimentVariant
from rungwise.tasks.config import FilesTaskConfig
from rungwise.tasks.stage import TASK
from rungwise.tuning import SWEEP, SweepStageConfig

_FINETUNE_INPUTS = ("tokenizer", "pretrain")  # of a variant


@dataclass(frozen=True)
class Experiment:
    """The stages of a recipe by title, inputs first: among them those that measure each variant,
    one for each seed of pretraining, and those that compare variants on a task."""

    stages: dict[str, Stage]
    measured: dict[str, list[Stage]]
    evaluated: list[Stage]


@dataclass(frozen=True)
class Candidate:
    """A variant that is compared on a task: the steps of its pretrainings up to that task, one for
    each seed, and its sweep."""

    variant: ExperimentVariant
    pretrainings: list[list[TrainedStep]]
    sweep: Stage | None


Budgets = dict[int | None, Stage]  # the examples of a task by label budget; None: all of them


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
    graph = Graph()
    # Before any training, so that mistakes in files, or too little text, are found at once.
    budgets = {
        task: read_task(graph, recipe, task)
        for task, entry in recipe.tasks.items()
        if isinstance(entry.data, FilesTaskConfig)
    }
    corpus = graph.add(CORPUS.stage(variants[0].recipe.corpus), Title("corpus"))
    budgets |= {
        task: read_task(graph, recipe, task, corpus) for task in recipe.tasks if task not in budgets
    }
    pretrainings: dict[str, list[list[TrainedStep]]] = {}
    measured: dict[str, list[Stage]] = {}
    for variant in variants:
        label = None if variant is variants[0] else variant.name
        runs = pretrainings[variant.name] = pretrain_variant(graph, variant, label)
        if recipe.measure:
            measured[variant.name] = [
                graph.add(
                    measure_stage(recipe, steps),
                    Title("measure", variant=label, seed=number or None),
                )
                for number, steps in enumerate(runs)
            ]
    evaluated: list[Stage] = []
    for task in recipe.tasks:
        examples = budgets[task]
        candidates = tune_variants(graph, recipe, variants, task, pretrainings, examples[None])
        compared = compare_candidates(graph, recipe, task, candidates, examples)
        if recipe.registry is not None:
            inputs = {"evaluate": compared[0], "task": examples[None]}
            register_candidate(graph, recipe, task, candidates, measured, inputs)
        evaluated += compared
    if recipe.tasks:
        assert recipe.evaluate
        columns = {task: entry.published for task, entry in recipe.tasks.items()}
        config = TableConfig(published=recipe.evaluate.published, columns=columns)
        inputs = {stage.display_name: stage for stage in evaluated}
        graph.add(TABLE.stage(config, inputs), Title("table"))
    return Experiment(graph.stages, measured, evaluated)


def read_task(graph: Graph, recipe: Recipe, task: str, corpus: Stage | None = None) -> Budgets:
    """Read a task, whole and at each label budget; `corpus` for a task on its paragraphs."""
    assert recipe.evaluate
    data = recipe.tasks[task].data
    inputs = {} if corpus is None else {"corpus": corpus}
    stages: Budgets = {}
    for budget in (None, *(recipe.evaluate.label_budgets or ())):
        try:
            config = data if budget is None else data.with_budget(budget)
            stage = TASK.stage(config, inputs)
        except UserError as error:
            raise type(error)(f"tasks.{task}: {error}") from error
        stages[budget] = graph.add(stage, Title("task", task=task, budget=budget))
    return stages


def pretrain_variant(
    graph: Graph,
    variant: ExperimentVariant,
    label: str | None,
    task: str | None = None,
    examples: Stage | None = None,
) -> list[list[TrainedStep]]:
    """Pretrain a variant, once for each seed.

    Steps on the text of each task differ for each, as do those after them: they are taken with the
    `examples` of a `task`, and their titles contain it.
    """
    pretrainings = []
    for number, recipe in enumerate([variant.recipe, *variant.other_seeds]):
        title = Title("", variant=label, seed=number or None)
        trained = train_steps(recipe, examples, common=examples is None and bool(variant.finetune))
        common = list(takewhile(lambda each: not each.step.reads_each_task, trained))
        steps = graph.add_steps(common, title, variant.name)
        own = replace(title, task=task)
        steps += graph.add_steps(trained[len(common) :], own, variant.name)
        pretrainings.append(steps)
    return pretrainings


def tune_variants(
    graph: Graph,
    recipe: Recipe,
    variants: Sequence[ExperimentVariant],
    task: str,
    pretrainings: Mapping[str, list[list[TrainedStep]]],
    examples: Stage,
) -> list[Candidate]:
    """Take the steps of the variants that read the text of a task, then sweep the settings of each
    variant that has a sweep."""
    by_name = {each.name: each for each in variants if task in each.finetune}
    candidates = []
    for name in recipe.tasks[task].variants or by_name:
        variant, runs, sweep = by_name[name], pretrainings[name], None
        if any(step.reads_each_task for step in variant.recipe.steps):
            label = None if variant is variants[0] else name
            runs = pretrain_variant(graph, variant, label, task, examples)
        if variant.recipe.sweep is not None:
            inputs = {"task": examples} | {of: runs[0][-1].stages[of] for of in _FINETUNE_INPUTS}
            config = SweepStageConfig(finetune=variant.finetune[task], sweep=variant.recipe.sweep)
            title = Title("sweep", task=task, variant=name)
            sweep = graph.add(SWEEP.stage(config, inputs), title)
        candidates.append(Candidate(variant, runs, sweep))
    return candidates


def compare_candidates(
    graph: Graph, recipe: Recipe, task: str, candidates: list[Candidate], budgets: Budgets
) -> list[Stage]:
    """Compare candidates on a task, and at each label budget those that the recipe names."""
    assert recipe.evaluate
    stages = []
    for budget, examples in budgets.items():
        names = recipe.evaluate.budget_variants if budget is not None else None
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
        config = CompareConfig(
            task=task, budget=budget, variants=settings, evaluate=recipe.evaluate
        )
        stage = EVALUATE.stage(config, inputs)
        stages.append(graph.add(stage, Title("evaluate", task=task, budget=budget)))
    return stages


def register_candidate(
    graph: Graph,
    recipe: Recipe,
    task: str,
    candidates: list[Candidate],
    measured: Mapping[str, list[Stage]],
    inputs: Mapping[str, Stage],
) -> None:
    """Register the candidate that `evaluate.keep` names, else the first. `inputs` are its task,
    since a step may have read another one, and the stage that compares it."""
    assert recipe.registry
    assert recipe.evaluate
    keep = recipe.evaluate.keep or candidates[0].variant.name
    (candidate,) = (each for each in candidates if each.variant.name == keep)
    inputs = {**candidate.pretrainings[0][-1].stages, **inputs}
    if keep in measured:
        inputs["measure"] = measured[keep][0]
    graph.add(register_stage(recipe.registry, task, inputs), Title("register", task=task))
