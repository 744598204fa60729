"""The curve of each rung as stages: pretrainings at shares of its budget, each measured alike.

    rung ──> shares of its steps or text, with seeds ──> pretrain ──> measure ──┐
    rung itself, the whole budget ─────────────────────────────────────────────┴──> curve

Runs that differ in their steps alone have a trunk in common (training/fit_config.py), so the
schedule builds them in the order of their length, and each goes on from the plateau of the one
before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rungwise.core.errors import ConfigError
from rungwise.core.stages.stage import Stage, Title
from rungwise.evaluation.curve import CURVE, CurveConfig, CurveRun, CurveStageConfig
from rungwise.evaluation.suites.measure import MEASURE, MeasureConfig, SuiteConfig
from rungwise.evaluation.suites.perplexity import PerplexitySuite
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import Graph, measure_inputs, train_steps
from rungwise.pipeline.variants import ExperimentVariant, name_variant
from rungwise.training.fit_config import PretrainStageConfig

_SOURCE = "curve"
_READ = ("tokens", "pretrain")  # of a run, besides what measures it


def plan_curve(
    graph: Graph,
    recipe: Recipe,
    variants: Sequence[ExperimentVariant],
    measured: Mapping[str, Sequence[Stage]],
) -> Stage:
    """Add the pretrainings of every rung at every budget, and the stage that gathers their points.
    `measured` are the measurements of the rungs themselves, one for each seed of pretraining.
    Raises ConfigError if a rung cannot be trained at a share of its budget."""
    assert recipe.curve
    suite = _find_suite(recipe)
    runs: list[CurveRun] = []
    passed_over: dict[str, str] = {}
    inputs: dict[str, Stage] = {}
    wholes: set[str] = set()  # the fingerprints of the rungs' own pretrainings

    def add(rung: str, budget: float, seed: int, stages: Mapping[str, Stage]) -> None:
        names = {name: stage.display_name for name, stage in stages.items()}
        runs.append(CurveRun(rung=rung, budget=budget, seed=seed, **names))
        inputs.update({stage.display_name: stage for stage in stages.values()})

    for variant in variants:
        whole = measured[variant.name]
        if reason := _explain_no_curve(variant.recipe, whole[0]):
            passed_over[variant.name] = reason
            continue
        own = {stage.inputs["pretrain"].fingerprint for stage in whole}
        if own & wholes:
            continue  # it differs from a rung before it in fine-tuning alone
        wholes |= own
        with name_variant(recipe, variant.name):
            shorter = _list_shares(recipe.curve, variant.recipe)
        first = getattr(variant.recipe.pretrain, "seed", 0)
        for (budget, number), changed in shorter.items():
            title = Title("", variant=variant.name, part=f"{budget:g}", seed=number or None)
            trained = graph.add_steps(train_steps(changed), title, variant.name)
            stages = {name: trained[-1].stages[name] for name in _READ}
            measure = MEASURE.stage(MeasureConfig(suites=suite), measure_inputs(trained))
            if _has_code_length(measure):
                stages["measure"] = graph.add(measure, replace(title, stage="measure"))
            add(variant.name, budget, first + number, stages)
        for number, stage in enumerate(whole):
            stages = {name: stage.inputs[name] for name in _READ}
            if _has_code_length(stage):
                stages["measure"] = stage
            add(variant.name, 1.0, first + number, stages)
    if not runs:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in passed_over.items())
        raise ConfigError(
            "curve: expected a rung that predicts tokens of held-out text, found none "
            f"({reasons}); add one, or leave curve out"
        )
    config = CurveStageConfig(runs=tuple(runs), suite=next(iter(suite)), passed_over=passed_over)
    return graph.add(CURVE.stage(config, inputs), Title("curve"))


def _find_suite(recipe: Recipe) -> dict[str, SuiteConfig]:
    """The recipe's suite of perplexity by name. Raises ConfigError if it has none."""
    for name, suite in recipe.measure.items():
        if isinstance(suite, PerplexitySuite):
            return {name: suite}
    raise ConfigError(
        "curve needs the bits per byte of held-out text; add measure.perplexity",
        {"measure.perplexity": {"kind": "perplexity"}},
    )


def _explain_no_curve(recipe: Recipe, measure: Stage) -> str:
    """Why a rung has no points; "" if it has."""
    config = _pretrain_config(measure)
    if not config.pretrain.holds_out or not config.objective.predicts_text:
        return "its loss is not that of tokens of held-out text"
    return "it is trained in several steps" if recipe.steps else ""


def _pretrain_config(measure: Stage) -> PretrainStageConfig:
    config = measure.inputs["pretrain"].config
    assert isinstance(config, PretrainStageConfig)
    return config


def _has_code_length(measure: Stage) -> bool:
    return _pretrain_config(measure).objective.is_code_length


def _list_shares(curve: CurveConfig, recipe: Recipe) -> dict[tuple[float, int], Recipe]:
    """The recipe of a rung at each budget below the whole, by budget and number of the seed, but
    for budgets that come to the settings of a smaller one."""
    assert recipe.model
    assert recipe.pretrain
    length_key = recipe.pretrain.length_key(recipe.model)
    of = "text" if length_key is None else curve.of or "steps"
    seed = getattr(recipe.pretrain, "seed", None)
    whole = 0 if length_key is None else getattr(recipe.pretrain, length_key)
    settings: dict[float, dict[str, Any]] = {}
    for budget in curve.budgets[:-1]:
        changes: dict[str, Any] = {}
        if of != "text":
            changes[f"pretrain.{length_key}"] = max(1, round(whole * budget))
        if of != "steps":
            changes["text_share"] = recipe.text_share * budget
        if changes not in settings.values() and changes != {f"pretrain.{length_key}": whole}:
            settings[budget] = changes
    if settings and of == "steps" and length_key == "steps":
        _require_trunk(recipe, min(each["pretrain.steps"] for each in settings.values()))
    shares = {
        (budget, 0): recipe.with_changes(changes, _SOURCE) for budget, changes in settings.items()
    }
    if seed is not None:
        shares |= {
            (budget, number): recipe.with_changes(
                changes | {"pretrain.seed": seed + number}, _SOURCE
            )
            for budget, changes in settings.items()
            for number in range(1, curve.count_seeds(budget))
        }
    return shares


def _require_trunk(recipe: Recipe, fewest: int) -> None:
    """Raise ConfigError unless runs of other lengths share their first steps with this one."""
    pretrain: Any = recipe.pretrain
    if pretrain.shared_steps:
        return
    schedule = pretrain.optimizer.schedule
    stable = {
        "kind": "warmup_stable_decay",
        "warmup_steps": min(schedule.warmup(pretrain.steps), max(1, fewest // 4)),
    }
    line = ", ".join(f"{key}: {value}" for key, value in stable.items())
    raise ConfigError(
        "curve lets longer runs go on from shorter ones, but their first steps depend on how many "
        f"follow; set pretrain.optimizer.schedule: {{{line}}}, without a budget or early stop, or "
        "set curve.of: text",
        {"pretrain.optimizer.schedule": stable},
    )
