"""Several workers: the same rows, the same losses, and the same bits after a real kill."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages.artifact import Artifact
from rungwise.training.config import GradientFit
from rungwise.training.feed import DataPhase, Phase, data_hash
from rungwise.training.parallel import Group, Worker
from rungwise.training.throughput import Progress
from tests.training_runs import (
    Shared,
    assert_same_rows_and_losses,
    assert_same_weights,
    config,
    in_turn,
    make_instances,
    run,
    together,
)

WAYS = {
    "ddp on 2": (2, {}),
    "ddp on 3": (3, {}),
    "fsdp on 2": (2, {"parallel": "fsdp"}),
    "fsdp on 3": (3, {"parallel": "fsdp"}),
}
KINDS = {"bert": "masked_pairs", "gpt": "causal", "modern_bert": "masked_pairs", "llama": "causal"}
# The most that a loss may differ by: docs/how-to/pretraining.md.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-3}
OWN = {
    "modern_bert": {"model.local_window": 8},
    "llama": {"model.num_key_value_heads": 1, "model.query_key_norm": True},
}
LONG = {"pretrain.steps": 200, "pretrain.optimizer.learning_rate": 0.003}


def long(model: str, optimizer: str = "adamw", precision: str = "float32") -> GradientFit:
    family = model if model in OWN else None
    changes: dict[str, Any] = {**LONG, **OWN.get(model, {}), "pretrain.precision": precision}
    return config(KINDS[model], family, **changes, **{"pretrain.optimizer.kind": optimizer})


@pytest.fixture(scope="module")
def made(
    instances: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Artifact, Progress]]:
    """The instances of a model, and two hundred steps of it on one worker."""

    @functools.cache
    def make(model: str, *how: str) -> tuple[Artifact, Progress]:
        rows = instances
        if KINDS[model] == "causal":
            rows = make_instances(tmp_path_factory.mktemp("blocks"), "causal")
        output = tmp_path_factory.mktemp("alone")
        return rows, run(long(model, *how), rows, output, checkpoint_every_steps=100)

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "optimizer", "precision"),
    [
        *[(model, "adamw", "float32") for model in KINDS],
        *[(model, "muon", each) for model in ("bert", "llama") for each in TOLERANCE],
    ],
)
def test_200_steps_over_one_two_and_three_workers_have_the_losses_of_one(
    made: Callable[..., tuple[Artifact, Progress]],
    tmp_path: Path,
    model: str,
    optimizer: str,
    precision: str,
) -> None:
    """Killed at steps 50, 100 and 150; each time other workers go on, in float32 then sharded."""
    instances, alone = made(model, optimizer, precision)
    settings = long(model, optimizer, precision)
    way = "fsdp" if precision == "float32" else "ddp"  # sharded blocks would travel in bfloat16
    ways = [WAYS["ddp on 3"], WAYS[f"{way} on 2"], WAYS[f"{way} on 3"]]
    for (world, compute), step in zip(ways, (50, 100, 150), strict=True):
        together(world, settings, instances, tmp_path, killed_at=step, **compute)
    resumed = run(settings, instances, tmp_path)
    assert [attempt["workers"] for attempt in resumed.attempts] == [3, 2, 3, 1]
    assert_same_rows_and_losses(alone, resumed, TOLERANCE[precision])


@pytest.mark.parametrize(
    ("world", "ways"),
    [
        (3, {"ddp on 3": {"model.dropout": 0.1}, "fsdp on 3": {}}),
        pytest.param(2, {"fsdp on 2": {"pretrain.optimizer.kind": "muon"}}, marks=pytest.mark.slow),
    ],
)
def test_workers_that_were_killed_end_with_the_bits_of_undisturbed_ones(
    instances: Artifact, tmp_path: Path, world: int, ways: dict[str, dict[str, object]]
) -> None:
    """The processes in which one goes on are those in which the next is killed."""
    straight = [
        Shared(
            config(**{"pretrain.steps": 12}, **changes),
            instances,
            tmp_path / way,
            compute={"checkpoint_every_steps": 3, **WAYS[way][1]},
        )
        for way, changes in ways.items()
    ]
    ended: list[Progress | None] = []
    begin = straight
    for each in straight:
        broken = each._replace(output=each.output.with_suffix(".broken"), killed_at=8)
        *more, _ = in_turn(world, [*begin, broken])
        ended += more
        begin = [broken._replace(killed_at=None)]
    ended += in_turn(world, begin)
    for place, each in enumerate(straight):
        undisturbed, resumed = ended[place], ended[len(straight) + place]
        assert resumed is not None
        assert resumed.attempts[-1]["step"] in (3, 6), each.output
        assert resumed == undisturbed, each.output
        assert_same_weights(each.output, each.output.with_suffix(".broken"))


@pytest.mark.parametrize("kind", ["masked_pairs", "causal"])
def test_micro_batches_do_not_depend_on_who_computes_them(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(1)
    rows = make_instances(tmp_path / "instances", kind, documents=(40, 7, 20))
    turn = DataPhase("instances", range(20), rows)
    for _ in range(30):
        each, world, micro = rng.integers(1, 4), rng.integers(1, 5), rng.integers(1, 9)
        parts = int(each * world)
        size, step = int(rng.integers(parts, parts + 40)), int(rng.integers(0, 20))

        def read(
            world: int,
            size: int = size,
            step: int = step,
            micro: int = int(micro),
            parts: int = parts,
        ) -> list[list[torch.Tensor]]:
            settings = config(kind, **{"pretrain.global_batch_size": size})
            compute = ComputeConfig(micro_batch_size=micro, logical_workers=parts)
            cpu = torch.device("cpu")
            workers = [Worker(Group(n, world, cpu), compute) for n in range(world)]
            return [
                [each for each in vars(batch).values() if isinstance(each, torch.Tensor)]
                for worker in workers
                for batch in Phase(settings, turn, turn.length, worker).step(step).micro_batches
            ]

        theirs, mine = read(int(world)), read(1)
        assert len(theirs) == len(mine) >= parts
        for one, other in zip(theirs, mine, strict=True):
            assert all(map(torch.equal, one, other))
        assert sum(len(batch[0]) for batch in mine) == size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "model", "narrow", "relative"),
    [
        ("ddp on 2", "bert", False, 1e-5),
        ("fsdp on 2", "gpt", False, 1e-5),
        ("fsdp on 2", "bert", True, 1e-2),
    ],
)
def test_compiled_parts_have_the_losses_of_one_worker(
    tmp_path: Path, way: str, model: str, narrow: bool, relative: float
) -> None:
    world, compute = WAYS[way]
    rows = make_instances(tmp_path / "instances", KINDS[model])
    keys = {"pretrain.precision": "bfloat16"}
    settings = config(KINDS[model], **(keys if narrow else {}))
    alone = run(settings, rows, tmp_path / "alone")
    progress = together(world, settings, rows, tmp_path / "parts", compile=True, **compute)
    assert progress is not None
    assert_same_rows_and_losses(alone, progress, relative)


def test_the_hash_of_the_rows_does_not_depend_on_who_reads_them() -> None:
    rng = np.random.default_rng(0)
    rows, epochs = rng.integers(0, 10**9, 12), rng.integers(0, 3, 12)
    whole = data_hash(rows, epochs)
    shuffled = rng.permutation(12)
    assert data_hash(rows[shuffled], epochs[shuffled]) == whole
    parts = sum(data_hash(rows[part], epochs[part]) for part in (slice(0, 5), slice(5, 12)))
    assert parts % 2**64 == whole
    for changed in (rows + np.eye(12, dtype=int)[3], rows[:-1]):
        assert data_hash(changed, epochs[: len(changed)]) != whole
    assert data_hash(rows, epochs + np.eye(12, dtype=int)[3]) != whole
