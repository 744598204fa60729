"""The kinds of tasks by name. What a kind answers is in kinds/kind.py; a new one adds its name."""

from collections.abc import Mapping

from rungwise.tasks.kinds.answers import Choice, Generation, Span
from rungwise.tasks.kinds.examples import Kind, TaskInfo
from rungwise.tasks.kinds.kind import Reading, TaskKind
from rungwise.tasks.kinds.labels import Classification, Multilabel, Regression, Tagging

_KINDS = (Classification, Multilabel, Regression, Tagging, Span, Choice, Generation)
KINDS: Mapping[Kind, type[TaskKind]] = {kind.name: kind for kind in _KINDS}


def task_kind(info: TaskInfo, reading: Reading | None = None) -> TaskKind:
    """Return what encodes, decodes and scores the task; without `reading`, in the usual way."""
    return KINDS[info.kind](info, reading)
