"""What a run counts on where Ray's autoscaler may add machines."""

import json
from pathlib import Path
from typing import Any

import pytest
import ray

from rungwise.cluster import expected_nodes
from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.sweep.tune import count_concurrent

GPU = {"CPU": 8, "GPU": 4}


def head(tmp_path: Path, **changes: Any) -> Path:
    machine = {
        "role": "head",
        "cluster": "test",
        "region": "eu-central-1",
        "token_secret": "arn:aws:secretsmanager:eu-central-1:0:secret:token",
        "scaling": {
            "groups": {"gpu": {"autoscaling_group": "test-gpu", "maximum": 3, "resources": GPU}}
        },
    }
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(machine | changes))
    return path


def alive(*groups: str) -> list[dict[str, Any]]:
    nodes = [{"Alive": True, "Labels": {}, "Resources": {"CPU": 2.0}}]
    for group in groups:
        nodes.append(
            {"Alive": True, "Labels": {"ray.io/node-group": group}, "Resources": dict(GPU)}
        )
    nodes.append({"Alive": False, "Labels": {"ray.io/node-group": "gpu"}, "Resources": dict(GPU)})
    return nodes


@pytest.mark.parametrize("running", [0, 1, 3])
def test_a_machine_counts_once_whether_it_is_there_or_still_to_come(
    running: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(expected_nodes.MACHINE_VARIABLE, str(head(tmp_path)))
    for name, value in expected_nodes.scaling_variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ray, "nodes", lambda: alive(*["gpu"] * running))
    nodes = expected_nodes.list_nodes()
    assert nodes == [{"CPU": 2.0}, *[GPU] * 3]
    # Three machines of four GPUs and eight CPUs: twelve trials of a GPU each.
    compute = ComputeConfig(max_concurrent_trials=100, cpus_per_trial=1, gpus_per_trial=1)
    assert count_concurrent(compute, nodes) == 12


def test_where_nothing_scales_only_living_nodes_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = head(tmp_path, role="worker", scaling=None, head_address="head.test.internal")
    for file in (worker, tmp_path / "absent.json"):
        monkeypatch.setenv(expected_nodes.MACHINE_VARIABLE, str(file))
        assert expected_nodes.scaling_variables() == {}
    monkeypatch.setattr(ray, "nodes", alive)
    assert expected_nodes.list_nodes() == [{"CPU": 2.0}]
    with pytest.raises(UserError, match="lower compute"):
        count_concurrent(ComputeConfig(gpus_per_trial=1), expected_nodes.list_nodes())
