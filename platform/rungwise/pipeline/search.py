"""Searches over pretraining: which trials to build next, and what the recipe becomes at their end.

A search is a function of finished stages: whoever has the same scores takes the same next step. So
it resumes from the records, and every trial is an ordinary chain of stages, cached and leased.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rungwise.core.configuration.canonical import canonical_json
from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Stage, Title
from rungwise.evaluation.pretrainings import (
    SEARCH,
    SearchConfig,
    SearchStageConfig,
    Titles,
    TrialPlan,
)
from rungwise.evaluation.suites.measure import MEASURE, MeasureConfig
from rungwise.pipeline.experiment import change_recipe
from rungwise.pipeline.places import root_folder
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import (
    FinishedStages,
    Graph,
    Grow,
    Growth,
    chain_stages,
    measure_inputs,
    pretrain_config,
    train_steps,
)
from rungwise.tuning.trials import Halving, Values, check_space, draw_trials, rank_trials

_LENGTHS = ("pretrain.steps", "pretrain.epochs", "pretrain.max_tokens")
_SUITE = "list"  # the name of the suite of the measure
_MOST_STEPS = 10_000_000  # where a budget ends the run
ONLY = {"pretrained": {}}  # the variants of a recipe that names none


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


@dataclass(frozen=True)
class TrialRun:
    """A pretraining, with the measurement that has the score if it has not. `changes` are the
    keys by which it differs from the recipe."""

    changes: Values
    stages: Mapping[str, Stage]

    @property
    def ends(self) -> list[Stage]:
        """The stages that hold its result."""
        return [self.stages[name] for name in ("pretrain", "measure") if name in self.stages]

    @property
    def titles(self) -> Titles:
        return tuple(stage.display_name for stage in self.ends)


@dataclass
class _Trial:
    number: int
    values: Values
    runs: list[TrialRun] = field(default_factory=list)


class _Waits(Exception):
    """Nothing more is known until further stages have finished."""


class Search:
    """The search of one variant. Its stages are added to `graph` as they become known."""

    def __init__(self, recipe: Recipe, variant: str, label: str | None, graph: Graph) -> None:
        assert recipe.search
        assert recipe.model
        self.variant = variant
        self.stage: Stage | None = None  # its record, once all trials have ended
        self.missing = ""  # why there is no best, if all of them failed
        self._recipe, self._label, self._graph = recipe, label, graph
        self._config = recipe.search
        check_space(Recipe, recipe.raw, self._config.space, "search")
        self._runs: dict[str, TrialRun] = {}
        self._best: Values = {}
        self._finished: Mapping[str, Artifact] = {}
        self._failed: Mapping[str, str] = {}
        check_search(self._config, recipe, variant)

    def proceed(self, finished: Mapping[str, Artifact], failed: Mapping[str, str]) -> Values | None:
        """Add the stages that follow from those that are finished or have failed; return the
        changes of the best once they are known. Raises ConfigError if settings do not fit."""
        if self.stage is not None:
            return self._best
        self._finished, self._failed, self.missing = finished, failed, ""
        try:
            trials = self._end_trials()
            ranked = self._rank(trials)
            if not ranked:
                self.missing = (
                    f"search of {self.variant}: all {len(trials)} trials failed, the first with: "
                    f"{self._error(trials[0].runs[-1])}"
                )
                return None
            best = ranked[0].runs[-1]
            self.stage = self._record(trials, ranked[0].number, self._repeat(best))
            self._best = best.changes
            return self._best
        except _Waits:
            return None

    def _end_trials(self) -> list[_Trial]:
        """Every trial with its runs, all of which have ended."""
        trials = [_Trial(*each) for each in enumerate(draw_trials(self._config))]
        if self._config.halving:
            self._halve(trials, self._config.halving)
        else:
            length = self._share(len(trials))
            for trial in trials:
                trial.runs.append(self._run(trial, length))
            self._await([trial.runs[-1] for trial in trials])
        return trials

    def _halve(self, trials: Sequence[_Trial], halving: Halving) -> None:
        alive = trials
        for number, fraction in enumerate(halving.fractions(), start=1):
            if number > 1:
                alive = halving.select(self._rank(alive))
            for trial in alive:
                steps = self._whole_steps(trial, len(trials), halving)
                length = {"pretrain.steps": max(1, round(steps * fraction))}
                trial.runs.append(self._run(trial, length, f"round-{number}"))
            self._await([trial.runs[-1] for trial in alive])

    def _whole_steps(self, trial: _Trial, count: int, halving: Halving) -> float:
        """The steps of a trial that is never stopped: those of the recipe, or so many that all
        trials together read the budget of tokens, if rows are full."""
        recipe = self._change_recipe(trial.values)
        pretrain = recipe.pretrain
        if self._config.tokens is None:
            return pretrain.steps
        plateau = pretrain.shared_steps / pretrain.steps
        whole, before = 0.0, 0.0  # what all trials read, in the tokens of one that is never stopped
        for fraction in halving.fractions():
            whole += count * (fraction - before)
            count, before = len(halving.select(range(count))), plateau * fraction
        a_step = pretrain.global_batch_size * (recipe.instances.sequence_length or 1)
        return self._config.tokens / whole / a_step

    def _share(self, count: int) -> Values:
        """The keys that end a training by gradient when its share of the budget is spent; others
        are as long as their settings say."""
        budget, pretrain = self._config.budget, self._recipe.pretrain
        assert self._recipe.model
        assert pretrain
        if budget is None or pretrain.length_key(self._recipe.model) != "steps":
            return {}
        total = getattr(self._config, budget)
        share = total / count if budget == "seconds" else max(1, total // count)
        return {f"pretrain.max_{budget}": share, "pretrain.steps": _MOST_STEPS}

    def _change_recipe(self, changes: Values) -> Any:
        return self._recipe.with_changes(changes, f"search of {self.variant}")

    def _run(self, trial: _Trial, length: Values, part: str | None = None) -> TrialRun:
        title = Title("", variant=self._label, trial=trial.number, part=part)
        return self._build(trial.values | length, title)

    def _build(self, changes: Values, title: Title) -> TrialRun:
        """The stages of the recipe with these changes, under titles of their own where the space
        reaches them."""
        key = canonical_json(changes)
        if key in self._runs:
            return self._runs[key]
        recipe = self._change_recipe(changes)
        common, trained = Title("", variant=self._label), train_steps(recipe)

        def add(name: str, stage: Stage) -> Stage:
            own = title if self._varies(name) else common
            return self._graph.add(stage, replace(own, stage=name, step=stage.title.step))

        *_, stages = [{name: add(name, of) for name, of in step.stages.items()} for step in trained]
        if suite := self._config.measure.suite():
            inputs = measure_inputs(trained)
            measure = MEASURE.stage(MeasureConfig(suites={_SUITE: suite}), inputs)
            stages["measure"] = self._graph.add(measure, replace(title, stage="measure"))
        run = self._runs[key] = TrialRun(changes, stages)
        return run

    def _varies(self, stage: str) -> bool:
        """Whether the space reaches a stage."""
        blocks = {key.partition(".")[0] for key in self._config.space}
        if stage == "pretrain" or "steps" in blocks:
            return True
        if stage == "tokenizer":
            return "tokenizer" in blocks
        return stage not in ("corpus", "task") and bool(blocks & {"tokenizer", "instances"})

    def _repeat(self, best: TrialRun) -> list[TrialRun]:
        """The best with further seeds; all of them have ended."""
        seed = getattr(self._change_recipe(best.changes).pretrain, "seed", None)
        if seed is None:
            return []
        runs = [
            self._build(
                best.changes | {"pretrain.seed": seed + n},
                Title("", variant=self._label, part="best", seed=n),
            )
            for n in range(1, self._config.seeds)
        ]
        self._await(runs)
        return runs

    def _record(self, trials: Sequence[_Trial], best: int, seeds: Sequence[TrialRun]) -> Stage:
        config = SearchStageConfig(
            variant=self.variant,
            search=self._config,
            best=best,
            trials=tuple(
                TrialPlan(
                    number=trial.number,
                    values=trial.values,
                    runs=tuple(run.titles for run in trial.runs),
                    error=self._error(trial.runs[-1]),
                )
                for trial in trials
            ),
            seeds=tuple(run.titles for run in seeds),
        )
        runs = [run for trial in trials for run in trial.runs]
        inputs = {
            stage.display_name: stage
            for run in (*runs, *seeds)
            for stage in run.ends
            if stage.fingerprint in self._finished
        }
        return self._graph.add(SEARCH.stage(config, inputs), Title("search", variant=self._label))

    def _await(self, runs: Sequence[TrialRun]) -> None:
        """Raise _Waits unless all have ended."""
        if not all(self._error(run) or self._is_finished(run) for run in runs):
            raise _Waits

    def _is_finished(self, run: TrialRun) -> bool:
        return all(stage.fingerprint in self._finished for stage in run.ends)

    def _error(self, run: TrialRun) -> str:
        """Why a run failed, "" if it did not."""
        errors = (self._failed.get(stage.fingerprint) for stage in run.ends)
        error = next((each for each in errors if each), "")
        if not error and self._is_finished(run) and self._score(run) is None:
            return f"it has no {self._config.measure.kind.replace('_', ' ')}"
        return error

    def _score(self, run: TrialRun) -> float | None:
        if not self._is_finished(run):
            return None
        artifacts = (self._finished[stage.fingerprint] for stage in run.ends)
        return self._config.measure.score(*artifacts)

    def _rank(self, trials: Sequence[_Trial]) -> list[_Trial]:
        """Those that came the farthest and did not fail, the best first; ties by number."""
        farthest = max((len(trial.runs) for trial in trials), default=0)
        last = {trial.number: trial for trial in trials if len(trial.runs) == farthest}
        rows = [(number, self._score(trial.runs[-1]), None) for number, trial in last.items()]
        ranked = rank_trials(rows, self._config.measure.higher_is_better)
        return [last[number] for number in ranked]


def grow_stages(recipe: Recipe, make: Any, stages: Sequence[Stage]) -> Grow | None:
    """Return a function that adds the stages of searches as they become known; None without one.
    `make` makes the stages of a recipe, `stages` are those of this one as it is."""
    if not any(stage.name == "pretrain" for stage in stages):
        return None
    graph = Graph()
    alone = recipe.variants == ONLY
    recipes = {name: change_recipe(recipe, name) for name in recipe.variants}
    searches = [
        Search(each, name, None if alone else name, graph)
        for name, each in recipes.items()
        if each.search is not None
    ]
    if not searches:
        return None
    workflow: list[Stage] = []  # of the recipe with the best values, once they are known

    def grow(finished: Mapping[str, Artifact], failed: Mapping[str, str]) -> FinishedStages:
        proceeded = {search.variant: search.proceed(finished, failed) for search in searches}
        best = {name: values for name, values in proceeded.items() if values is not None}
        missing = next((search.missing for search in searches if search.missing), "")
        union = dict(graph.stages)
        optional = frozenset(stage.fingerprint for stage in union.values())
        if len(best) == len(searches):
            if not workflow:
                records = {each.stage.display_name: each.stage for each in searches if each.stage}
                workflow.extend(make(_with_best(recipe, best, alone).with_searches(records)))
            for stage in workflow:
                same = union.setdefault(stage.display_name, stage)
                assert same.fingerprint == stage.fingerprint, f"two stages called {stage.title}"
            optional -= {stage.fingerprint for stage in workflow}
        return FinishedStages(list(union.values()), optional, missing)

    return grow


def apply_searches(recipe: Recipe) -> Recipe:
    """The recipe with the best values of its searches, by what is finished below its root. Raises
    ConfigError if a search has not ended."""
    tuned = [recipe]

    def make(changed: Recipe) -> list[Stage]:
        tuned.append(changed)
        return chain_stages(changed)[0]

    grow = grow_stages(recipe, make, chain_stages(recipe)[0])
    if grow is not None:
        Growth(grow, root_folder(recipe.root), recipe.name)
        if len(tuned) == 1:
            raise ConfigError(
                f"{recipe.name}: its search has not ended below {recipe.root}, so its best "
                "settings are not known; run its workflow first"
            )
    return tuned[-1]


def _with_best(recipe: Recipe, best: Mapping[str, Values], alone: bool) -> Recipe:
    """The recipe with the best values of each search in its place."""
    if alone:
        (changes,) = best.values()
    else:
        changes = {
            f"variants.{name}": {
                key: value
                for key, value in recipe.variants[name].items()
                if not any(key.startswith(f"{own}.") or key == own for own in values)
            }
            | values
            for name, values in best.items()
        }
    return recipe.with_changes(changes, "search")
