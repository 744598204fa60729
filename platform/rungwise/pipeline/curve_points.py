"""The points of a ladder that was run, for forecasts."""

from dataclasses import dataclass

from rungwise.core.errors import ConfigError, UserError
from rungwise.corpus.summary import CorpusSummary
from rungwise.evaluation.curve import CurveSummary, read_points
from rungwise.forecast.points import Point
from rungwise.models.config import name_models
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import pretrain_config
from rungwise.pipeline.variants import resolve_variants
from rungwise.pipeline.workflow import plan


@dataclass(frozen=True)
class LoadedCurve:
    """The finished curve of a ladder: its points, the names of rungs as people write them, why
    other rungs have no points, and the words of the training text."""

    points: list[Point]
    names: dict[str, str]
    passed_over: dict[str, str]
    words: float


def load_curve(recipe: Recipe, file: str) -> LoadedCurve:
    """Read the curve of a ladder that was run. Raises ConfigError if the recipe has none, UserError
    if it is not built below the root."""
    if recipe.curve is None:
        raise ConfigError(
            f"{file} has no block curve, so each rung was trained at one budget; add it and run "
            "the ladder again",
            {"curve": {"budgets": [0.25, 0.5, 1]}},
        )
    rows = {row.stage.display_name: row.artifact for row in plan("ladder", recipe)}
    corpus, curve = rows.get("corpus"), rows.get("curve")
    if corpus is None or curve is None:
        raise UserError(
            f"the curve of {recipe.name} is not below {recipe.root}; run it first: "
            f"rungwise run ladder {file}"
        )
    models = {
        variant.name: (config.model, config.objective)
        for variant in resolve_variants(recipe)
        for config in [pretrain_config(variant.recipe)]
    }
    return LoadedCurve(
        points=read_points(curve),
        names=name_models(models),
        passed_over=CurveSummary.of(curve).passed_over,
        words=CorpusSummary.of(corpus).words.train,
    )
