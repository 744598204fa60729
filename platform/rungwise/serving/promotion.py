"""Who has an alias: through a gate, and back.

A version gets the alias if what it rests on is as it was written, what is served is the file that
was evaluated and answers as it did, and it is not worse than the holder on the same test examples:
the 95 % interval of the difference must reach 0. Who had the alias before is a tag of the version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rungwise.core.artifact import Artifact, chain, find_input
from rungwise.core.errors import DataError, UserError
from rungwise.core.storage import Folder
from rungwise.evaluation import predictions
from rungwise.evaluation.statistics import Difference, paired_bootstrap
from rungwise.serving.predictor import FILES, Predictor
from rungwise.tasks import metrics
from rungwise.tasks.examples import TaskSummary, read

_ASKED = 64  # test examples, of the served model
_TOLERANCE = 1e-4  # of a number that it says, in other batches than before


def faults(evaluated: Artifact, served: Folder) -> list[str]:
    """What speaks against a version whose files are in `served`, a line each."""
    found: list[str] = []
    for artifact in chain(evaluated):
        try:
            artifact.verify()
        except DataError as error:
            found.append(str(error))
    for name in FILES:
        if served.sha256(name) != evaluated.record["files"][name]["sha256"]:
            found.append(f"the registry's {name} is not that of {evaluated.folder.uri}")
    return found or _other_answers(evaluated, Predictor.load(served))


def _other_answers(evaluated: Artifact, predictor: Predictor) -> list[str]:
    examples = read(find_input(evaluated, "task"), "test")[:_ASKED]
    name = predictions.PREDICTED[predictor.info.kind]
    rows = predictions.of_chosen(evaluated)
    return [
        f"{example.where}: the served model says {said[name]!r}, the artifact {row['prediction']!r}"
        for example, said, row in zip(examples, predictor(examples), rows, strict=False)
        if not _same(said[name], row["prediction"])
    ][:1]


def _same(said: Any, before: Any) -> bool:
    if isinstance(said, float):
        return bool(np.isclose(said, before, rtol=_TOLERANCE, atol=_TOLERANCE))
    return said == before


def compared(first: Artifact, second: Artifact) -> Difference:
    """The first evaluation's model minus the second's in the metric, over the same test examples.

    Raises DataError if they were not asked the same task.
    """
    tasks = [find_input(each, "task") for each in (first, second)]
    if tasks[0].digest != tasks[1].digest:
        raise DataError(
            f"the holder answered the task {tasks[1].fingerprint}, this version "
            f"{tasks[0].fingerprint}: no test example is known to be common; evaluate both on one"
        )
    info = TaskSummary.of(tasks[0]).info
    sums = [predictions.sums_of_chosen(each, tasks[0]) for each in (first, second)]
    return paired_bootstrap(
        *sums, value=lambda totals: metrics.value(np.asarray(totals, np.float64), info), seed=0
    )


def holder(client: Any, name: str, alias: str) -> str | None:
    """The version that has the alias."""
    aliases: Mapping[str, Any] = client.get_registered_model(name).aliases
    return None if (number := aliases.get(alias)) is None else str(number)


def give(client: Any, name: str, alias: str, number: str) -> None:
    """Give the alias to a version, and note who had it."""
    before = holder(client, name, alias)
    if before not in (None, number):
        client.set_model_version_tag(name, number, _before(alias), before)
    client.set_registered_model_alias(name, alias, number)


def give_back(client: Any, name: str, alias: str) -> str:
    """Give the alias to the version that had it before, and say which. Raises UserError where none
    had it."""
    now = holder(client, name, alias)
    tags = {} if now is None else client.get_model_version(name, now).tags
    if (before := tags.get(_before(alias))) is None:
        raise UserError(
            f"{name}: no version had the alias {alias} before {now}; nothing is changed"
        )
    client.set_registered_model_alias(name, alias, before)
    return before


def _before(alias: str) -> str:
    return f"rungwise.before.{alias}"
