"""A recipe: the blocks of one YAML file, resolved once; among them the steps of its training.

A variant, a tried value or matched steps are resolved from the same raw data with a few keys
changed, so that what the file leaves out follows the changed keys.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import to_jsonable_python

from rungwise.core.configuration.canonical import plain
from rungwise.core.configuration.config import Config
from rungwise.core.configuration.overrides import ComputeConfig, find_value, resolve, with_overrides
from rungwise.core.configuration.secrecy import find_credential
from rungwise.core.errors import ConfigError, UserError
from rungwise.core.stages.stage import Stage
from rungwise.core.storage.hub import SCHEME, is_hub, pin, pin_all
from rungwise.core.tracking.store import TrackingConfig
from rungwise.corpus.config import CorpusConfig
from rungwise.evaluation.comparison.summary import EvaluateConfig
from rungwise.evaluation.pretrainings import CurveConfig, SearchConfig
from rungwise.evaluation.suites.measure import SuiteConfig
from rungwise.finetune import FinetuneConfig
from rungwise.instances.summary import InstancesConfig
from rungwise.models.config import DEFAULT_KIND, ModelConfig
from rungwise.report.stage import ReportConfig
from rungwise.serving.importing import load_config
from rungwise.serving.stage import RegistryConfig
from rungwise.tasks.config import FilesTaskConfig, TaskConfig, TaskTextConfig
from rungwise.tokenizer import TokenizerConfig
from rungwise.training.fit_config import PretrainConfig, refuse_other_kind, with_objective
from rungwise.training.initial import NOT_OF_WEIGHTS
from rungwise.tuning.trials import SweepConfig

# A model of the hub without hf://, as transformers takes it.
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")

# What to add where a workflow needs a block.
_SMALLEST: dict[str, dict[str, Any]] = {
    "instances": {"kind": "masked_blocks"},
    "model": {"kind": DEFAULT_KIND},
    "pretrain": {"steps": 1000},
    "variants": {"pretrained": {}},
    "measure": {"perplexity": {"kind": "perplexity"}},
    "finetune": {},
    "evaluate": {},
}


# Letters of any script; used in the names of folders, runs and metrics.
NAME = r"^[^\W_][\w.-]*$"
Name = Annotated[str, Field(pattern=NAME)]


class StepConfig(Config):
    """One step of training. It begins with the weights of the step before, the first with random
    ones or those of `pretrain.initial`. What it leaves out is the recipe's."""

    name: Name | None = None  # in the titles of its stages; null: as those of a recipe of one step
    corpus: CorpusConfig | None = None  # text to read; null: the recipe's
    # task whose labelled pairs are read, or its text by `task_text`
    task: FilesTaskConfig | None = None
    # read the text of `task`, or without one of each task of the recipe, instead of a corpus
    task_text: TaskTextConfig | None = None
    # by name of an objective of a mixture: the task of its rows, if not `task`
    mixed_tasks: dict[str, FilesTaskConfig] = Field(default_factory=dict)
    instances: InstancesConfig | None = None
    model: ModelConfig | None = None  # with a `pretrain` of its own
    pretrain: PretrainConfig | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.corpus is not None and self.task_text is not None:
            raise ValueError("a step reads either corpus or task_text, found both; give one")
        if self.model is not None and self.pretrain is None:
            raise ValueError("a step with a model has a block pretrain of its own; add it")
        if self.pretrain is not None and self.pretrain.imported:
            raise ValueError(
                "a step begins with the weights of the step before it; leave out "
                "pretrain.initial, or set it in the recipe's own block for the first step"
            )
        return self

    @property
    def reads_each_task(self) -> bool:
        """Whether it reads the text of each task of the recipe, so that it differs among them."""
        return self.task_text is not None and self.task is None

    @property
    def labelled(self) -> bool:
        """Whether its rows are pairs of a task."""
        reads_rows = self.pretrain is None or not self.pretrain.reads_tokens
        return reads_rows and self.instances is not None and self.instances.labelled

    def explain_pairs(self) -> str:
        """Why its rows and its tasks do not fit together; "" if they do."""
        mixture = {} if self.pretrain is None else self.pretrain.mixed_rows
        of_task = {name for name, rows in mixture.items() if rows.labelled}
        if unread := sorted(self.mixed_tasks.keys() - of_task):
            return (
                f"mixed_tasks names {', '.join(unread)}, but in pretrain.mixture the rows of a "
                f"task are those of {', '.join(sorted(of_task)) or 'none'}"
            )
        reads_pairs = self.labelled or bool(of_task - self.mixed_tasks.keys())
        if reads_pairs and (self.task is None or self.task_text is not None):
            return (
                "instances of kind labelled_pairs or aligned_lines are those of a task; write a "
                "step with a task and without task_text, steps: [{task: {...}}]"
            )
        if self.task is not None and self.task_text is None and not reads_pairs:
            return (
                "a step with a task reads its labelled pairs or its text; set instances.kind to "
                "labelled_pairs or aligned_lines, or give task_text: {}"
            )
        return ""


class TaskEntry(Config):
    """One task of an experiment."""

    data: TaskConfig
    # settings that differ for this task, as dotted keys of the finetune block
    finetune: dict[str, Any] = Field(default_factory=dict)
    published: str | None = None  # column of the published table to show beside it; null: none
    # variants to fine-tune on it; null: all that have an encoder
    variants: list[str] | None = Field(default=None, min_length=1)


class Recipe(Config):
    """All blocks. Each workflow needs those that it reads: training reads `model` and `pretrain`,
    fine-tuning also the blocks from `tasks` on. `pretrain.initial` fills in `model` and
    `tokenizer`; their other keys may still be given."""

    name: Name  # labels folders and runs
    root: str = "artifacts"  # folder or s3://bucket/prefix for everything that is built
    corpus: CorpusConfig
    tokenizer: TokenizerConfig
    # of the documents of the training text that models read, drawn by their ids; a smaller share is
    # a part of a larger one. The tokenizer and the held-out text stay those of the whole corpus
    text_share: float = Field(default=1.0, gt=0, le=1)
    # how the text becomes training rows; models that are fitted by counts need none
    instances: InstancesConfig | None = None
    # rows for the last steps of training, by `pretrain.longer_share`
    longer_instances: InstancesConfig | None = None
    model: ModelConfig | None = None
    pretrain: PretrainConfig | None = None
    # the steps of training, in order, whose last model is used; none: one of the blocks above
    steps: list[StepConfig] = Field(default_factory=list)
    # pretrainings of each variant with consecutive seeds from `pretrain.seed`; with several, the
    # intervals of measurements, evaluations and claims cover the luck of pretraining
    pretraining_seeds: int = Field(default=1, ge=1)
    report: ReportConfig = ReportConfig()
    # by name: suites that every variant is measured by
    measure: dict[Name, SuiteConfig] = Field(default_factory=dict)
    compute: ComputeConfig = ComputeConfig()
    tracking: TrackingConfig = TrackingConfig()
    tasks: dict[Name, TaskEntry] = Field(default_factory=dict)
    # By name: what to compare, each as keys of this file with other values; {} is the file as it
    # is. The first is shown in full, and registered unless `evaluate.keep` names another.
    variants: dict[Name, dict[str, Any]] = Field(default_factory=lambda: {"pretrained": {}})
    # flops: give each variant the steps that cost as much compute as the first one's
    match_pretraining: Literal["steps", "flops"] = "steps"
    finetune: FinetuneConfig | None = None
    # train every rung of a ladder at shares of its budget, too; null: do not
    curve: CurveConfig | None = None
    search: SearchConfig | None = None  # search for pretraining settings; null: none
    sweep: SweepConfig | None = None  # search for fine-tuning settings; null: none
    evaluate: EvaluateConfig | None = None  # how variants are compared
    registry: RegistryConfig | None = None  # register models in MLflow; null: do not

    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)
    _searches: dict[str, Stage] = PrivateAttr(default_factory=dict)
    _gaps: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def raw(self) -> Mapping[str, Any]:
        """The data that this recipe was resolved from."""
        return self._raw

    @property
    def searches(self) -> Mapping[str, Stage]:
        """The records of the searches whose best values it has, by title."""
        return self._searches

    @property
    def gaps(self) -> Mapping[str, str]:
        """The tasks and rungs that are left out, in words, and why."""
        return self._gaps

    def with_gaps(
        self, tasks: Collection[str], rungs: Collection[str], gaps: Mapping[str, str]
    ) -> Recipe:
        """The same recipe without these tasks and variants, and without what only these have;
        `gaps` tells of them."""

        def keep(variants: Sequence[str] | None) -> list[str] | None:
            return None if variants is None else [each for each in variants if each not in rungs]

        entries = {
            name: entry.model_copy(update={"variants": keep(entry.variants)})
            for name, entry in self.tasks.items()
            if name not in tasks
        }
        # No variant at all would stand for every one.
        entries = {name: entry for name, entry in entries.items() if entry.variants != []}
        variants = {name: keys for name, keys in self.variants.items() if name not in rungs}
        recipe = self.model_copy(update={"tasks": entries, "variants": variants})
        if curve := self.curve:
            remaining = tuple(task for task in curve.tasks if task in entries)
            curve = curve.model_copy(update={"tasks": remaining})
            recipe = recipe.model_copy(update={"curve": curve})
        if evaluate := self.evaluate:
            picks: dict[str, Any] = {"budget_variants": keep(evaluate.budget_variants)}
            if picks["budget_variants"] == []:
                picks = {"budget_variants": None, "label_budgets": None}
            if evaluate.keep in rungs:
                picks["keep"] = None
            recipe = recipe.model_copy(update={"evaluate": evaluate.model_copy(update=picks)})
        recipe._gaps = dict(gaps)
        return recipe

    def with_searches(self, searches: Mapping[str, Stage]) -> Recipe:
        """The same recipe with the records of the searches that it comes from."""
        recipe = self.model_copy()
        recipe._searches = dict(searches)
        return recipe

    @model_validator(mode="wrap")
    @classmethod
    def _keep_raw(cls, data: Any, handler: ModelWrapValidatorHandler[Recipe]) -> Recipe:
        if not isinstance(data, dict):
            return handler(data)
        _refuse_credentials(to_jsonable_python(data))
        data = _with_initial(pin_all(data))
        if data.get("tasks"):
            data = {"finetune": {}, "evaluate": {}} | data
        recipe = handler(data)
        recipe._raw = to_jsonable_python(data)
        return recipe

    @field_validator("pretrain", mode="before")
    @classmethod
    def _of_the_kind_it_takes(cls, pretrain: Any, info: ValidationInfo) -> Any:
        return refuse_other_kind(pretrain, info.data.get("model"))

    @field_validator("pretrain", "steps", mode="after")
    @classmethod
    def _name_objectives(cls, value: Any, info: ValidationInfo) -> Any:
        """Give a pretraining without an objective the model's default."""
        model = info.data.get("model")
        if info.field_name == "pretrain":
            return _name_objective(value, model)
        return [
            step.model_copy(
                update={"pretrain": _name_objective(step.pretrain, step.model or model)}
            )
            for step in value
        ]

    @property
    def training_steps(self) -> list[StepConfig]:
        """Every step of training, with the recipe's blocks where it has none of its own."""
        common = {
            name: getattr(self, name) for name in ("corpus", "instances", "model", "pretrain")
        }
        steps = []
        for step in self.steps or [StepConfig()]:
            own = {name for name in common if getattr(step, name) is not None}
            if step.task_text is not None:
                own.add("corpus")
            missing = {name: block for name, block in common.items() if name not in own}
            steps.append(step.model_copy(update=missing))
        return steps

    @model_validator(mode="after")
    def _fits_together(self) -> Recipe:
        names = [step.name for step in self.steps]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"steps has {names.count(name)} steps of the name {name or 'null'}; give each "
                    "another name, by which its stages are told apart"
                )
        if self.steps and (self.steps[0].corpus or self.steps[0].task_text):
            raise ValueError(
                "steps.0 has a text of its own, and the first step reads that of the recipe, as "
                "the tokenizer does; set corpus of the recipe instead"
            )
        for number, step in enumerate(self.training_steps):
            if fault := step.explain_pairs():
                raise ValueError(f"steps.{number}: {fault}" if self.steps else fault)
        for task, entry in self.tasks.items():
            for name in entry.variants or []:
                if name not in self.variants:
                    raise ValueError(
                        f"tasks.{task}.variants names {name!r}, which variants lacks; it has: "
                        f"{', '.join(self.variants) or 'nothing'}"
                    )
        for task in self.curve.tasks if self.curve else ():
            if task not in self.tasks:
                raise ValueError(
                    f"curve.tasks names {task!r}, which tasks lacks; it has: "
                    f"{', '.join(self.tasks) or 'nothing'}"
                )
        return self

    def with_changes(self, changes: Mapping[str, Any], source: str) -> Recipe:
        """Resolve the raw data with some dotted keys changed. Raises ConfigError naming
        `source`."""
        return resolve(Recipe, self._raw, changes, source)

    def require(self, purpose: str, *blocks: str) -> None:
        """Raise ConfigError unless the recipe has all `blocks`; `purpose` says what needs them."""
        missing = [name for name in blocks if not getattr(self, name)]
        if missing:
            fits = "pretrain" if self.model and self.pretrain else "instances"
            less = f"; the workflow {fits} takes it as it is" if getattr(self, fits) else ""
            raise ConfigError(
                f"this workflow {purpose}, but {self.name} has no block {', '.join(missing)}{less}",
                {name: _SMALLEST[name] for name in missing},
            )

    def planned_vocab_size(self) -> int:
        """The upper limit of the vocabulary size. Raises UserError if the config does not give
        it."""
        size = getattr(self.tokenizer, "vocab_size", None)
        if size is None:
            raise UserError(
                "the size of the vocabulary is not in the config; build the tokenizer and the "
                "instances first (workflows/instances.py)"
            )
        return size

    def to_yaml(self) -> str:
        """Every key as YAML, defaults included."""
        return yaml.safe_dump(plain(self), allow_unicode=True, sort_keys=False)

    def to_record(self, root: str) -> dict[str, Any]:
        """Every key as plain data, with this root. What follows from a key
        that a variant or a sweep changes stays as it was in the raw data: the block of a `kind`,
        and the objectives of a model."""
        data = self.model_dump(mode="json")
        varying = {key for keys in self.variants.values() for key in keys}
        for block in (self.sweep, self.search):
            varying |= block.space.keys() if block else set()
        for block in sorted(key.removesuffix(".kind") for key in varying if key.endswith(".kind")):
            if find_value(data, block) is not None:
                data = with_overrides(data, {block: find_value(self._raw, block)}, Recipe)
        if {"model", "model.kind"} & varying:
            steps = zip(data["steps"], self._raw.get("steps", []), strict=True)
            for step, raw in [(data, self._raw), *steps]:
                if step["pretrain"] is not None:
                    step["pretrain"]["objective"] = raw["pretrain"].get("objective")
        return data | {"root": root}


def _name_objective(pretrain: Any, model: Any) -> Any:
    if model is None or pretrain is None or pretrain.objective is not None:
        return pretrain
    return with_objective(pretrain, model)


def _refuse_credentials(data: dict[str, Any]) -> None:
    """Raise ConfigError if a value holds a credential: records keep the recipe to the letter."""
    if credential := find_credential(data):
        key, kind = credential
        raise ConfigError(
            f"{key} holds {kind}, and a recipe is kept in every record; leave it out and give it "
            "in the environment: MLFLOW_TRACKING_URI for the tracking server, AWS_PROFILE or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3, HF_TOKEN for the hub"
        )


def _with_initial(data: dict[str, Any]) -> dict[str, Any]:
    """Fill in model and tokenizer from `pretrain.initial` where the data leave them out."""
    pretrain = data.get("pretrain")
    if not isinstance(pretrain, dict) or not isinstance(initial := pretrain.get("initial"), str):
        return data
    here = is_hub(initial) or Path(initial).is_dir()
    if not here and _HUB_NAME.fullmatch(initial):
        try:
            initial, here = pin(f"{SCHEME}{initial}"), True
        except UserError as error:
            raise ConfigError(
                f"pretrain.initial: there is no folder {initial!r} on this machine, and no such "
                f"model on the hub ({error})"
            ) from error
        data = data | {"pretrain": pretrain | {"initial": initial}}
    model, tokenizer = data.get("model") or {}, data.get("tokenizer") or {}
    if not isinstance(model, dict) or not isinstance(tokenizer, dict):
        return data
    if "kind" not in model:
        if not here:
            raise ConfigError(
                "pretrain.initial: expected a folder on this machine that save_pretrained of "
                f"transformers has written, or a model of the hub, ORG/NAME; found {initial!r}"
            )
        of_weights = load_config(initial).model_dump(mode="json")
        for key, value in model.items():
            if key in of_weights and key not in NOT_OF_WEIGHTS and value != of_weights[key]:
                raise ConfigError(
                    f"model.{key} is {value}, but the weights in pretrain.initial {initial} "
                    f"have {of_weights[key]}; leave it out"
                )
        model = of_weights | model
    if "kind" not in tokenizer:
        tokenizer = {"kind": "file", "path": initial} | tokenizer
    return data | {"model": model, "tokenizer": tokenizer}
