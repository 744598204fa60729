"""The benchmark of suggested settings learns for the seconds that it is given."""

import math
from pathlib import Path

import pytest

from benchmarks.tuning import train_network
from rungwise.models.family import Size
from rungwise.pipeline.experiment import change_recipe
from rungwise.pipeline.workflow import load_recipe
from tests.training_runs import LENGTH, VOCAB, make_instances


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_a_network_learns_for_the_seconds_with_its_setting(tmp_path: Path, kind: str) -> None:
    rows, changes = make_instances(tmp_path, "causal"), {"pretrain.global_batch_size": 4}
    rung = change_recipe(load_recipe("ladder-quick"), kind)
    result = train_network(rung, rows, Size(1, 1, seconds=0.2), changes, seed=0)
    assert result["seconds"] >= 0.2
    assert result["keys"]["pretrain.global_batch_size"] == 4
    assert 0 < result["tokens"] <= 4 * LENGTH * result["steps"]
    assert 0 < result["loss"] < 1.1 * math.log(VOCAB)
