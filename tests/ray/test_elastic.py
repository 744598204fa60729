"""Pretraining on several nodes, and the proof that a run resumes exactly."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.instances.summary import InstancesSummary
from rungwise.training.ray import resume_proof
from rungwise.training.ray.resume_proof import Certificate, ProofJob, kill_steps, prove_resume
from rungwise.training.summary import Attempt, GradientRun, PretrainSummary
from rungwise.training.throughput import Progress
from tests.faults.raylets import Raylets, own_interfaces, raylets
from tests.faults.test_training_machines import assert_losses_of
from tests.faults.training_job import job
from tests.training_runs import config, finished_instances, run

ADDRESSES = ("127.0.0.2", "127.0.0.3")


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return finished_instances(tmp_path_factory.mktemp("instances"))


@pytest.fixture(scope="module")
def alone(instances: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Progress:
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
    "compute", [{"num_workers": 2}, {"num_workers": 2, "parallel": "fsdp"}], ids=["ddp", "fsdp"]
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
    assert_losses_of(summary, alone)


def gloo_at(worker: dict[str, Any]) -> set[str]:
    """Where a worker's gloo listens, once a group; Ray and PyTorch's store listen everywhere."""
    found = {address for address in worker["listens"] if not address.startswith("::")}
    assert found
    return found


@pytest.mark.slow
def test_what_a_user_must_mend_is_not_tried_again(instances: Artifact, tmp_path: Path) -> None:
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
    instances = finished_instances(tmp_path / "instances", kind)
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
    saved = (place / "resume-certificate.json").read_text()
    assert found == Certificate.model_validate_json(saved)
    assert found.verdict == "same"
    assert found.same_instances_at_every_step
    assert found.largest_relative_loss_difference <= 1e-5
    assert found.workers == {"undisturbed": 2, "until_the_kill": 2, "after_it": after}
    assert count < 12 * found.killed_at_step <= 2 * count
    assert found.kill_drawn_from.part == "the second epoch"
    assert found.steps_after_the_kill == len(steps) - found.killed_at_step >= len(steps) / 10
    assert 0 < found.resumed_at_step <= found.killed_at_step
    assert [row[0] for row in found.data_hash_by_step] == steps
    assert all(one == other for _, one, other in found.data_hash_by_step)
    differences = [abs(one - other) / one for _, one, other in found.loss_by_step]
    assert max(differences) == found.largest_relative_loss_difference
    assert [path.name for path in place.iterdir()] == ["resume-certificate.json"]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (2, ("a run of 0.10 epochs", 1, 1)),
        (20, ("a run of 0.95 epochs", 2, 18)),
        (23, ("a run of 1.10 epochs", 3, 20)),  # a kill so late would leave too little
        (40, ("the second epoch", 22, 36)),  # a tenth is to come
        (10_000, ("the second epoch", 22, 42)),
    ],
)
def test_the_kill_lies_in_the_second_epoch_where_there_is_one(
    instances: Artifact, steps: int, expected: tuple[str, int, int]
) -> None:
    """252 instances in batches of 12 are 21 steps an epoch."""
    summary = InstancesSummary.of(instances)
    train = summary.instances.model_copy(update={"train": 252})
    counted = summary.model_copy(update={"instances": train}).replace_summary(instances)
    window = kill_steps(config(**{"pretrain.steps": steps}), counted, steps)
    assert (window.part, window.first_step, window.last_step) == expected


def test_a_run_of_one_step_and_one_that_a_clock_ends_prove_nothing(instances: Artifact) -> None:
    with pytest.raises(UserError, match=r"1 step, and one before the kill .* pretrain\.steps"):
        kill_steps(config(**{"pretrain.steps": 1}), instances, 1)
    timed = config(**{"pretrain.max_seconds": 5.0})
    with pytest.raises(UserError, match=r"set pretrain\.max_seconds=null"):
        prove_resume(timed, {"instances": instances}, ComputeConfig(), Folder.at("/nowhere"))


class _Asked(Exception):
    """Stands for the first run of a proof."""


def asked_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[set[str], int]]:
    """Record the inputs and workers of the first run, and end there."""
    asked: list[tuple[set[str], int]] = []

    def ends(job: ProofJob, *_: Any) -> None:
        asked.append((set(job.inputs), job.compute.num_workers))
        raise _Asked

    monkeypatch.setattr(resume_proof, "run_job", ends)
    return asked


def test_the_proof_begins_as_the_run(instances: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_of(monkeypatch)
    monkeypatch.setattr(resume_proof, "check_fit", lambda *_: None)
    inputs = {"corpus": instances, "instances": instances, "initial": instances}
    with pytest.raises(_Asked):
        prove_resume(config(), inputs, ComputeConfig(num_workers=1), Folder.at("/nowhere"))
    assert asked == [({"instances", "initial"}, 1)]


def test_too_few_rows_are_refused(instances: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve rows can be cut for 6 logical workers, for 3 and 2, but not for 20, for 5 and 4."""
    asked_of(monkeypatch)
    fitted: list[tuple[int, int | None]] = []

    def fits(settings: Any, inputs: Any, compute: ComputeConfig) -> None:
        fitted.append((compute.num_workers, compute.logical_workers))

    def prove(workers: int, after: int | None = None) -> None:
        compute, place = ComputeConfig(num_workers=workers), Folder.at("/nowhere")
        prove_resume(config(), {"instances": instances}, compute, place, after)

    monkeypatch.setattr(resume_proof, "check_fit", fits)
    with pytest.raises(UserError, match=r"--workers-after is 4 after 5, but .* has too few rows"):
        prove(5, 4)
    for workers in (1, 3, 4):
        with pytest.raises(_Asked):
            prove(workers)
    assert fitted == [(1, 2), (2, 2), (3, 6), (2, 6), (4, 4), (2, 4)]


@pytest.mark.parametrize(("difference", "verdict"), [(5e-4, "same"), (2e-3, "DIFFERENT")])
def test_the_certificate_says_where_the_kill_lay_and_what_was_allowed(
    instances: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    difference: float,
    verdict: str,
) -> None:
    """Runs by hand in bfloat16 that a budget of tokens ends at step 12 of 20."""
    asked: list[tuple[int, int, int | None]] = []

    def by_hand(job: ProofJob, title: str, console: Any) -> PretrainSummary | None:
        asked.append((job.compute.num_workers, job.compute.checkpoint_every_steps, job.kill_at))
        if job.kill_at is not None:
            return None
        factor = 1 + difference * title.endswith("resumed")
        made = GradientRun.model_construct(
            steps=12,
            history=tuple({"step": step, "loss": 2.0 * factor} for step in range(1, 13)),
            data=tuple((step, "ab") for step in range(1, 13)),
            data_hash="ab",
            attempts=(Attempt(step=4, workers=1),),
            bfloat16=True,
        )
        return PretrainSummary.model_construct(gradient=made, epochs=0.5)

    monkeypatch.setattr(resume_proof, "run_job", by_hand)
    settings = config(**{"pretrain.max_tokens": 10**6, "pretrain.precision": "bfloat16"})
    compute = ComputeConfig(num_workers=1, micro_batch_size=6)
    found = prove_resume(settings, {"instances": instances}, compute, Folder.at(tmp_path), 2, 5)
    killed = found.killed_at_step
    assert 2 <= killed <= 10  # a tenth of twelve steps, rounded up, is to come
    assert asked == [
        (1, 100, None),
        (1, max(1, killed // 3), killed),
        (2, max(1, killed // 3), None),
    ]
    assert found.kill_drawn_from.part.startswith("a run of ")
    assert (found.kill_drawn_from.first_step, found.kill_drawn_from.last_step) == (2, 10)
    assert found.steps_after_the_kill == 12 - killed
    assert (found.steps, found.precision) == (12, "bfloat16")
    assert found.allowed_loss_difference == 1e-3
    assert found.largest_relative_loss_difference == pytest.approx(difference)
    assert found.verdict == verdict
