"""Continued pretraining as stages: each step starts from earlier weights and reads other text.

    general ──> domain ──> task-adaptive ──> fine-tune
    pretrain    corpus     task_text

Howard & Ruder 2018 (arXiv:1801.06146) continued from general text to the task's; Gururangan et al.
2020 (arXiv:2004.10964) put the domain between them. A workflow may take any number of steps:

    general = pretrain_stages(recipe)
    domain = continued_stages(first, "domain", general)
    adapted = continued_stages(second, "task", general | domain, task)
    stages = [*general.values(), *domain.values(), task, *adapted.values()]

All steps keep the tokenizer and the model of the first pretraining.
"""

from collections.abc import Mapping
from typing import Self

from pydantic import model_validator

from rungwise.core.configuration.config import Config
from rungwise.core.errors import ConfigError
from rungwise.core.stages.stage import Stage
from rungwise.core.stages.title import Title
from rungwise.corpus.config import CorpusConfig
from rungwise.corpus.summary import CORPUS
from rungwise.instances.kinds import InstancesConfig
from rungwise.instances.summary import INSTANCES
from rungwise.pretraining.config import PretrainConfig, PretrainStageConfig
from rungwise.pretraining.initial import INITIAL
from rungwise.pretraining.stage import PRETRAIN
from rungwise.tasks.config import FilesTaskConfig
from rungwise.tasks.stage import TASK, TASK_TEXT, TaskTextConfig
from rungwise.tokens.summary import TOKENS
from rungwise.training.config import GradientConfig


class ContinuedConfig(Config):
    """One step: its text, which is a corpus or that of a task, and how to train on it."""

    corpus: CorpusConfig | None = None  # text to read; null: that of a task
    # task whose text `task_text` reads; null: each of the recipe's
    task: FilesTaskConfig | None = None
    task_text: TaskTextConfig | None = None  # read the text of a task; null: that of `corpus`
    instances: InstancesConfig
    pretrain: PretrainConfig

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.pretrain, GradientConfig) and self.pretrain.initial is not None:
            raise ValueError(
                "a continued step begins with the weights of the run before it; set "
                "pretrain.initial of the recipe, not of the step"
            )
        if (self.corpus is None) == (self.task_text is None):
            raise ValueError(
                "a continued step reads either corpus or task_text, found "
                f"{'neither' if self.corpus is None else 'both'}; give one of them"
            )
        if self.task is not None and self.task_text is None:
            raise ValueError("a continued step with a task reads its text; give it task_text: {}")
        if self.instances.labelled:
            raise ValueError(
                "a continued step reads text without labels; take instances of another kind than "
                "labelled_pairs or aligned_lines"
            )
        if getattr(self.pretrain, "mixture", {}):
            raise ValueError("a continued step trains on one objective; leave out pretrain.mixture")
        if self.pretrain.reads_longer:
            raise ValueError(
                "a continued step has no longer_instances; set pretrain.longer_share to null, or "
                "take two steps"
            )
        return self


def continued_stages(
    config: ContinuedConfig, name: str, before: Mapping[str, Stage], task: Stage | None = None
) -> dict[str, Stage]:
    """The stages of the step `name`, inputs first: "task" if the step has its own, "corpus",
    "tokens", "instances" and "pretrain".

    `before` holds "tokenizer" and the "pretrain" to start from. `task` is the task whose text a
    step with `task_text` reads; raises ConfigError if that is missing.
    """
    corpus = _text(config, name, task)
    inputs = {"corpus": corpus, "tokenizer": before["tokenizer"]}
    tokens = TOKENS.stage(config.instances.tokens, inputs, Title("tokens", step=name))
    instances = INSTANCES.stage(config.instances, {"tokens": tokens}, Title("instances", step=name))
    first = before["pretrain"].config
    assert isinstance(first, PretrainStageConfig), "pretrain is the stage of pretraining"
    pretrain = PRETRAIN.stage(
        PretrainStageConfig(model=first.model, pretrain=config.pretrain),
        {"instances": instances, INITIAL: before["pretrain"]},
        Title("pretrain", step=name),
    )
    stages = {"corpus": corpus, "tokens": tokens, "instances": instances, "pretrain": pretrain}
    return stages if config.task is None else {"task": corpus.inputs["task"], **stages}


def _text(config: ContinuedConfig, name: str, task: Stage | None) -> Stage:
    if config.corpus is not None:
        return CORPUS.stage(config.corpus, title=Title("corpus", step=name))
    assert config.task_text is not None
    if config.task is not None:
        task = TASK.stage(config.task, title=Title("task", step=name))
    if task is None:
        raise ConfigError(
            f"the continued step {name} reads the text of a task, but this workflow has none; give "
            "it a task or a corpus"
        )
    return TASK_TEXT.stage(config.task_text, {"task": task}, Title("task_text", step=name))
