"""The Ray task that runs a stage. Its process imports this module and that of the stage's function,
and nothing that only the driver needs."""

import os
import sys
from typing import Any

from rungwise.core.lazy import import_function
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.summary import Summary
from rungwise.core.storage.folder import Folder


def run_stage(
    function: Any, config: Any, inputs: dict[str, Artifact], output: Folder, context: Context
) -> Summary:
    function = import_function(function)
    # Ray puts the threads of the task's CPUs into the environment; PyTorch may have read those of
    # an earlier stage of this process.
    threads, torch = os.environ.get("OMP_NUM_THREADS"), sys.modules.get("torch")
    if threads and torch is not None:
        torch.set_num_threads(int(threads))
    context.report.began()
    try:
        return function(config, inputs, output, context)
    finally:
        context.report.flush()
