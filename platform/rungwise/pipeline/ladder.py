"""A ladder as stages: the experiment of its rungs, the claims tested on them, and its page.

experiment.py ──> measure of each rung, evaluate of each task ──> claims ──> ladder
"""

from rungwise.core.stages.stage import Stage
from rungwise.evaluation.comparison.claims import CLAIMS, ClaimsConfig
from rungwise.pipeline.experiment import plan_experiment
from rungwise.pipeline.recipe import Recipe
from rungwise.report.stage import LADDER, LadderConfig


def ladder_stages(recipe: Recipe) -> dict[str, Stage]:
    """Every stage from the corpus to the page of the ladder, by title. Raises ConfigError if a
    block is missing or a rung does not fit."""
    recipe.require("compares rungs", "measure")
    experiment = plan_experiment(recipe)
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
    ladder = LADDER.stage(LadderConfig(title=recipe.report.title, measured=measured), stages)
    return stages | {ladder.display_name: ladder}


def _is_counted(measure: Stage) -> bool:
    """Whether the measured rung was fitted without a seed, so that luck has no part in it."""
    return not hasattr(measure.inputs["pretrain"].config.pretrain, "seed")  # pyright: ignore[reportAttributeAccessIssue]
