"""The Ray task that runs a stage. Its process imports this module and that of the stage's function,
and nothing that only the driver needs."""

import os
import sys
from typing import Any

from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.stage import imported
from rungwise.core.stages.summary import Summary
from rungwise.core.storage.folder import Folder


def run_stage(
    function: Any, config: Any, inputs: dict[str, Artifact], output: Folder, context: Context
) -> Summary:
    function = imported(function)
    _reset_threads()
    context.report.began()
    try:
        return function(config, inputs, output, context)
    finally:
        context.report.flush()


def _reset_threads() -> None:
    """Give PyTorch the threads of this task's CPUs, which Ray puts into the environment. PyTorch
    read those of an earlier stage if this process has run one."""
    threads, torch = os.environ.get("OMP_NUM_THREADS"), sys.modules.get("torch")
    if threads and torch is not None:
        torch.set_num_threads(int(threads))
