"""The stages that a recipe becomes; workflows (workflows/*.py) combine them in plain Python.

corpus ──> tokenizer ──> tokens ──> instances ──> pretrain ──┬──> ... ──> report
                           ↑                                 └──> fine-tuning: experiment.py
                  task, for labelled pairs
"""

from collections.abc import Mapping
from dataclasses import replace

from rungwise.core.errors import ConfigError
from rungwise.core.stages.stage import Stage
from rungwise.core.stages.title import Title
from rungwise.corpus.config import CorpusConfig
from rungwise.corpus.summary import CORPUS
from rungwise.evaluation.suites.measure import MEASURE, MeasureConfig
from rungwise.instances.kinds import InstancesConfig
from rungwise.instances.summary import INSTANCES, LONGER_INSTANCES
from rungwise.models.fitting import RefiningFamily
from rungwise.models.word_vectors.vector_family import VectorFamily
from rungwise.pipeline.continued import continued_stages
from rungwise.pipeline.recipe import Recipe
from rungwise.pretraining.config import PretrainConfig, PretrainStageConfig, check_rows
from rungwise.pretraining.initial import INITIAL, ImportConfig, check_vectors
from rungwise.pretraining.stage import PRETRAIN
from rungwise.report.stage import REPORT
from rungwise.serving.hugging_face.stage import INITIAL_WEIGHTS
from rungwise.serving.stage import REGISTER, RegisterConfig, RegistryConfig
from rungwise.tasks.config import FilesTaskConfig
from rungwise.tasks.stage import TASK, TASK_TOKENS, TaskTokensConfig
from rungwise.tokenizer import TOKENIZER
from rungwise.tokens.config import TokensConfig
from rungwise.tokens.summary import TOKENS
from rungwise.training.config import FitConfig, GradientConfig
from rungwise.training.curriculum import MIXED_INSTANCES, is_read


def instances_stages(recipe: Recipe) -> dict[str, Stage]:
    """Corpus, tokenizer, tokens, instances and longer ones if any; inputs come first. Tokens of
    labelled pairs are those of a task, which is then among the stages."""
    recipe.require("builds instances", "instances")
    assert recipe.instances
    if recipe.instances.labelled and recipe.pretraining_task is not None:
        stages = _task_tokens_stages(recipe, recipe.pretraining_task)
    else:
        stages = tokens_stages(recipe, recipe.instances.tokens)
    inputs = {"tokens": stages["tokens"]}
    stages["instances"] = INSTANCES.stage(recipe.instances, inputs)
    if recipe.longer_instances is not None:
        stages["longer_instances"] = LONGER_INSTANCES.stage(recipe.longer_instances, inputs)
    for name, rows in recipe.mixed_rows.items():
        tokens, own = stages["tokens"], recipe.mixed_tasks.get(name)
        task = own or recipe.pretraining_task
        if rows.labelled and task and (own or not recipe.instances.labelled):
            of_task = _task_tokens_stages(recipe, task, name)
            tokens = of_task["tokens"]
            stages |= {f"task_of_{name}": of_task["task"], f"tokens_of_{name}": tokens}
        title = Title("instances", step=name)
        stages[MIXED_INSTANCES + name] = INSTANCES.stage(rows, {"tokens": tokens}, title)
    return stages


def tokens_stages(recipe: Recipe, config: TokensConfig) -> dict[str, Stage]:
    """Corpus, tokenizer and tokens; inputs come first."""
    inputs = _tokenizer_stages(recipe)
    return {**inputs, "tokens": TOKENS.stage(config, inputs)}


def _task_tokens_stages(
    recipe: Recipe, task: FilesTaskConfig, step: str | None = None
) -> dict[str, Stage]:
    stages = _tokenizer_stages(recipe)
    of_task = TASK.stage(task, title=Title("task", step=step))
    inputs = {"task": of_task, "tokenizer": stages["tokenizer"]}
    title = Title("tokens", step=step)
    return {**stages, **inputs, "tokens": TASK_TOKENS.stage(TaskTokensConfig(), inputs, title)}


def _tokenizer_stages(recipe: Recipe) -> dict[str, Stage]:
    corpus = CORPUS.stage(recipe.corpus)
    return {"corpus": corpus, "tokenizer": TOKENIZER.stage(recipe.tokenizer, {"corpus": corpus})}


def pretrain_stages(recipe: Recipe) -> dict[str, Stage]:
    """Everything up to pretrain; inputs come first. Raises as `pretrain_config` does."""
    config = pretrain_config(recipe)
    if config.pretrain.reads_tokens:
        stages = tokens_stages(recipe, TokensConfig())
        inputs = {"tokens": stages["tokens"]}
    else:
        stages = instances_stages(recipe)
        inputs = {name: stage for name, stage in stages.items() if is_read(name)}
    if isinstance(recipe.pretrain, GradientConfig) and recipe.pretrain.initial is not None:
        weights = ImportConfig(path=recipe.pretrain.initial)
        tokenizer = {"tokenizer": stages["tokenizer"]}
        stages[INITIAL] = inputs[INITIAL] = INITIAL_WEIGHTS.stage(weights, tokenizer)
    if recipe.word_vectors is not None:
        if recipe.pretraining_task is not None:  # whose tokens are those of the task
            tokens = tokens_stages(recipe, TokensConfig())["tokens"]
            stages["text_tokens"] = replace(tokens, title=Title("tokens", step="text"))
        text = {"tokens": stages.get("text_tokens", stages["tokens"])}
        title = Title("pretrain", step="word_vectors")
        vectors = PRETRAIN.stage(recipe.word_vectors, text, title)
        stages[INITIAL] = inputs[INITIAL] = vectors
    return stages | {"pretrain": PRETRAIN.stage(config, inputs)}


def chained_stages(recipe: Recipe) -> tuple[list[Stage], dict[str, Stage]]:
    """Return the stages of the pretraining and of the steps of `continue_with`, inputs first; and
    by name those of the last one. Raises as `pretrain_config` and `continued_stages` do."""
    last = pretrain_stages(recipe)
    stages = [*last.values()]
    for name in recipe.continue_with:
        step = continued_stages(recipe.continued_pretraining[name], name, last)
        stages += step.values()
        last = {"tokenizer": last["tokenizer"], **step}
    last.pop("task", None)  # whose text or pairs were read
    return stages, last


def pretrain_config(recipe: Recipe) -> PretrainStageConfig:
    """The config of the pretrain stage. Raises ConfigError if a block is missing or if blocks do
    not fit together, those of continued steps included."""
    recipe.require("trains", "model", "pretrain")
    assert recipe.model
    assert recipe.pretrain
    instances, longer = recipe.instances, recipe.longer_instances
    if instances and longer and instances.tokens != longer.tokens:
        raise ConfigError(
            "longer_instances are of the tokens that instances are of, but their masking.unit or "
            "mask_units differ; give both the same"
        )
    if (longer is not None) != recipe.pretrain.reads_longer:
        raise ConfigError(
            "longer_instances are what the last pretrain.longer_share of the steps read, but only "
            f"{'the first' if longer else 'the second'} is set; set both or none"
        )
    config = _checked_config(
        recipe, recipe.pretrain, {"instances": instances, "longer_instances": longer}
    )
    for name in recipe.continue_with:
        step = recipe.continued_pretraining[name]
        try:
            _checked_config(recipe, step.pretrain, {"instances": step.instances})
        except ConfigError as error:
            within = f"continued_pretraining.{name}"
            changes = {
                key if key.startswith("model.") else f"{within}.{key}": value
                for key, value in error.changes.items()
            }
            raise ConfigError(f"{within}: {error.with_changes({})}", changes) from error
    return config


def _checked_config(
    recipe: Recipe, pretrain: PretrainConfig, rows: Mapping[str, InstancesConfig | None]
) -> PretrainStageConfig:
    """A pretraining of the recipe's model. Raises the stage's ConfigErrors before any building."""
    assert recipe.model
    pretrain.check(recipe.model, recipe.compute)
    if isinstance(pretrain, GradientConfig):  # initial weights are an input of the stage instead
        pretrain = pretrain.model_copy(update={"initial": None})
    config = PretrainStageConfig(model=recipe.model, pretrain=pretrain)
    if isinstance(recipe.model, RefiningFamily):
        vectors = None if recipe.word_vectors is None else recipe.word_vectors.model
        if not isinstance(vectors, VectorFamily):
            actual = "no such block" if vectors is None else f"a {vectors.kind}"
            raise ConfigError(
                f"model.kind is {recipe.model.kind}, which is made on the vectors of the block "
                f"word_vectors, found {actual}",
                dict(recipe.model.vectors_by_default),
            )
    elif recipe.word_vectors is not None:
        initial = getattr(recipe.pretrain, "initial", None)
        if not isinstance(pretrain, GradientConfig) or initial is not None:
            raise ConfigError(
                "word_vectors are what a model begins with that learns by gradient from random "
                f"weights; leave it out for a {recipe.model.kind} of these settings"
            )
        check_vectors(FitConfig(recipe.model, pretrain), recipe.word_vectors.model)
    if isinstance(pretrain, GradientConfig):
        for name, mixed in pretrain.mixture.items():
            member = config.model_copy(update={"pretrain": pretrain.of_member(name)})
            block = f"pretrain.mixture.{name}.instances"
            check_rows(member, mixed.instances.kind, mixed.instances.length, block)
    for block, instances in rows.items():
        if instances is not None and not pretrain.reads_tokens:
            check_rows(config, instances.kind, instances.length, block)
    return config


def report_stage(recipe: Recipe, inputs: Mapping[str, Stage]) -> Stage:
    return REPORT.stage(recipe.report, {**inputs, **recipe.searches})


def measure_stage(recipe: Recipe, stages: Mapping[str, Stage]) -> Stage:
    """The stage that measures the pretraining among `stages` with the recipe's suites."""
    inputs = {name: stages[name] for name in ("corpus", "tokenizer", "tokens", "pretrain")}
    return MEASURE.stage(MeasureConfig(suites=recipe.measure), inputs)


def register_stage(registry: RegistryConfig, model: str, inputs: Mapping[str, Stage]) -> Stage:
    """The stage that registers a `model`, called after its task or its kind of pretraining."""
    config = RegisterConfig(
        name=registry.name_model(model),
        alias=registry.alias,
        licences=_licences(inputs["pretrain"]),
    )
    return REGISTER.stage(config, inputs)


def _licences(stage: Stage) -> dict[str, tuple[str | None, ...]]:
    """The licences of the sources of each corpus below a stage, by fingerprint. They come from the
    config: a corpus's record may hold older ones."""
    licences: dict[str, tuple[str | None, ...]] = {}
    for source in stage.inputs.values():
        licences |= _licences(source)
    if isinstance(stage.config, CorpusConfig):
        licences[stage.fingerprint] = tuple(each.licence for each in stage.config.sources)
    return licences
