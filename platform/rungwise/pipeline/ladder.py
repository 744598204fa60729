"""A ladder as stages: the experiment of its rungs, the claims tested on them, and its page.

experiment.py ──> measure of each rung, evaluate of each task ──> claims ──> ladder
"""

from __future__ import annotations

from rungwise.core.stages.stage import Stage
from rungwise.evaluation.comparison.claims import CLAIMS, ClaimsConfig, measure_name
from rungwise.pipeline.experiment import plan_experiment
from rungwise.pipeline.recipe import Recipe
from rungwise.report.ladder.page import LADDER, LadderConfig


def ladder_stages(recipe: Recipe) -> dict[str, Stage]:
    """Every stage from the corpus to the page of the ladder, by title. Raises ConfigError if a
    block is missing or a rung does not fit."""
    recipe.require("compares rungs", "measure")
    experiment = plan_experiment(recipe)
    inputs = {measure_name(rung): stage for rung, stage in experiment.measured.items()}
    inputs |= {stage.display_name: stage for stage in experiment.evaluated}
    claims = CLAIMS.stage(ClaimsConfig(rungs=tuple(recipe.variants)), inputs)
    stages = experiment.stages | {claims.display_name: claims}
    measured = {rung: stage.display_name for rung, stage in experiment.measured.items()}
    ladder = LADDER.stage(LadderConfig(title=recipe.report.title, measured=measured), stages)
    return stages | {ladder.display_name: ladder}
