"""A whole experiment as stages: variants, tasks and label budgets.

    pretrain of each variant ──┬──> measure
                               ├──> sweep of each variant and task ──┐
    task, whole and at budgets ┴─────────────────────────────────────┴──> evaluate ──┬──> table
                                                                                     └──> register

A recipe without tasks ends with the pretraining of every variant. Stages are identified by
fingerprint, so variants share the artifacts of equal stages. Titles distinguish stages of one name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import with_overrides
from rungwise.core.errors import ConfigError, UserError
from rungwise.core.stages.stage import Stage
from rungwise.core.stages.title import Title
from rungwise.evaluation.comparison.compare import EVALUATE
from rungwise.evaluation.comparison.config import CompareConfig, EvaluateConfig
from rungwise.evaluation.comparison.inputs import input_name
from rungwise.evaluation.comparison.table import TABLE, TableConfig
from rungwise.finetune import FinetuneConfig, check
from rungwise.models.family import LayeredFamily
from rungwise.pipeline.continued import continued_stages
from rungwise.pipeline.recipe import (
    Recipe,
    TaskEntry,
    measure_stage,
    need,
    planned_vocab_size,
    pretrain_stages,
    register_stage,
    to_override,
    training,
    varied,
)
from rungwise.pretraining.config import require_gradient
from rungwise.pretraining.estimate import Measures, dry_run
from rungwise.sweep import SWEEP, SweepStageConfig, check_space, check_values, upstream_values
from rungwise.tasks.config import ParagraphTaskConfig, TaskConfig
from rungwise.tasks.kinds.examples import TaskInfo
from rungwise.tasks.stage import TASK

# Blocks that a variant may change; the rest is common to all variants.
_OF_A_VARIANT = (
    "corpus",
    "tokenizer",
    "instances",
    "longer_instances",
    "model",
    "pretrain",
    "continue_with",
    "continued_pretraining",
    "finetune",
    "sweep",
)
_READ_OF_A_VARIANT = ("tokenizer", "pretrain")  # inputs of fine-tuning


def experiment_stages(recipe: Recipe) -> dict[str, Stage]:
    """Every stage from the corpus to the registered models and the table, by title. Raises
    ConfigError if a block is missing or a variant does not fit."""
    return Experiment(recipe).stages


@dataclass(frozen=True)
class _Pretrained:
    """One pretraining of a variant, with its stages by name. `number` is its index among the
    upstream values that the variant's sweep tries, None if it tries none."""

    recipe: Recipe
    number: int | None
    stages: dict[str, Stage]


class Experiment:
    """The stages of a recipe, each once, inputs first. Unless a task names its variants, those
    without an encoder, such as n-grams, are left out of it. `measured` holds the stages that
    measure each variant, `evaluated` those that compare variants on a task."""

    def __init__(self, recipe: Recipe) -> None:
        """Build all stages. Raises ConfigError if a block is missing or a variant does not fit."""
        need(recipe, "pretrains and compares", "model", "pretrain", "variants")
        if recipe.tasks:
            need(recipe, "fine-tunes", "finetune", "evaluate")
        self.stages: dict[str, Stage] = {}
        self.measured: dict[str, Stage] = {}
        self.evaluated: list[Stage] = []
        self._by_fingerprint: dict[str, Stage] = {}
        self._recipe = recipe
        self._pretrained: dict[str, list[_Pretrained]] = {}
        variants = {name: _variant(recipe, name) for name in recipe.variants}
        with_encoder = [
            name
            for name, each in variants.items()
            if isinstance(training(each).model, LayeredFamily)
        ]
        self._tuned = {
            task: entry.variants or with_encoder or list(variants)
            for task, entry in recipe.tasks.items()
        }
        for task, entry in recipe.tasks.items():
            for name in self._tuned[task]:
                config = finetune_config(variants[name], recipe, entry, name)
                _check_finetune(config, variants[name], entry)
        if recipe.evaluate is not None:
            _check_seeds(recipe.evaluate, variants)
            _check_kept(recipe.evaluate, self._tuned)
        self._variants = _matched(variants) if recipe.match_pretraining == "flops" else variants
        self._first = next(iter(variants))
        self._read_labelled_files()
        self._pretrain()
        for task in recipe.tasks:
            self._run_task(task)
        if recipe.tasks:
            self._tabulate()

    def _read_labelled_files(self) -> None:
        """Read task files before any training, so that mistakes in them are found at once."""
        for task, entry in self._recipe.tasks.items():
            if not isinstance(entry.data, ParagraphTaskConfig):
                self._read(task)

    def _pretrain(self) -> None:
        """Pretrain each variant, once for each combination of upstream values of its sweep."""
        for name, adapted in self._variants.items():
            tried = _upstream(self._recipe, adapted, name) if self._recipe.tasks else [adapted]
            titled = None if name == self._first else name
            self._pretrained[name] = [
                _Pretrained(
                    changed,
                    number if len(tried) > 1 else None,
                    {
                        of: self._add(stage, Title(of, variant=titled, number=number or None))
                        for of, stage in pretrain_stages(changed).items()
                    },
                )
                for number, changed in enumerate(tried)
            ]
            continued = [] if self._recipe.tasks else self._continue(name)
            if self._recipe.measure:
                stages = self._pretrained[name][0].stages
                if continued:
                    stages = stages | {"pretrain": continued[0].stages["pretrain"]}
                stage = measure_stage(self._recipe, stages)
                self.measured[name] = self._add(stage, Title("measure", variant=titled))

    def _run_task(self, task: str) -> None:
        """Read a task, sweep and evaluate every variant on it, and register the kept model."""
        labelled = self._read(task)
        used = {name: self._continue(name, task, labelled[None]) for name in self._tuned[task]}
        swept = {
            name: self._sweep(task, name, used[name], labelled[None])
            for name in self._tuned[task]
            if self._variants[name].sweep is not None
        }
        evaluated = [self._evaluate(task, budget, used, swept, labelled) for budget in labelled]
        self.evaluated += evaluated
        if self._recipe.registry is not None:
            whole = {"task": labelled[None], "evaluate": evaluated[0]}
            assert self._recipe.evaluate
            kept = self._recipe.evaluate.keep or self._tuned[task][0]
            title = Title("register", task=task)
            inputs = used[kept][0].stages | whole
            if measured := self.measured.get(kept):
                inputs["measure"] = measured
            self._add(register_stage(self._recipe.registry, task, inputs, title), title)

    def _tabulate(self) -> None:
        assert self._recipe.evaluate
        config = TableConfig(
            published=self._recipe.evaluate.published,
            columns={name: entry.published for name, entry in self._recipe.tasks.items()},
        )
        inputs = {stage.shown: stage for stage in self.evaluated}
        self._add(TABLE.stage(config, inputs), Title("table"))

    def _add(self, stage: Stage, title: Title) -> Stage:
        """Add `stage` under `title`, or return an equal stage that was added before."""
        known = self._by_fingerprint.get(stage.fingerprint)
        if known is not None:
            return known
        inputs = {of: self._by_fingerprint[each.fingerprint] for of, each in stage.inputs.items()}
        added = replace(stage, inputs=inputs, title=title)
        assert added.shown not in self.stages, f"two stages called {title}"
        self.stages[added.shown] = self._by_fingerprint[added.fingerprint] = added
        return added

    def _read(self, task: str) -> dict[int | None, Stage]:
        """Read a task; its stages by label budget, where None stands for all examples."""
        data = self._recipe.tasks[task].data
        inputs = {}
        if isinstance(data, ParagraphTaskConfig):
            inputs["corpus"] = self._pretrained[self._first][0].stages["corpus"]
        assert self._recipe.evaluate
        labelled: dict[int | None, Stage] = {}
        for budget in (None, *(self._recipe.evaluate.label_budgets or ())):
            config = data if budget is None else _with_budget(data, budget, task)
            try:
                stage = TASK.stage(config, inputs)
            except UserError as error:
                raise type(error)(f"tasks.{task}: {error}") from error
            labelled[budget] = self._add(stage, Title("task", task=task, budget=budget))
        return labelled

    def _continue(
        self, variant: str, task: str | None = None, data: Stage | None = None
    ) -> list[_Pretrained]:
        """Append all steps of continued pretraining to a variant's pretrainings. A step on task
        text differs for each task, as do the steps after it; their titles contain the task."""
        continued = []
        for made in self._pretrained[variant]:
            stages, of_task = made.stages, None
            for step in made.recipe.continue_with:
                config = made.recipe.continued_pretraining[step]
                if config.task_text is not None and config.task is None:
                    of_task = task
                after = continued_stages(config, step, stages, data)
                stages = stages | {
                    of: self._add(
                        stage, Title(of, step, of_task, variant, None, made.number or None)
                    )
                    for of, stage in after.items()
                    if stage is not stages.get(of)
                }
            continued.append(replace(made, stages=stages))
        return continued

    def _sweep(self, task: str, variant: str, used: list[_Pretrained], data: Stage) -> Stage:
        settings = self._variants[variant].sweep
        assert settings
        inputs = {"task": data} | {
            str(Title(of, number=made.number)): made.stages[of]
            for made in used
            for of in _READ_OF_A_VARIANT
        }
        config = SweepStageConfig(finetune=self._finetune(task, variant), sweep=settings)
        return self._add(SWEEP.stage(config, inputs), Title("sweep", task=task, variant=variant))

    def _evaluate(
        self,
        task: str,
        budget: int | None,
        used: dict[str, list[_Pretrained]],
        swept: dict[str, Stage],
        labelled: dict[int | None, Stage],
    ) -> Stage:
        inputs = {"task": labelled[budget]}
        for variant, tried in used.items():
            for made in tried:
                for of in _READ_OF_A_VARIANT:
                    inputs[input_name(of, variant, made.number)] = made.stages[of]
            if variant in swept:
                inputs[input_name("sweep", variant)] = swept[variant]
        assert self._recipe.evaluate
        config = CompareConfig(
            task=task,
            budget=budget,
            variants={name: self._finetune(task, name) for name in used},
            evaluate=self._recipe.evaluate,
        )
        title = Title("evaluate", task=task, budget=budget)
        return self._add(EVALUATE.stage(config, inputs), title)

    def _finetune(self, task: str, variant: str) -> FinetuneConfig:
        entry = self._recipe.tasks[task]
        return finetune_config(self._variants[variant], self._recipe, entry, variant)


def finetune_config(
    adapted: Recipe, recipe: Recipe, entry: TaskEntry, variant: str
) -> FinetuneConfig:
    """The finetune block of a variant on a task. The task's own keys override the recipe's; the
    variant's override both."""
    assert adapted.finetune
    own = {
        key.removeprefix("finetune."): value
        for key, value in recipe.variants[variant].items()
        if key.startswith("finetune.")
    }
    plain = adapted.finetune.model_dump(mode="json")
    for changes in (entry.finetune, own):
        plain = with_overrides(plain, changes, FinetuneConfig)
    return validate(FinetuneConfig, plain, source=f"finetune of {variant}")


def _variant(recipe: Recipe, name: str) -> Recipe:
    changed = recipe.variants[name]
    for key in changed:
        if key.partition(".")[0] not in _OF_A_VARIANT:
            raise ConfigError(
                f"variants.{name}.{key}: a variant may change {', '.join(_OF_A_VARIANT)}; what is "
                "compared has the rest in common"
            )
    return varied(recipe, changed, f"variants.{name}") if changed else recipe


def _check_seeds(evaluate: EvaluateConfig, variants: dict[str, Recipe]) -> None:
    """Refuse to report scores with a seed that a sweep used for selection."""
    for name, adapted in variants.items():
        if adapted.sweep is not None and adapted.sweep.seed in evaluate.seeds:
            raise ConfigError(
                f"evaluate.first_seed {evaluate.first_seed} makes the seeds {evaluate.seeds[0]} to "
                f"{evaluate.seeds[-1]}, which hold the sweep's own ({adapted.sweep.seed}, variant "
                f"{name}); choose another first_seed"
            )


def _check_kept(evaluate: EvaluateConfig, tuned: Mapping[str, Sequence[str]]) -> None:
    """Refuse to keep the model of a variant that is not fine-tuned on a task."""
    for task, names in tuned.items():
        if evaluate.keep is not None and evaluate.keep not in names:
            raise ConfigError(
                f"evaluate.keep: expected a variant of the task {task}, {', '.join(names)}, found "
                f"{evaluate.keep!r}"
            )


def _matched(variants: dict[str, Recipe]) -> dict[str, Recipe]:
    """Set each variant's steps so that it costs as many floating-point operations as the first.
    This assumes full rows, as `rungwise dry-run` does before instances exist; the table shows the
    real counts."""
    first = next(iter(variants.values()))
    target = _flops(first)
    matched: dict[str, Recipe] = {}
    for name, adapted in variants.items():
        settings = require_gradient(training(adapted), "match_pretraining: flops").pretrain
        steps = max(1, round(settings.steps * target / _flops(adapted)))
        pretrain = settings.model_copy(update={"steps": steps})
        matched[name] = adapted.model_copy(update={"pretrain": pretrain})
    return matched


def _flops(adapted: Recipe) -> float:
    measures = [
        Measures.planned(config, planned_vocab_size(adapted))
        for config in (adapted.instances, adapted.longer_instances)
        if config is not None
    ]
    config = require_gradient(training(adapted), "steps")
    return dry_run(config, measures, adapted.compute)["total_flops"]


def _upstream(recipe: Recipe, adapted: Recipe, variant: str) -> list[Recipe]:
    """The recipe for each combination of swept values of blocks before fine-tuning."""
    if adapted.sweep is None:
        return [adapted]
    before = {
        key: space for key, space in adapted.sweep.space.items() if not key.startswith("finetune.")
    }
    for key in before:
        if key.partition(".")[0] not in _OF_A_VARIANT:
            raise ConfigError(
                f"sweep.space.{key}: a sweep may vary keys of {', '.join(_OF_A_VARIANT[:-1])}; "
                "numbers of labelled examples are evaluate.label_budgets"
            )
    check_space(Recipe, to_override(adapted), before)
    tried = [
        varied(adapted, values, f"sweep of {variant}") for values in upstream_values(adapted.sweep)
    ]
    return tried or [adapted]


def _check_finetune(config: FinetuneConfig, adapted: Recipe, entry: TaskEntry) -> None:
    """Raise ConfigError if the model cannot be fine-tuned. Checks on labels come later."""
    data, trained = entry.data, training(adapted)
    paragraphs = isinstance(data, ParagraphTaskConfig)
    kind = "classification" if paragraphs else data.format.task_kind
    info = TaskInfo(kind, (), pair=True, metric="")
    check(config, info, trained.model, trained.model.objective(trained.pretrain.objective))
    if adapted.sweep is not None:
        check_values(SweepStageConfig(finetune=config, sweep=adapted.sweep), info)


def _with_budget(config: TaskConfig, budget: int, task: str) -> TaskConfig:
    if isinstance(config, ParagraphTaskConfig):
        each = budget // config.num_labels
        if not each:
            raise ConfigError(
                f"evaluate.label_budgets has {budget}, fewer than one for each of the "
                f"{config.num_labels} labels of tasks.{task}; raise it"
            )
        return config.model_copy(update={"train_per_label": each})
    return config.model_copy(update={"train_examples": budget})
