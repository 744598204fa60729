"""The stages of tasks, for planning; each LazyFunction names the function that builds."""

from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.core.stages.stage import LazyFunction, StageType
from rungwise.corpus.summary import CorpusSummary
from rungwise.tasks.config import identity, input_digests
from rungwise.tasks.kinds.examples import TaskSummary
from rungwise.tokenizer.token_stage import TokensSummary

TASK = StageType(
    "task",
    11,
    LazyFunction("rungwise.tasks.building:build_task"),
    TaskSummary,
    identity=identity,
    outside=input_digests,
)


class TaskTextConfig(Config):
    """Which training text of a task to read. Labels only select examples; they are not text."""

    # keep examples with these labels, as pairs that people judged alike; null: all
    labels: tuple[str, ...] | None = Field(default=None, min_length=1)
    # share held out to measure the loss on
    held_out_fraction: float = Field(default=0.1, gt=0, lt=1)
    seed: int = Field(default=0, ge=0)


TASK_TEXT = StageType(
    "task_text", 7, LazyFunction("rungwise.tasks.data.task_text:build_task_text"), CorpusSummary
)


class TaskTokensConfig(Config):
    """Empty: the task and the tokenizer decide everything."""


TASK_TOKENS = StageType(
    "task_tokens", 4, LazyFunction("rungwise.tasks.data.task_text:encode_pairs"), TokensSummary
)
