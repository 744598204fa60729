"""Did each drawn value take effect? A sweep over a key that nothing reads looks like any other.

Three checks: the resolved `finetune` block holds each value (`draws.settings_of`), the artifacts of
upstream values were made with them (`check_inputs`), and what the training measured of the objects
it built is what was drawn (`difference`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rungwise.core.artifact import Artifact
from rungwise.core.errors import UserError
from rungwise.core.title import Title
from rungwise.sweep.config import FINETUNE
from rungwise.sweep.space import holds, value_at

_READ = ("pretrain", "task", "tokenizer")  # by a trial
PREFIX = "effective/"  # of metrics that are measured settings: effective/learning_rate
_PRECISION = 1e-6  # relative; what was measured may have been a float32


def split_metrics(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics proper, and measured settings by key of the `finetune` block."""
    measured = {k.removeprefix(PREFIX): v for k, v in metrics.items() if k.startswith(PREFIX)}
    return {k: v for k, v in metrics.items() if not k.startswith(PREFIX)}, measured


def difference(
    trial: str, values: Mapping[str, Any], measured: Mapping[str, float]
) -> UserError | None:
    """An error if a drawn value was not in force, else None. Keys nobody measured are let pass."""
    for key, drawn in values.items():
        block, _, name = key.partition(".")
        if block != FINETUNE or name not in measured or drawn is None:
            continue  # null stands for what another key says
        value = measured[name]
        wanted = 1.0 if isinstance(drawn, str) else drawn  # of a word: whether it is in force
        if not isinstance(wanted, int | float) or not math.isclose(
            wanted, value, rel_tol=_PRECISION
        ):
            return UserError(
                f"{trial}: {key} was drawn as {drawn!r}, but {value:g} was in force, so its score "
                "is not that of its settings; take the key out of sweep.space, or mend what it "
                "does not reach (a batch larger than the training split is cut to it; windows need "
                "texts longer than a row, class weights classes of unlike size)"
            )
    return None


def inputs_of(inputs: Mapping[str, Artifact], upstream: int | None) -> dict[str, Artifact]:
    """The inputs of a trial: of those that are there once for each of the upstream values, the one
    with this number."""
    return {name: inputs.get(str(Title(name, number=upstream))) or inputs[name] for name in _READ}


def check_inputs(inputs: Mapping[str, Artifact], upstream: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError unless the artifacts of each set of upstream values were made with them.

    A key is looked up in the recorded config of the inputs; one of a block that none of them read
    itself, such as `corpus` or a pretraining that was gone on from, is in their lineage and is let
    pass.
    """
    for number, values in enumerate(upstream):
        for name, artifact in inputs_of(inputs, number).items():
            if _goes_on(artifact):
                continue
            config = artifact.record["config"]
            for key, value in values.items():
                block, _, rest = key.partition(".")
                if block in config:
                    built_with = _value(config, key)
                elif block == name:
                    built_with = _value(config, rest)
                else:
                    continue
                if not holds(built_with, value):
                    raise UserError(
                        f"upstream values {number} of the sweep have {key} {value!r}, but its "
                        f"{name} ({artifact.fingerprint}) was made with {built_with!r}"
                    )


def _goes_on(artifact: Artifact) -> bool:
    """Was it made of one of its own kind, as by pretraining further? Its config is then not that
    of the block of the recipe."""
    return any(source["stage"] == artifact.stage for source in artifact.record["inputs"].values())


def _value(config: Any, key: str) -> Any:
    try:
        return value_at(config, key)
    except (KeyError, IndexError, TypeError):
        return None
