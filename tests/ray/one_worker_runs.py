"""Small runs of every family on one worker, here or in a worker group."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context, Reporter, SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.models.family import Family
from rungwise.training.config import GradientFit
from rungwise.training.fit_config import PretrainStageConfig, fitting_kind, require_gradient
from rungwise.training.ray import gradient
from rungwise.training.ray.resume_proof import StepFile
from tests.conftest import find_port
from tests.training_runs import Killed, config
from tests.unit.models.test_families import FAMILIES

STEPS = 8
COMPUTE = ComputeConfig(num_workers=1, micro_batch_size=4, checkpoint_every_steps=3, max_failures=0)
SMALL: dict[str, Any] = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "embedding_size": 8,
    "window": 5,
    "dropout": 0.1,
}
Runs = dict[str, tuple[GradientFit, Artifact]]


def families() -> Iterator[type[Family]]:
    """Those that are fitted by gradient."""
    for family in FAMILIES:
        if fitting_kind(family(kind=family.model_fields["kind"].default)) == "gradient":
            yield family


def small(family: type[Family]) -> GradientFit:
    own = {key: value for key, value in SMALL.items() if key in family.model_fields}
    pretrain = config().pretrain.model_dump(mode="json") | {
        "objective": None,
        "steps": STEPS,
        "validation_instances": 8,
    }
    model = {"kind": family.model_fields["kind"].default, **own}
    stage = validate(PretrainStageConfig, {"model": model, "pretrain": pretrain})
    return require_gradient(stage, "steps")


def train_here(
    runs: Runs, folder: Path, report: Reporter | None = None, is_worker: bool = False
) -> None:
    """Train each run in this process, from its last checkpoint if there is one."""
    for name, (settings, rows) in runs.items():
        context = Context(COMPUTE, report or SilentReporter(), trains_here=not is_worker)
        inputs, output = {"instances": rows}, Folder.at(folder / name)
        try:
            if is_worker:
                plan = gradient.plan_run(settings, inputs, output, COMPUTE)
                gradient._train(settings, plan, context, lambda group: lambda: False)
            else:
                gradient.pretrain_by_gradient(settings, inputs, output, context)
        except Killed:
            assert report is not None


def train_in_a_group(runs: Runs, *folders: tuple[Path, Reporter | None]) -> None:
    """Train each run in these folders in a process of Ray, as a worker group of one."""
    group = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
    group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": find_port()}

    def work() -> None:
        assert torch.distributed.is_initialized()
        for folder, report in folders:
            train_here(runs, folder, report, is_worker=True)

    def join() -> None:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in group.items():
                patch.setenv(name, str(value))
            TorchTrainer(work, scaling_config=ScalingConfig(num_workers=0)).fit()

    ray.get(ray.remote(num_cpus=1)(join).remote())


def train_watched(settings: GradientFit, rows: Artifact, output: str, steps: str) -> None:
    """Train to the end; the file `steps` has the last step."""
    context = Context(COMPUTE, StepFile(Path(steps), None), trains_here=True)
    gradient.pretrain_by_gradient(settings, {"instances": rows}, Folder.at(output), context)
