"""Averages of the weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rungwise.core.configuration.config import validate
from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact
from rungwise.training.config import GradientConfig
from tests.training_runs import (
    assert_same_rows_and_losses,
    checkpoints_in,
    config,
    run,
    together,
    weights,
)

LAST = {"steps": 6}


def averaged(average: dict[str, Any] | None, **changes: Any) -> Any:
    """A run whose weights are all near zero, where averages in float32 are exact to 1e-6."""
    zeros = {"pretrain.output_bias": "zeros"}
    return config(**{"pretrain.average": average, **zeros, **changes})


def of_every_step(output: Path) -> list[dict[str, np.ndarray]]:
    """The weights after each step, of a run that kept all its checkpoints."""
    files = checkpoints_in(output / "checkpoints")
    saved = [files.tensors(each) for each in files.finished()]
    names = [name for name in saved[0].tensors if name.startswith("model/")]
    return [
        {name.removeprefix("model/"): one.read(name).double().numpy() for name in names}
        for one in saved
    ]


def test_an_average_is_that_of_each_step_of_training(instances: Artifact, tmp_path: Path) -> None:
    progress = run(
        averaged(LAST), instances, tmp_path / "a", checkpoint_every_steps=1, keep_checkpoints=30
    )
    plain = run(averaged(None), instances, tmp_path / "plain")
    assert [row["loss"] for row in progress.history] == [row["loss"] for row in plain.history]
    rows = of_every_step(tmp_path / "a")
    assert len(rows) == 20
    left, raw = weights(tmp_path / "a"), weights(tmp_path / "plain")
    for name, expected in rows[-1].items():
        assert np.array_equal(expected, raw[name].double().numpy())
        expected = np.mean([row[name] for row in rows[-6:]], axis=0)
        assert np.abs(left[name].numpy() - expected).max() < 1e-6
    assert progress.validation[-1]["loss"] != plain.validation[-1]["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_workers_have_the_average_of_one_and_train_on_after_validation(
    instances: Artifact, tmp_path: Path, parallel: str
) -> None:
    """A sharded model must not go on with averages that validation has put together."""
    settings = averaged({"steps": 18}, **{"pretrain.validation_every_steps": 3})
    alone = run(settings, instances, tmp_path / "alone")
    progress = together(2, settings, instances, tmp_path / "two", parallel=parallel)
    assert progress is not None
    assert_same_rows_and_losses(alone, progress)
    left, other = weights(tmp_path / "alone"), weights(tmp_path / "two")
    for name, tensor in left.items():
        assert torch.allclose(tensor, other[name], atol=1e-5), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"average": LAST, "early_stop": {}}, "early_stop could end the run before them"),
        (
            {"optimizer": {"kind": "adamw", "schedule": {"warmup_steps": 21}}},
            "warmup_steps is 21, more than steps 20; set .*warmup_steps=2",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(GradientConfig, {"steps": 20, **changes})
