"""A ladder as stages: the experiment of its rungs, the claims tested on them, and its page.

experiment.py ──> measure of each rung, evaluate of each task ──> claims ──┬──> ladder
pretrainings of each rung at shares of its budget, if asked ──> curve ─────┘
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Stage, Title
from rungwise.evaluation.comparison.claims import CLAIMS, ClaimsConfig
from rungwise.evaluation.comparison.summary import input_name
from rungwise.evaluation.pretrainings import CURVE, CurveConfig, CurveRun, CurveStageConfig
from rungwise.evaluation.suites.language_models import PerplexitySuite
from rungwise.evaluation.suites.measure import MEASURE, MeasureConfig, SuiteConfig
from rungwise.pipeline import experiment as experiments
from rungwise.pipeline.experiment import Budgets, Candidate, Experiment, ExperimentVariant, Planner
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import FinishedStages, Graph, Grow, measure_inputs, train_steps
from rungwise.report.stage import LADDER, LadderConfig
from rungwise.tasks.config import FilesTaskConfig
from rungwise.training.config import GradientConfig
from rungwise.training.fit_config import PretrainStageConfig

Candidates = dict[float, list[Candidate]]  # by budget, with the first seed
_SOURCE = "curve"
_READ = ("tokens", "pretrain")  # of a run, besides what measures it


def ladder_stages(recipe: Recipe) -> dict[str, Stage]:
    """Every stage from the corpus to the page of the ladder, by title. Raises ConfigError if a
    block is missing or a rung does not fit."""
    recipe.require("compares rungs", "measure")
    variants = experiments.resolve_variants(recipe)
    experiment = experiments.plan_experiment(recipe, variants)
    measured = {
        rung: tuple(stage.display_name for stage in stages)
        for rung, stages in experiment.measured.items()
    }
    judged = [stage for stages in experiment.measured.values() for stage in stages]
    for evaluated in experiment.evaluated:
        judged += [evaluated.inputs["task"], evaluated]
    counted = tuple(  # without a seed, so that luck has no part in it
        rung
        for rung, (first, *_) in experiment.measured.items()
        if not hasattr(_pretrain_config(first).pretrain, "seed")
    )
    config = ClaimsConfig(measured=measured, counted=counted)
    claims = CLAIMS.stage(config, {stage.display_name: stage for stage in judged})
    stages = experiment.stages | {claims.display_name: claims}
    graph = Graph()
    for stage in [*stages.values(), *recipe.searches.values()]:
        graph.include(stage)
    at: dict[str, Stage] = {}
    if recipe.curve:
        curve = plan_curve(graph, recipe, variants, experiment)
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
    """Return a function that leaves out made tasks that the text cannot fill, and rungs but the
    first that could not be trained or measured, so that the page of the others is written; None if
    the stages end with no ladder. `make` makes the `stages` of a recipe."""
    ladder = stages[-1].config
    if not isinstance(ladder, LadderConfig):
        return None
    tasks = {each.fingerprint: each.title.task for each in stages if each.name == "task"}
    tasks = {
        key: task
        for key, task in tasks.items()
        if task and not isinstance(recipe.tasks[task].data, FilesTaskConfig)
    }
    by_title = {each.display_name: each for each in stages}
    rungs = {rung: [by_title[each] for each in titles] for rung, titles in ladder.measured.items()}

    def grow(finished: Mapping[str, Artifact], failed: Mapping[str, str]) -> FinishedStages:
        unfilled = {task: failed[key] for key, task in tasks.items() if key in failed}
        lost = {
            rung: failed[each.fingerprint]
            for rung, measured in rungs.items()
            for each in measured
            if each.fingerprint in failed
        }
        ended = finished.keys() | failed.keys()
        is_complete = all(each.fingerprint in ended for rung in rungs.values() for each in rung)
        if not is_complete or next(iter(rungs)) in lost:
            lost = {}  # or not yet
        gaps = {f"the task {task}": reason for task, reason in unfilled.items()}
        remaining = make(recipe.with_gaps(unfilled, (), gaps)) if gaps else stages
        needed = {stage.fingerprint for stage in remaining} - tasks.keys()
        optional = frozenset(each.fingerprint for each in stages) - needed
        if lost:
            for rung, reason in lost.items():
                config = _pretrain_config(rungs[rung][0])
                gaps[config.model.page_name(config.objective)] = reason
            remaining = make(recipe.with_gaps(unfilled, lost, gaps))
        return FinishedStages(remaining, optional)

    return grow


def plan_curve(
    graph: Graph, recipe: Recipe, variants: Sequence[ExperimentVariant], experiment: Experiment
) -> Stage:
    """Add the pretrainings of every rung at every budget, and the stage that gathers their points.
    `experiment` has measured and compared the rungs themselves. Raises ConfigError if a rung cannot
    be trained at a share of its budget."""
    assert recipe.curve
    measured = experiment.measured
    candidates: Candidates = {}
    suite = _find_suite(recipe)
    runs: list[CurveRun] = []
    passed_over: dict[str, str] = {}
    inputs: dict[str, Stage] = {}
    wholes: set[str] = set()  # the fingerprints of the rungs' own pretrainings
    configs = {name: _pretrain_config(stages[0]) for name, stages in measured.items()}
    for variant in variants:
        whole = measured[variant.name]
        if reason := _explain_no_curve(variant.recipe, whole[0]):
            passed_over[variant.name] = reason
            continue
        own = {stage.inputs["pretrain"].fingerprint for stage in whole}
        if own & wholes:
            continue  # it differs from a rung before it in fine-tuning alone
        wholes |= own
        with experiments.name_variant(recipe, variant.name):
            shorter = _list_shares(recipe.curve, variant.recipe)
        is_measured = _pretrain_config(whole[0]).objective.is_code_length
        trainings: list[tuple[float, int, Mapping[str, Stage], Stage]] = []
        for (budget, number), changed in shorter.items():
            title = Title("", variant=variant.name, part=f"{budget:g}", seed=number or None)
            trained = graph.add_steps(train_steps(changed), title, variant.name)
            measure = MEASURE.stage(MeasureConfig(suites=suite), measure_inputs(trained))
            if is_measured:
                measure = graph.add(measure, replace(title, stage="measure"))
            trainings.append((budget, number, trained[-1].stages, measure))
            if not number:
                candidates.setdefault(budget, []).append(Candidate(variant, [trained], None))
        trainings += [(1.0, number, each.inputs, each) for number, each in enumerate(whole)]
        first = getattr(variant.recipe.pretrain, "seed", 0)
        network = _find_network(configs[variant.name], configs)
        fields: dict[str, Any] = {"rung": variant.name, "network": network}
        for budget, number, built, measure in trainings:
            stages = {name: built[name] for name in _READ}
            if is_measured:  # else its loss of validation will do
                stages["measure"] = measure
            names = {name: stage.display_name for name, stage in stages.items()}
            runs.append(CurveRun(budget=budget, seed=first + number, **fields, **names))
            inputs.update({stage.display_name: stage for stage in stages.values()})
    if not runs:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in passed_over.items())
        raise ConfigError(
            "curve: expected a rung that predicts tokens of held-out text, found none "
            f"({reasons}); add one, or leave curve out"
        )
    compared = {
        stage.display_name: stage
        for task in recipe.curve.tasks
        for stage in _compare_budgets(graph, recipe, task, candidates, experiment)
    }
    config = CurveStageConfig(
        runs=tuple(runs), suite=next(iter(suite)), compared=tuple(compared), passed_over=passed_over
    )
    return graph.add(CURVE.stage(config, inputs | compared), Title("curve"))


def _compare_budgets(
    graph: Graph, recipe: Recipe, task: str, candidates: Candidates, experiment: Experiment
) -> list[Stage]:
    """Compare the rungs on a task at each budget, with the settings that they have at the whole."""
    assert recipe.evaluate
    [whole] = [
        stage
        for stage in experiment.evaluated
        if stage.title.task == task and stage.title.budget is None
    ]
    alone = {"label_budgets": None, "budget_variants": None, "noise": None, "keep": None}
    evaluate = recipe.evaluate.model_copy(update={**alone, "rivals": False, "published": None})
    recipe = recipe.model_copy(update={"evaluate": evaluate})
    stages = [whole]
    for budget, every in sorted(candidates.items()):
        rungs = [
            replace(each, sweep=whole.inputs.get(input_name("sweep", each.variant.name)))
            for each in every
            if task in each.variant.finetune
        ]
        if rungs:
            examples: Budgets = {None: whole.inputs["task"]}
            stages += Planner(graph, recipe, ()).compare(task, rungs, examples, f"{budget:g}")
    return stages


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


def _find_network(config: PretrainStageConfig, configs: Mapping[str, PretrainStageConfig]) -> str:
    """The rung that trains as the network of this mixture does; "" if there is none."""
    part = config.pretrain.parts(config.model).get("network")
    same = [
        name
        for name, other in configs.items()
        if part and part[:2] == (other.model, other.pretrain)
    ]
    return same[0] if same else ""


def _pretrain_config(measure: Stage) -> PretrainStageConfig:
    config = measure.inputs["pretrain"].config
    assert isinstance(config, PretrainStageConfig)
    return config


def _list_shares(curve: CurveConfig, recipe: Recipe) -> dict[tuple[float, int], Recipe]:
    """The recipe of a rung at each budget below the whole, by budget and number of the seed, but
    for budgets that come to the settings of a smaller one."""
    assert recipe.model
    assert recipe.pretrain
    length_key = recipe.pretrain.length_key(recipe.model)
    of = "text" if length_key is None else curve.of or "steps"
    seed = getattr(recipe.pretrain, "seed", None)
    whole = 0 if length_key is None else attrgetter(length_key)(recipe.pretrain)
    settings: dict[float, dict[str, Any]] = {}
    for budget in curve.budgets[:-1]:
        changes: dict[str, Any] = {}
        if of != "text":
            changes[f"pretrain.{length_key}"] = max(1, round(whole * budget))
        if of != "steps":
            changes["text_share"] = recipe.text_share * budget
        if changes not in settings.values() and changes != {f"pretrain.{length_key}": whole}:
            settings[budget] = changes
    block, _, last = f"pretrain.{length_key}".rpartition(".")
    if settings and of == "steps" and last == "steps":
        fewest = min(changes[f"{block}.steps"] for changes in settings.values())
        _require_trunk(block, attrgetter(block)(recipe), fewest)
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


def _require_trunk(block: str, pretrain: GradientConfig, fewest: int) -> None:
    """Raise ConfigError unless runs of other lengths share their first steps with this one, of the
    recipe's `block`."""
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
        f"follow; set {block}.optimizer.schedule: {{{line}}}, without a budget or early stop, or "
        "set curve.of: text",
        {f"{block}.optimizer.schedule": stable},
    )
