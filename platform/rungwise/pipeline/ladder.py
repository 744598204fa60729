"""A ladder as stages: the experiment of its rungs, the claims tested on them, and its page.

experiment.py ──> measure of each rung, evaluate of each task ──> claims ──┬──> ladder
curve.py ──> pretrainings at shares of the budgets, if asked ──> curve ────┘
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Stage, Title
from rungwise.evaluation.comparison.claims import CLAIMS, ClaimsConfig
from rungwise.evaluation.curve import CurveStageConfig
from rungwise.pipeline.curve import plan_curve
from rungwise.pipeline.experiment import plan_experiment
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import FinishedStages, Graph, Grow
from rungwise.pipeline.variants import resolve_variants
from rungwise.report.stage import LADDER, LadderConfig
from rungwise.tasks.config import FilesTaskConfig


def ladder_stages(recipe: Recipe) -> dict[str, Stage]:
    """Every stage from the corpus to the page of the ladder, by title. Raises ConfigError if a
    block is missing or a rung does not fit."""
    recipe.require("compares rungs", "measure")
    variants = resolve_variants(recipe)
    experiment = plan_experiment(recipe, variants)
    measured = {
        rung: tuple(stage.display_name for stage in stages)
        for rung, stages in experiment.measured.items()
    }
    judged = [stage for stages in experiment.measured.values() for stage in stages]
    for evaluated in experiment.evaluated:
        judged += [evaluated.inputs["task"], evaluated]
    counted = tuple(rung for rung, (first, *_) in experiment.measured.items() if _is_counted(first))
    config = ClaimsConfig(measured=measured, counted=counted)
    claims = CLAIMS.stage(config, {stage.display_name: stage for stage in judged})
    stages = experiment.stages | {claims.display_name: claims}
    graph = Graph.of(stages.values())
    for search in recipe.searches.values():
        graph.include(search)
    at: dict[str, Stage] = {}
    if recipe.curve:
        curve = plan_curve(graph, recipe, variants, experiment.measured)
        at = _judge_budgets(curve, graph, counted)
        stages |= {each.display_name: each for each in (curve, *at.values())}
    config = LadderConfig(
        title=recipe.report.title,
        measured=measured,
        claims_at={budget: stage.display_name for budget, stage in at.items()},
        gaps=dict(recipe.gaps),
    )
    ladder = LADDER.stage(config, {**stages, **recipe.searches})
    return graph.stages | {ladder.display_name: ladder}


def _judge_budgets(curve: Stage, graph: Graph, counted: tuple[str, ...]) -> dict[str, Stage]:
    """The claims on what the rungs were at each smaller budget, by perplexity alone."""
    config = curve.config
    assert isinstance(config, CurveStageConfig)
    budgets: dict[float, dict[str, list[str]]] = {}
    for run in config.runs:
        if run.measure is not None and run.budget < 1:
            budgets.setdefault(run.budget, {}).setdefault(run.rung, []).append(run.measure)
    at: dict[str, Stage] = {}
    for budget, titles in sorted(budgets.items()):
        measured = {rung: tuple(each) for rung, each in titles.items()}
        config = ClaimsConfig(
            measured=measured, counted=tuple(rung for rung in measured if rung in counted)
        )
        inputs = {title: graph.stages[title] for each in measured.values() for title in each}
        label = f"{budget:g}"
        at[label] = graph.add(CLAIMS.stage(config, inputs), Title("claims", part=label))
    return at


def grow_past_gaps(recipe: Recipe, make: Any, stages: Sequence[Stage]) -> Grow | None:
    """Return a function that leaves out tasks that the text cannot fill, so that the page of the
    others is written; None without such tasks. `make` makes the `stages` of a recipe."""
    tasks = {each.fingerprint: each.title.task for each in stages if each.name == "task"}
    tasks = {
        key: task
        for key, task in tasks.items()
        if task and not isinstance(recipe.tasks[task].data, FilesTaskConfig)
    }
    if not tasks or stages[-1].name != "ladder":
        return None

    def grow(finished: Mapping[str, Artifact], failed: Mapping[str, str]) -> FinishedStages:
        gaps = {task: failed[key] for key, task in tasks.items() if key in failed}
        remaining = make(recipe.with_gaps(gaps)) if gaps else stages
        needed = {stage.fingerprint for stage in remaining} - tasks.keys()
        return FinishedStages(remaining, frozenset(each.fingerprint for each in stages) - needed)

    return grow


def _is_counted(measure: Stage) -> bool:
    """Whether the measured rung was fitted without a seed, so that luck has no part in it."""
    return not hasattr(measure.inputs["pretrain"].config.pretrain, "seed")  # pyright: ignore[reportAttributeAccessIssue]
