"""A step of training: what it reads, from which weights, with which objective, for how long.

    {}                       the recipe's own text, instances, model and settings
    - {}                     general text
    - name: domain           then text of the domain, with settings of its own
      corpus: ...
      pretrain: ...

Howard & Ruder 2018 (arXiv:1801.06146) continued from general text to the task's; Gururangan et al.
2020 (arXiv:2004.10964) put the domain between them. A step may also be of another model: word
vectors, on which the next one is made.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from rungwise.core.configuration.config import Config
from rungwise.corpus.config import CorpusConfig
from rungwise.instances.summary import InstancesConfig
from rungwise.models.config import ModelConfig
from rungwise.tasks.config import FilesTaskConfig
from rungwise.tasks.stage import TaskTextConfig
from rungwise.training.fit_config import PretrainConfig

# Letters of any script; used in the names of folders, runs and metrics.
Name = Annotated[str, Field(pattern=r"^[^\W_][\w.-]*$")]


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
