"""Check that each drawn value took effect: a sweep over a key that nothing reads looks normal.

Two checks: the resolved `finetune` block holds each value (`draws.resolve_settings`); what training
measured on the objects it built equals what was drawn (`check_applied`).
"""

import math
from collections.abc import Mapping
from typing import Any

from rungwise.core.errors import UserError
from rungwise.tuning.config import FINETUNE

_PREFIX = "effective/"  # of metrics that are measured settings, as in effective/learning_rate
_PRECISION = 1e-6  # relative; measured values may be float32


def split_metrics(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Separate metrics from measured settings, the latter by key of the `finetune` block."""
    measured = {k.removeprefix(_PREFIX): v for k, v in metrics.items() if k.startswith(_PREFIX)}
    return {k: v for k, v in metrics.items() if not k.startswith(_PREFIX)}, measured


def check_applied(trial: str, values: Mapping[str, Any], measured: Mapping[str, float]) -> None:
    """Raise UserError if a drawn value was not in force; unmeasured keys are not checked."""
    for key, value in values.items():
        block, _, name = key.partition(".")
        if block != FINETUNE or name not in measured or value is None:
            continue  # null defers to another key
        expected = 1.0 if isinstance(value, str) else value  # a string is measured as 1 if in force
        if not isinstance(expected, int | float) or not math.isclose(
            expected, measured[name], rel_tol=_PRECISION
        ):
            raise UserError(
                f"{trial}: {key} was drawn as {value!r}, but {measured[name]:g} was in force, so "
                "its score is not that of its settings; take the key out of sweep.space, or mend "
                "what it does not reach (a batch larger than the training split is cut to it; "
                "windows need texts longer than a row, class weights classes of unlike size; a "
                "stride is at most half a window)"
            )
