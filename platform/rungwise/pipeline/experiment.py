"""What fine-tuning adds to a recipe: variants, tasks and label budgets as stages.

    pretrain of each variant ──┬──> sweep of each variant and task ──┐
    task, whole and at budgets ┴───────────────────────────────────┴──> evaluate ──> table
                                                                             └──> register

Variants that share stages share artifacts: a stage is known by its fingerprint, so the same
pretraining is built once, whoever asks for it. Stages of one name are told apart by their titles.
"""

from __future__ import annotations

from dataclasses import replace

from rungwise import sweep
from rungwise.core.config import validate, with_overrides
from rungwise.core.errors import ConfigError, UserError
from rungwise.core.stage import Stage
from rungwise.evaluation import compare, table
from rungwise.finetune import FinetuneConfig, check
from rungwise.pipeline.continued import continued_stages
from rungwise.pipeline.recipe import Recipe, TaskEntry, need, planned_vocab_size, pretrain_stages
from rungwise.pretraining.config import PretrainStageConfig, by_gradient
from rungwise.pretraining.estimate import Measures, dry_run
from rungwise.serving import registry
from rungwise.sweep import SweepStageConfig
from rungwise.tasks import config as task_config
from rungwise.tasks import stage as task_stage
from rungwise.tasks.config import ParagraphTaskConfig, TaskConfig
from rungwise.tasks.examples import TaskInfo

# What a variant may change. The rest is the frame in which variants are compared.
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


class _Stages:
    """The stages of a run in order, inputs first, each once."""

    def __init__(self) -> None:
        self.by_title: dict[str, Stage] = {}
        self._by_fingerprint: dict[str, Stage] = {}

    def add(self, stage: Stage, title: str) -> Stage:
        """`stage` under `title`, or the one that is there already and would build the same."""
        known = self._by_fingerprint.get(stage.fingerprint)
        if known is not None:
            return known
        inputs = {name: self._known(source) for name, source in stage.inputs.items()}
        added = replace(stage, inputs=inputs, title=title)
        assert title not in self.by_title, f"two stages called {title}"
        self.by_title[title] = self._by_fingerprint[added.fingerprint] = added
        return added

    def _known(self, stage: Stage) -> Stage:
        return self._by_fingerprint[stage.fingerprint]


def experiment_stages(recipe: Recipe) -> dict[str, Stage]:
    """Every stage from the corpus to the registered models and the table, by title.

    Raises ConfigError where blocks are missing or a variant does not fit.
    """
    need(recipe, "fine-tunes", "model", "pretrain", "tasks", "variants", "finetune", "evaluate")
    assert recipe.evaluate
    stages = _Stages()
    variants = {name: _variant(recipe, name) for name in recipe.variants}
    for name, adapted in variants.items():
        for entry in recipe.tasks.values():
            _check_use(finetune_config(adapted, recipe, entry, name), adapted, entry)
    # Mistakes in labelled files are found before anything is trained.
    for task, entry in recipe.tasks.items():
        if not isinstance(entry.data, ParagraphTaskConfig):
            for where, data in _at_budgets(recipe.evaluate, task, entry.data).items():
                stages.add(_task(data, task, {}), f"task/{where}")
    _check_seeds(recipe.evaluate, variants)
    if recipe.match_pretraining == "flops":
        variants = _matched(variants)
    first = next(iter(variants))
    tried = {name: _upstream(recipe, adapted, name) for name, adapted in variants.items()}
    pretrained: dict[str, list[dict[str, Stage]]] = {}
    for name, alternatives in tried.items():
        suffix = "" if name == first else f"/{name}"
        pretrained[name] = [
            {
                of: stages.add(stage, of + suffix + (f"@{number}" if number else ""))
                for of, stage in pretrain_stages(adapted).items()
            }
            for number, adapted in enumerate(alternatives)
        ]
    evaluated: dict[str, Stage] = {}
    for task, entry in recipe.tasks.items():
        labelled = {
            where: stages.add(_task(data, task, pretrained[first][0]), f"task/{where}")
            for where, data in _at_budgets(recipe.evaluate, task, entry.data).items()
        }
        whole = labelled[task]
        used = {
            name: [
                _go_on(stages, adapted, f"{name}@{number}" if number else name, task, before, whole)
                for number, (adapted, before) in enumerate(
                    zip(tried[name], pretrained[name], strict=True)
                )
            ]
            for name in variants
        }
        swept = {
            name: _sweep(stages, recipe, adapted, entry, f"{task}/{name}", used[name], whole)
            for name, adapted in variants.items()
            if adapted.sweep is not None
        }
        for budget, (where, data) in zip(
            (None, *(recipe.evaluate.label_budgets or ())), labelled.items(), strict=True
        ):
            inputs = {"task": data}
            for name in variants:
                for number, of, after in _places(used[name]):
                    inputs[f"{of}/{name}{after}"] = used[name][number][of]
                if name in swept:
                    inputs[f"sweep/{name}"] = swept[name]
            config = compare.CompareConfig(
                task=task,
                budget=budget,
                variants={
                    name: finetune_config(adapted, recipe, entry, name)
                    for name, adapted in variants.items()
                },
                evaluate=recipe.evaluate,
            )
            made = Stage("evaluate", 2, compare.run, config, inputs=inputs, resumes=True)
            evaluated[where] = stages.add(made, f"evaluate/{where}")
        if recipe.registry is not None:
            made = Stage(
                "register",
                2,
                registry.run,
                recipe.registry.for_task(task),
                inputs={**used[first][0], "task": whole, "evaluate": evaluated[task]},
                place="driver",
            )
            stages.add(made, f"register/{task}")
    listed = table.TableConfig(
        published=recipe.evaluate.published,
        columns={name: entry.published for name, entry in recipe.tasks.items()},
    )
    inputs = {f"evaluate/{where}": stage for where, stage in evaluated.items()}
    inputs |= {f"pretrain/{name}": made[0]["pretrain"] for name, made in pretrained.items()}
    stages.add(Stage("table", 1, table.run, listed, inputs=inputs), "table")
    return stages.by_title


def finetune_config(
    adapted: Recipe, recipe: Recipe, entry: TaskEntry, variant: str
) -> FinetuneConfig:
    """The finetune block of a variant on a task: the recipe's, with the task's own keys, and over
    them the variant's."""
    assert adapted.finetune
    own = {
        key.removeprefix("finetune."): value
        for key, value in recipe.variants[variant].items()
        if key.startswith("finetune.")
    }
    data = with_overrides(adapted.finetune.model_dump(mode="json"), {**entry.finetune, **own})
    return validate(FinetuneConfig, data, source=f"finetune of {variant}")


def _variant(recipe: Recipe, name: str) -> Recipe:
    changed = recipe.variants[name]
    for key in changed:
        if key.partition(".")[0] not in _OF_A_VARIANT:
            raise ConfigError(
                f"variants.{name}.{key}: a variant may change {', '.join(_OF_A_VARIANT)}; what is "
                "compared has the rest in common"
            )
    if not changed:
        return recipe
    data = with_overrides(recipe.model_dump(mode="json"), changed)
    return validate(Recipe, data, source=f"variants.{name}")


def _check_seeds(evaluate: compare.EvaluateConfig, variants: dict[str, Recipe]) -> None:
    """What a sweep has selected with must not be reported with."""
    for name, adapted in variants.items():
        if adapted.sweep is not None and adapted.sweep.seed in evaluate.seeds:
            raise ConfigError(
                f"evaluate.first_seed {evaluate.first_seed} makes the seeds {evaluate.seeds[0]} to "
                f"{evaluate.seeds[-1]}, which hold the sweep's own ({adapted.sweep.seed}, variant "
                f"{name}); choose another first_seed"
            )


def _matched(variants: dict[str, Recipe]) -> dict[str, Recipe]:
    """Each with as many steps as take the floating-point operations of the first's.

    Rows are taken to be full, as `rungwise dry-run` does before instances are built; the table
    says what was really counted.
    """
    first = next(iter(variants.values()))
    target = _flops(first)
    matched: dict[str, Recipe] = {}
    for name, adapted in variants.items():
        assert adapted.pretrain
        settings = by_gradient(adapted.pretrain, "match_pretraining: flops")
        steps = max(1, round(settings.steps * target / _flops(adapted)))
        pretrain = settings.model_copy(update={"steps": steps})
        matched[name] = adapted.model_copy(update={"pretrain": pretrain})
    return matched


def _flops(adapted: Recipe) -> float:
    assert adapted.model
    assert adapted.pretrain
    settings = PretrainStageConfig(model=adapted.model, pretrain=adapted.pretrain)
    measures = [
        Measures.planned(config, planned_vocab_size(adapted))
        for config in (adapted.instances, adapted.longer_instances)
        if config is not None
    ]
    return dry_run(settings, measures, adapted.compute)["total_flops"]


def _go_on(
    stages: _Stages, adapted: Recipe, variant: str, task: str, before: dict[str, Stage], data: Stage
) -> dict[str, Stage]:
    """`before` with its pretrain stage replaced by the last step of continued pretraining.

    A step on the text of the task is another one for each task, and so is what follows it: their
    titles name the task.
    """
    now = before
    own = False
    for name in adapted.continue_with:
        config = adapted.continued_pretraining[name]
        made = continued_stages(config, name, now, data)
        own = own or config.task_text is not None
        suffix = f"{name}/{task}/{variant}" if own else f"{name}/{variant}"
        now = now | {
            of: stages.add(stage, f"{of}/{suffix}")
            for of, stage in made.items()
            if stage is not now.get(of)
        }
    return now


def _sweep(
    stages: _Stages,
    recipe: Recipe,
    adapted: Recipe,
    entry: TaskEntry,
    where: str,
    used: list[dict[str, Stage]],
    data: Stage,
) -> Stage:
    assert adapted.sweep
    config = SweepStageConfig(
        finetune=finetune_config(adapted, recipe, entry, where.rpartition("/")[2]),
        sweep=adapted.sweep,
    )
    inputs = {"task": data}
    for number, of, name in _places(used):
        inputs[of + name] = used[number][of]
    made = Stage("sweep", 2, sweep.run, config, inputs=inputs, resumes=True)
    return stages.add(made, f"sweep/{where}")


def _places(used: list[dict[str, Stage]]) -> list[tuple[int, str, str]]:
    """What fine-tuning reads of each adapted: number, stage, and the end of the input's name."""
    return [
        (number, of, "" if len(used) == 1 else f"@{number}")
        for number in range(len(used))
        for of in ("tokenizer", "pretrain")
    ]


def _upstream(recipe: Recipe, adapted: Recipe, variant: str) -> list[Recipe]:
    """The recipe once for each combination of swept values of blocks before fine-tuning."""
    if adapted.sweep is None:
        return [adapted]
    before = {
        key: space for key, space in adapted.sweep.space.items() if not key.startswith("finetune.")
    }
    data = adapted.model_dump(mode="json")
    for key in before:
        if key.partition(".")[0] not in _OF_A_VARIANT:
            raise ConfigError(
                f"sweep.space.{key}: a sweep may vary keys of {', '.join(_OF_A_VARIANT[:-1])}; "
                "numbers of labelled examples are evaluate.label_budgets"
            )
    sweep.check_space(Recipe, data, before)
    found = [
        validate(Recipe, with_overrides(data, values), source=f"sweep of {variant}")
        for values in sweep.upstream_values(adapted.sweep)
    ]
    return found or [adapted]


def _task(config: TaskConfig, task: str, pretrained: dict[str, Stage]) -> Stage:
    """The task stage. Paragraphs are drawn from the corpus, that of the first variant.

    Raises UserError naming the task where a path of it matches nothing.
    """
    inputs = {"corpus": pretrained["corpus"]} if isinstance(config, ParagraphTaskConfig) else {}
    try:
        found = task_config.outside(config)
    except UserError as error:
        raise type(error)(f"tasks.{task}: {error}") from error
    return Stage(
        "task",
        2,
        task_stage.run,
        config,
        inputs=inputs,
        identity=task_config.identity(config),
        outside=found,
    )


def _at_budgets(
    evaluate: compare.EvaluateConfig, task: str, config: TaskConfig
) -> dict[str, TaskConfig]:
    """The task as it is, and at every label budget, by the end of its titles."""
    smaller = {f"{task}/{n}": _with_budget(config, n, task) for n in evaluate.label_budgets or ()}
    return {task: config} | smaller


def _check_use(config: FinetuneConfig, adapted: Recipe, entry: TaskEntry) -> None:
    """Raise ConfigError where the model cannot be used so; what the labels decide comes later."""
    assert adapted.model
    assert adapted.pretrain
    data = entry.data
    paragraphs = isinstance(data, ParagraphTaskConfig)
    kind = "classification" if paragraphs else data.format.task_kind
    info = TaskInfo(kind, (), pair=True, metric="")
    check(config, info, adapted.model, adapted.model.objective(adapted.pretrain.objective))


def _with_budget(config: TaskConfig, budget: int, task: str) -> TaskConfig:
    """The task with so many training examples."""
    if isinstance(config, ParagraphTaskConfig):
        each = budget // config.num_labels
        if not each:
            raise ConfigError(
                f"evaluate.label_budgets has {budget}, fewer than one for each of the "
                f"{config.num_labels} labels of tasks.{task}; raise it"
            )
        return config.model_copy(update={"train_per_label": each})
    return config.model_copy(update={"train_examples": budget})
