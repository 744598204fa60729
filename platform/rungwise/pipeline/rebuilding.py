"""Rebuild an artifact and all its inputs from their records alone, and compare their files."""

import fnmatch
import typing
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rungwise.core.configuration.canonical import flatten
from rungwise.core.errors import DataError
from rungwise.core.lazy import import_function
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Stage, StageType, Title
from rungwise.corpus.summary import CORPUS
from rungwise.evaluation.comparison.claims import CLAIMS
from rungwise.evaluation.comparison.summary import EVALUATE
from rungwise.evaluation.comparison.table import TABLE
from rungwise.evaluation.suites.measure import MEASURE
from rungwise.instances.summary import INSTANCES, LONGER_INSTANCES
from rungwise.report.stage import LADDER, REPORT
from rungwise.serving.importing import INITIAL_WEIGHTS
from rungwise.tasks.config import TASK, TASK_TEXT, TASK_TOKENS
from rungwise.tokenizer.token_stage import TOKENIZER, TOKENS
from rungwise.training.fit_config import PRETRAIN
from rungwise.tuning.record import SWEEP

_TYPES: dict[str, StageType[Any, Any]] = {
    each.name: each
    for each in (
        *(CORPUS, TOKENIZER, TOKENS, INSTANCES, LONGER_INSTANCES, INITIAL_WEIGHTS, PRETRAIN),
        *(TASK, TASK_TEXT, TASK_TOKENS, SWEEP, EVALUATE, MEASURE, TABLE, CLAIMS, REPORT, LADDER),
    )
}
# Files with times or speeds in them, or named after an attempt.
_OF_THE_RUN = {
    PRETRAIN.name: "checkpoints/*",
    **{kind.name: "*" for kind in (SWEEP, REPORT, LADDER)},
}


@dataclass(frozen=True)
class Compared:
    """How many files of an artifact were compared with the rebuilt ones, and which differ. Files
    that contain times are left out; files derived from them, such as a model, are compared."""

    compared: int
    different: tuple[str, ...]


def restore_stages(chain: Sequence[Artifact]) -> list[Stage]:
    """The stages that built `chain` (inputs first), with the sources as they are now. Raises
    DataError naming what differs from the records: a changed source, or a stage version or key that
    this package no longer has."""
    names = Counter(each.stage for each in chain)
    stages: dict[str, Stage] = {}
    for artifact in chain:
        if artifact.stage not in _TYPES:
            raise DataError(
                f"{artifact.folder.uri} records what is in MLflow and cannot be built again; give "
                "the evaluation whose model was registered"
            )
        record, kind = artifact.record, _TYPES[artifact.stage]
        adapter = TypeAdapter[Any](typing.get_type_hints(import_function(kind.run))["config"])
        try:
            config = adapter.validate_python(record["config"])
        except ValidationError as error:
            raise DataError(
                f"{artifact.folder.uri} was built with keys that this version lacks: {error}"
            ) from error
        inputs = {name: stages[of["fingerprint"]] for name, of in record["inputs"].items()}
        step = artifact.fingerprint if names[artifact.stage] > 1 else None
        stage = kind.stage(config, inputs, Title(artifact.stage, step=step))
        if stage.fingerprint != artifact.fingerprint:
            before, now = flatten(record["facts"]), flatten(stage.facts)
            keys = [key for key in sorted(before | now) if before.get(key) != now.get(key)]
            raise DataError(
                f"{artifact.stage} {artifact.fingerprint} cannot be built again, because "
                + "; ".join(f"{key} was {before.get(key)}, is {now.get(key)}" for key in keys)
            )
        stages[artifact.fingerprint] = stage
    return list(stages.values())


def compare(before: Artifact, after: Artifact) -> Compared:
    """Compare two artifacts of one stage by the hashes in their records."""
    old, new = (
        {name: file["sha256"] for name, file in each.record["files"].items()}
        for each in (before, after)
    )
    left_out = _OF_THE_RUN.get(before.stage, "")
    names = [name for name in sorted(old | new) if not fnmatch.fnmatch(name, left_out)]
    return Compared(len(names), tuple(name for name in names if old.get(name) != new.get(name)))
