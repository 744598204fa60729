"""Pretraining on several nodes, and the proof that a run resumes exactly."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from rungwise.core.artifact import Artifact, finish
from rungwise.core.context import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.core.storage import Folder
from rungwise.instances.summary import InstancesSummary
from rungwise.pretraining.resume_proof import prove_resume, second_epoch
from rungwise.training.progress import Progress
from tests.faults.raylets import Raylets, own_interfaces, raylets
from tests.faults.training_job import job
from tests.training_runs import config, make_instances, run

ADDRESSES = ("127.0.0.2", "127.0.0.3")


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return made(tmp_path_factory.mktemp("instances"), "masked_pairs")


def made(folder: Path, kind: str) -> Artifact:
    """Finished instances, which another process can load."""
    found = make_instances(folder, kind)
    record = {"stage": "instances", "fingerprint": found.fingerprint, **found.record}
    return finish(found.folder, record, {})


@pytest.fixture(scope="module")
def alone(instances: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Progress:
    """The run on one worker in this process."""
    return run(config(), instances, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def own_addresses() -> Iterator[bool]:
    with own_interfaces(*ADDRESSES) as made:
        yield made


@pytest.fixture(scope="module")
def two_nodes(own_addresses: bool) -> Iterator[Raylets]:
    with raylets(*ADDRESSES) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize(
    "compute",
    [
        {"num_workers": 2},
        {"num_workers": 2, "parallel": "fsdp"},
        {"num_workers": 4, "parallel": "hybrid", "shard_workers": 2, "cpus_per_worker": 0.5},
    ],
    ids=["ddp", "fsdp", "hybrid"],
)
def test_workers_on_nodes_with_other_addresses_end_as_one_process(
    instances: Artifact,
    alone: Progress,
    tmp_path: Path,
    two_nodes: Raylets,
    own_addresses: bool,
    compute: dict[str, Any],
) -> None:
    with job(tmp_path, config(), instances, two_nodes.environment, compute) as started:
        summary = started.summary()
        workers = started.workers()
    assert summary.gradient
    assert [worker["rank"] for worker in workers] == list(range(compute["num_workers"]))
    assert {worker["node"] for worker in workers} == set(ADDRESSES)
    assert workers[0]["master"].startswith(f"{workers[0]['node']}:")
    if own_addresses:
        # Else gloo has the one address on both nodes that the loopback interface lists.
        for worker in workers:
            assert worker["interface"] == f"lo:rw{ADDRESSES.index(worker['node'])}"
            assert all(place.startswith(f"{worker['node']}:") for place in gloo_at(worker))
        for one, other in itertools.combinations(workers, 2):
            met = {called for _, called in one["connections"] + other["connections"]}
            assert met & (gloo_at(one) | gloo_at(other))
    assert [list(row) for row in summary.gradient.data] == alone.data
    for mine, theirs in zip(summary.gradient.history, alone.history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    for mine, theirs in zip(summary.gradient.validation, alone.validation, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)


def gloo_at(worker: dict[str, Any]) -> set[str]:
    """Where a worker's gloo listens, once a group; Ray and PyTorch's store listen everywhere."""
    found = {address for address in worker["listens"] if not address.startswith("::")}
    assert found
    return found


@pytest.mark.slow
def test_what_only_the_user_can_mend_is_not_tried_again(
    instances: Artifact, tmp_path: Path
) -> None:
    """Two workers, four attempts allowed: one learns that the loss is not finite, all end."""
    changes = {"pretrain.optimizer.learning_rate": 1e30, "pretrain.max_skipped_steps": 0}
    with job(tmp_path / "broken", config(**changes), instances) as started:
        assert started.process.wait(280) == 1
        last = started.errors().strip().splitlines()[-1]
    assert last.startswith("rungwise.core.errors.UserError: the ")
    assert "not finite at step" in last
    assert not (tmp_path / "broken" / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "parallel", "after"), [("masked_pairs", "ddp", 1), ("causal", "fsdp", 3)]
)
def test_prove_resume_gives_a_certificate(
    tmp_path: Path, kind: str, parallel: Literal["ddp", "fsdp"], after: int
) -> None:
    instances = made(tmp_path / "instances", kind)
    count = InstancesSummary.of(instances).instances.train
    settings = config(kind, **{"pretrain.steps": count // 12 * 2 + 5})
    compute = ComputeConfig(
        num_workers=2,
        cpus_per_worker=0.5,
        micro_batch_size=6,
        object_store_megabytes=100,
        parallel=parallel,
    )
    place = tmp_path / "proof"
    found = prove_resume(
        settings, {"instances": instances}, compute, Folder.at(place), after, seed=3
    )
    steps = list(range(1, settings.pretrain.steps + 1))
    assert found == json.loads((place / "resume-certificate.json").read_text())
    assert found["verdict"] == "same"
    assert found["same_instances_at_every_step"]
    assert found["largest_relative_loss_difference"] <= 1e-5
    assert found["workers"] == {"undisturbed": 2, "until_the_kill": 2, "after_it": after}
    assert count < 12 * found["killed_at_step"] <= 2 * count
    assert 0 < found["resumed_at_step"] <= found["killed_at_step"]
    assert [row[0] for row in found["data_hash_by_step"]] == steps
    assert all(one == other for _, one, other in found["data_hash_by_step"])
    differences = [abs(one - other) / one for _, one, other in found["loss_by_step"]]
    assert max(differences) == found["largest_relative_loss_difference"]
    assert [path.name for path in place.iterdir()] == ["resume-certificate.json"]


def test_a_run_that_does_not_reach_its_second_epoch_proves_nothing(instances: Artifact) -> None:
    with pytest.raises(UserError, match=r"pretrain\.steps is 3, which reads 0\.\d+ epochs"):
        second_epoch(config(**{"pretrain.steps": 3}), instances)
