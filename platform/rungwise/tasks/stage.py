"""The stages of tasks, for planning; each LazyFunction names the function that builds."""

from typing import Any

from pydantic import Field

from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.configuration.config import Config
from rungwise.core.lazy import LazyFunction
from rungwise.core.recent import Recent
from rungwise.core.stages.stage import StageType
from rungwise.corpus.summary import CorpusSummary
from rungwise.tasks.config import (
    FilesTaskConfig,
    MadeTaskConfig,
    ParagraphTaskConfig,
    identity,
    input_digests,
)
from rungwise.tasks.data.files import check_first_examples
from rungwise.tasks.kinds.examples import TaskSummary
from rungwise.tokenizer.token_stage import TokensSummary

_CHECKED = Recent[None](64)


def _digest_readable(
    config: ParagraphTaskConfig | MadeTaskConfig | FilesTaskConfig,
) -> dict[str, Any]:
    """`input_digests`, of files whose first examples can be read: a plan names a wrong column. {}
    if the task reads none."""
    if not isinstance(config, FilesTaskConfig):
        return {}
    digests = input_digests(config)
    # A plan has several tasks of the same files: other numbers of labels, other seeds.
    formats = {split: config.split_format(split) for split in digests}
    _CHECKED.get(fingerprint([formats, digests]), lambda: check_first_examples(config))
    return digests


TASK = StageType(
    "task",
    10,
    LazyFunction("rungwise.tasks.building:build_task"),
    TaskSummary,
    identity=identity,
    outside=_digest_readable,
)


class TaskTextConfig(Config):
    """Which training text of a task to read. Labels only select examples; they are not text.

    `labels` and `minimum_score` keep the pairs that people judged alike, for objectives that learn
    from such pairs.
    """

    # keep examples with these labels; null: all
    labels: tuple[str, ...] | None = Field(default=None, min_length=1)
    minimum_score: float | None = None  # keep examples with at least this score; null: all
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
