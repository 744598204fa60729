"""The Ray task that runs a stage. Its process imports this module and that of the stage's function,
and nothing that only the driver needs."""

from __future__ import annotations

from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.summary import Summary
from rungwise.core.storage.folder import Folder


def run_stage(
    function: Any, config: Any, inputs: dict[str, Artifact], output: Folder, context: Context
) -> Summary:
    try:
        return function(config, inputs, output, context)
    finally:
        context.report.flush()
