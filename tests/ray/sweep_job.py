"""A workflow with a toy sweep, as a command that tests kill: `sweep_job.py FOLDER ROOT CPUS SWEEP`.

SWEEP is the sweep block as JSON. Artifacts go to ROOT; FOLDER gets MLflow's database and `starts`
with a file for each start of a trial.
"""

import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from rungwise.cluster.environment import set_environment
from rungwise.cluster.session import session
from rungwise.core.configuration.config import Config
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages.artifact import Artifact, Summary
from rungwise.core.stages.stage import Context, Stage, StageType
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.tracker import Tracker
from rungwise.pipeline import runner
from rungwise.tuning.running import run_sweep
from rungwise.tuning.trials import SWEEP
from tests.toy_sweeps import inputs, stage_config, toy

EPOCH_SECONDS = 0.15


class Nothing(Config):
    """The config of stages that only stand there."""


def stand(
    summary: Summary, config: Nothing, inputs: dict[str, Artifact], output: Folder, context: Context
) -> Summary:
    """An artifact that is its summary."""
    return summary


def stages(folder: Path, block: dict[str, Any]) -> list[Stage]:
    def standing(name: str, summary: Summary) -> Stage:
        # Not by the stage's own name: the page of the run would look for what that has measured.
        made = functools.partial(stand, summary)
        return StageType(f"toy-{name}", 1, made, type(summary)).stage(Nothing())

    before = {
        name: standing(name, summary)
        for name, artifact in inputs(folder).items()
        for summary in artifact.parsed.values()
    }
    train = toy(folder / "starts", EPOCH_SECONDS)
    sweep = dataclasses.replace(SWEEP, run=functools.partial(run_sweep, train=train))
    swept = sweep.stage(stage_config({"epochs": 4}, **block), before)
    return [*before.values(), swept]


def main(folder: Path, root: str, cpus: int, block: dict[str, Any]) -> None:
    compute = ComputeConfig(max_concurrent_trials=2, object_store_megabytes=100)
    with session(compute, num_cpus=cpus):
        runner.run(
            stages(folder, block),
            Folder.at(root),
            "toy",
            compute,
            lambda _: Tracker(f"sqlite:///{folder}/mlflow.db", "toy", folder / "spool"),
            Console(),
        )


if __name__ == "__main__":
    set_environment()
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
