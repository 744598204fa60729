"""A recipe: the blocks of one YAML file, and the stages they become.

    corpus ──> tokenizer ──> tokens ──> instances ──> pretrain ──┬──> ... ──> report
                                                                 └──> fine-tuning: experiment.py

Workflows (workflows/*.py) combine these functions in plain Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from rungwise.core.configuration.canonical import flatten
from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.configuration.config import Config, validate
from rungwise.core.configuration.overrides import given, with_overrides
from rungwise.core.configuration.secrecy import without_passwords
from rungwise.core.errors import ConfigError, UserError
from rungwise.core.stages.stage import Stage
from rungwise.core.stages.title import Title
from rungwise.core.tracking.store import TrackingConfig
from rungwise.corpus.config import CorpusConfig
from rungwise.corpus.stage import CORPUS
from rungwise.evaluation.comparison.config import EvaluateConfig
from rungwise.evaluation.suites.config import SuiteConfig
from rungwise.evaluation.suites.measure import MEASURE, MeasureConfig
from rungwise.finetune import FinetuneConfig
from rungwise.instances.kinds import InstancesConfig
from rungwise.instances.stage import INSTANCES, LONGER_INSTANCES
from rungwise.models.config import ModelConfig
from rungwise.pipeline.continued import ContinuedConfig, continued_stages
from rungwise.pretraining.config import (
    PretrainConfig,
    PretrainStageConfig,
    check_rows,
    refuse_other_kind,
    with_objective,
)
from rungwise.pretraining.initial import INITIAL, NOT_OF_WEIGHTS, ImportConfig
from rungwise.pretraining.stage import PRETRAIN
from rungwise.report.page import REPORT, ReportConfig
from rungwise.serving.hugging_face import load_config
from rungwise.serving.hugging_face.stage import INITIAL_WEIGHTS
from rungwise.serving.registry import REGISTER, RegisterConfig, RegistryConfig
from rungwise.sweep import SweepConfig, value_at
from rungwise.tasks.config import TaskConfig
from rungwise.tokenizer import TOKENIZER, TokenizerConfig
from rungwise.tokens.config import TokensConfig
from rungwise.tokens.stage import TOKENS
from rungwise.training.config import GradientConfig
from rungwise.training.curriculum import READ_BY_NAME

# Letters of any script; used in the names of folders, runs and metrics.
Name = Annotated[str, Field(pattern=r"^[^\W_][\w.-]*$")]
_KIND = ".kind"


class TaskEntry(Config):
    """One task of an experiment."""

    data: TaskConfig
    # settings that differ for this task, as dotted keys of the finetune block
    finetune: dict[str, Any] = Field(default_factory=dict)
    published: str | None = None  # column of the published table to show beside it; null: none
    variants: list[str] | None = None  # variants to fine-tune on it; null: all that have an encoder


class Recipe(Config):
    """All blocks. Each workflow needs those that it reads: training reads `model` and `pretrain`,
    fine-tuning also the blocks from `tasks` on.

    `pretrain.initial` fills in `model` and `tokenizer`; their other keys may still be given.
    """

    name: Name  # labels folders and runs
    root: str = "artifacts"  # folder or s3://bucket/prefix for everything that is built
    corpus: CorpusConfig
    tokenizer: TokenizerConfig
    # how the text becomes training rows; models that are fitted by counts need none
    instances: InstancesConfig | None = None
    # rows for the last steps of training, by `pretrain.longer_share`
    longer_instances: InstancesConfig | None = None
    model: ModelConfig | None = None
    pretrain: PretrainConfig | None = None
    report: ReportConfig = ReportConfig()
    # by name: suites that every variant is measured by
    measure: dict[Name, SuiteConfig] = Field(default_factory=dict)
    compute: ComputeConfig = ComputeConfig()
    tracking: TrackingConfig = TrackingConfig()
    # by name: steps of further training on other text
    continued_pretraining: dict[Name, ContinuedConfig] = Field(default_factory=dict)
    # the continued steps to take, in this order
    continue_with: list[str] = Field(default_factory=list)
    tasks: dict[Name, TaskEntry] = Field(default_factory=dict)
    # By name: what to compare, each as keys of this file with other values; {} is the file as it
    # is. The first is shown in full, and registered unless `evaluate.keep` names another.
    variants: dict[Name, dict[str, Any]] = Field(default_factory=lambda: {"pretrained": {}})
    # flops: give each variant the steps that cost as much compute as the first one's
    match_pretraining: Literal["steps", "flops"] = "steps"
    finetune: FinetuneConfig | None = None
    sweep: SweepConfig | None = None  # search for fine-tuning settings; null: none
    evaluate: EvaluateConfig | None = None  # how variants are compared
    registry: RegistryConfig | None = None  # register models in MLflow; null: do not

    @model_validator(mode="before")
    @classmethod
    def _model_and_tokenizer_of_initial(cls, data: Any) -> Any:
        """Fill in from `pretrain.initial` what the recipe leaves out."""
        pretrain = data.get("pretrain") if isinstance(data, dict) else None
        initial = pretrain.get("initial") if isinstance(pretrain, dict) else None
        if not isinstance(initial, str):
            return data
        model, tokenizer = data.get("model") or {}, data.get("tokenizer") or {}
        if "kind" not in model:
            if not Path(initial).is_dir():
                raise ConfigError(
                    "pretrain.initial: expected a folder on this machine that save_pretrained of "
                    f"transformers has written, found {initial!r}; rungwise downloads no models"
                )
            theirs = load_config(Path(initial)).model_dump(mode="json")
            for key, value in model.items():
                if key in theirs and key not in NOT_OF_WEIGHTS and value != theirs[key]:
                    raise ConfigError(
                        f"model.{key} is {value}, but the weights in pretrain.initial {initial} "
                        f"have {theirs[key]}; leave it out"
                    )
            model = theirs | model
        if "kind" not in tokenizer:
            tokenizer = {"kind": "file", "path": initial} | tokenizer
        return data | {"model": model, "tokenizer": tokenizer}

    @model_validator(mode="before")
    @classmethod
    def _what_tasks_need(cls, data: Any) -> Any:
        """Give a recipe with tasks default finetune and evaluate blocks."""
        if isinstance(data, dict) and data.get("tasks"):
            return {"finetune": {}, "evaluate": {}} | data
        return data

    @field_validator("pretrain", mode="before")
    @classmethod
    def _of_the_kind_it_takes(cls, pretrain: Any, info: ValidationInfo) -> Any:
        return refuse_other_kind(pretrain, info.data.get("model"))

    @field_validator("pretrain", "continued_pretraining", mode="after")
    @classmethod
    def _name_objectives(cls, value: Any, info: ValidationInfo) -> Any:
        """Give a pretraining without an objective the model's default."""
        model = info.data.get("model")
        if model is None or value is None:
            return value
        if info.field_name == "pretrain":
            return value if value.objective is not None else with_objective(value, model)
        return {
            name: step.model_copy(update={"pretrain": with_objective(step.pretrain, model)})
            if step.pretrain.objective is None
            else step
            for name, step in value.items()
        }

    @model_validator(mode="after")
    def _known_steps(self) -> Recipe:
        for name in self.continue_with:
            if name not in self.continued_pretraining:
                raise ValueError(
                    f"continue_with names {name!r}, which continued_pretraining lacks; it has: "
                    f"{', '.join(self.continued_pretraining) or 'nothing'}"
                )
        return self

    @model_validator(mode="after")
    def _known_variants(self) -> Recipe:
        for task, entry in self.tasks.items():
            for name in entry.variants or ():
                if name not in self.variants:
                    raise ValueError(
                        f"tasks.{task}.variants names {name!r}, which variants lacks; it has: "
                        f"{', '.join(self.variants)}"
                    )
        return self

    def resolved(self, root: str) -> dict[str, Any]:
        """Every key as plain data, with this root and without passwords, for records. A block whose
        `kind` varies has the keys that were given, since others follow the kind."""
        data, own = self.model_dump(mode="json"), given(self)
        varying = (*self.variants.values(), self.sweep.space if self.sweep else {})
        kinds = {key for keys in varying for key in keys if key.endswith(_KIND)}
        for key in kinds & flatten(own).keys():
            block = key.removesuffix(_KIND)
            data = with_overrides(data, {block: value_at(own, block)})
        return without_passwords(data | {"root": root})


def to_override(recipe: Recipe) -> dict[str, Any]:
    """The keys that the recipe gives, for overrides. The objective that is the default of its model
    is left open, because another model has its own."""
    data = given(recipe)
    default = recipe.model and recipe.model.objective(None).name
    steps = [step["pretrain"] for step in data.get("continued_pretraining", {}).values()]
    for pretrain in filter(None, (data.get("pretrain"), *steps)):
        if pretrain.get("objective") == default:
            pretrain["objective"] = None
    return data


def varied(recipe: Recipe, changed: Mapping[str, Any], source: str) -> Recipe:
    """The recipe with some keys changed. Raises ConfigError naming `source`."""
    return validate(Recipe, with_overrides(to_override(recipe), changed, Recipe), source=source)


def instances_stages(recipe: Recipe) -> dict[str, Stage]:
    """Corpus, tokenizer, tokens, instances and longer ones if any; inputs come first."""
    need(recipe, "builds instances", "instances")
    assert recipe.instances
    stages = tokens_stages(recipe, recipe.instances.tokens)
    inputs = {"tokens": stages["tokens"]}
    stages["instances"] = INSTANCES.stage(recipe.instances, inputs)
    if recipe.longer_instances is not None:
        stages["longer_instances"] = LONGER_INSTANCES.stage(recipe.longer_instances, inputs)
    return stages


def tokens_stages(recipe: Recipe, config: TokensConfig) -> dict[str, Stage]:
    """Corpus, tokenizer and tokens; inputs come first."""
    corpus = CORPUS.stage(recipe.corpus)
    tokenizer = TOKENIZER.stage(recipe.tokenizer, {"corpus": corpus})
    inputs = {"corpus": corpus, "tokenizer": tokenizer}
    return {**inputs, "tokens": TOKENS.stage(config, inputs)}


def pretrain_stages(recipe: Recipe) -> dict[str, Stage]:
    """Everything up to pretrain; inputs come first. Raises as `training` does."""
    config = training(recipe)
    if config.pretrain.reads_tokens:
        before = tokens_stages(recipe, TokensConfig())
        read = {"tokens": before["tokens"]}
    else:
        before = instances_stages(recipe)
        read = {name: stage for name, stage in before.items() if name in READ_BY_NAME}
    if isinstance(recipe.pretrain, GradientConfig) and recipe.pretrain.initial is not None:
        tokenizer = {"tokenizer": before["tokenizer"]}
        weights = ImportConfig(path=recipe.pretrain.initial)
        before[INITIAL] = read[INITIAL] = INITIAL_WEIGHTS.stage(weights, tokenizer)
    return before | {"pretrain": PRETRAIN.stage(config, read)}


def chained_stages(recipe: Recipe) -> tuple[list[Stage], dict[str, Stage]]:
    """Return the stages of the pretraining and of the steps of `continue_with`, inputs first; and
    by name those of the last one. Raises as `training` and `continued_stages` do."""
    last = pretrain_stages(recipe)
    made = [*last.values()]
    for name in recipe.continue_with:
        after = continued_stages(recipe.continued_pretraining[name], name, last)
        made += after.values()
        last = {"tokenizer": last["tokenizer"], **after}
    last.pop("task", None)  # whose text a step reads
    return made, last


def training(recipe: Recipe) -> PretrainStageConfig:
    """The blocks that training reads. Raises ConfigError if one is missing or they do not fit
    together."""
    need(recipe, "trains", "model", "pretrain")
    assert recipe.model
    assert recipe.pretrain
    both = [each for each in (recipe.instances, recipe.longer_instances) if each is not None]
    if any(each.tokens != both[0].tokens for each in both):
        raise ConfigError(
            "longer_instances are of the tokens that instances are of, but their masking.unit or "
            "mask_units differ; give both the same"
        )
    if (recipe.longer_instances is not None) != recipe.pretrain.reads_longer:
        raise ConfigError(
            "longer_instances are what the last pretrain.longer_share of the steps read, but only "
            f"{'the first' if recipe.longer_instances else 'the second'} is set; set both or none"
        )
    read = {"instances": recipe.instances, "longer_instances": recipe.longer_instances}
    _check_together(recipe.model, recipe.pretrain, read, recipe.compute)
    for name in recipe.continue_with:
        step = recipe.continued_pretraining[name]
        try:
            read = {"instances": step.instances}
            _check_together(recipe.model, step.pretrain, read, recipe.compute)
        except ConfigError as error:
            raise ConfigError(f"continued_pretraining.{name}: {error}") from error
    pretrain = recipe.pretrain
    if isinstance(pretrain, GradientConfig):  # the weights are an input of the stage instead
        pretrain = pretrain.model_copy(update={"initial": None})
    return PretrainStageConfig(model=recipe.model, pretrain=pretrain)


def _check_together(
    model: ModelConfig,
    pretrain: PretrainConfig,
    read: Mapping[str, InstancesConfig | None],
    compute: ComputeConfig,
) -> None:
    """Raise the ConfigErrors of the stage early, before anything is built."""
    pretrain.check(model, compute)
    config = PretrainStageConfig(model=model, pretrain=pretrain)
    for block, instances in read.items():
        if instances is not None and not pretrain.reads_tokens:
            check_rows(config, instances.kind, instances.length, block)


def planned_vocab_size(recipe: Recipe) -> int:
    """The upper limit of the vocabulary size. Raises UserError if the config does not give it."""
    size = getattr(recipe.tokenizer, "vocab_size", None)
    if size is None:
        raise UserError(
            "the size of the vocabulary is not in the config; build the tokenizer and the "
            "instances first (workflows/instances.py)"
        )
    return size


def report_stage(recipe: Recipe, before: dict[str, Stage]) -> Stage:
    return REPORT.stage(recipe.report, before)


def measure_stage(recipe: Recipe, before: Mapping[str, Stage]) -> Stage:
    """The stage that measures the pretraining among `before` with the recipe's suites."""
    inputs = {of: before[of] for of in ("corpus", "tokenizer", "tokens", "pretrain")}
    return MEASURE.stage(MeasureConfig(suites=recipe.measure), inputs)


def register_stage(
    registry: RegistryConfig, of: str, inputs: Mapping[str, Stage], title: Title | None = None
) -> Stage:
    """The stage that registers a model `of` a task or a kind of pretraining."""
    config = RegisterConfig(
        name=registry.name_of(of), alias=registry.alias, licences=_licences(inputs["pretrain"])
    )
    return REGISTER.stage(config, inputs, title)


def _licences(stage: Stage) -> dict[str, tuple[str | None, ...]]:
    """The licences of the sources of each corpus below a stage, by fingerprint. They come from the
    config: a corpus's record may hold older ones."""
    found = [_licences(each) for each in stage.inputs.values()]
    if isinstance(stage.config, CorpusConfig):
        found.append({stage.fingerprint: tuple(each.licence for each in stage.config.sources)})
    return {corpus: each for licences in found for corpus, each in licences.items()}


def need(recipe: Recipe, does: str, *blocks: str) -> None:
    """Raise ConfigError unless the recipe has all `blocks`; `does` says what needs them."""
    missing = [name for name in blocks if not getattr(recipe, name)]
    if missing:
        raise ConfigError(
            f"this workflow {does}, but the config has no block {', '.join(missing)}; add what is "
            "missing (workflows/configs/quickstart.yaml has all), or use a workflow that needs "
            "less: instances.py, pretrain.py"
        )
