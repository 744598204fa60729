"""Truncated backpropagation through time: a state carried over steps, workers and kills."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.instances import shards
from rungwise.instances.summary import InstancesSummary
from rungwise.models.families.recurrent import (
    AwdLstmConfig,
    LstmConfig,
    RecurrentForPretraining,
    RnnConfig,
)
from rungwise.models.losses.objectives import CAUSAL
from rungwise.training.config import GradientFit
from rungwise.training.fit_config import FitConfig
from rungwise.training.optimizer import (
    build_optimizers,
    clip_gradients,
    compute_learning_rate,
    set_learning_rate,
)
from rungwise.training.ray.gradient import check_fit
from rungwise.training.tensor_files import load_tensors
from rungwise.training.throughput import Progress
from tests.training_runs import (
    VOCAB,
    Shared,
    assert_same_rows_and_losses,
    config,
    in_turn,
    make_instances,
    run,
)
from tests.unit.instances.test_order import line_of
from tests.unit.models.test_awd_lstm import PLAIN

STREAMS = 10
TINY = LstmConfig(num_layers=2, hidden_size=16, initializer_range=0.2)
# Without dropouts and penalties; layers of two widths: a state has zeros behind the narrow one.
AWD = AwdLstmConfig(num_layers=2, hidden_size=16, embedding_size=12, initializer_range=0.2, **PLAIN)
Recurring = LstmConfig | RnnConfig | AwdLstmConfig
ELMAN = RnnConfig(num_layers=2, hidden_size=16, initializer_range=0.2, tied=False)
MODELS: dict[str, Recurring] = {"lstm": TINY, "rnn": ELMAN, "awd": AWD}


def recurrent(model: Recurring = TINY, /, **changes: Any) -> GradientFit:
    """Twenty steps of ten streams, between two and three epochs of the instances below."""
    begin = {"pretrain.global_batch_size": STREAMS, "pretrain.output_bias": "zeros"}
    settings = config("causal", **begin, **changes)
    return FitConfig(model, settings.pretrain)


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_instances(tmp_path_factory.mktemp("blocks"), "causal", documents=(20, 13, 26))


@pytest.fixture(scope="module")
def alone(
    instances: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Progress]:
    """The run of a model in one process."""

    @functools.cache
    def make(name: str) -> Progress:
        return run(recurrent(MODELS[name]), instances, tmp_path_factory.mktemp("alone"))

    return make


def blocks_of(instances: Artifact, split: str) -> list[list[list[int]]]:
    files = [row.file for row in InstancesSummary.of(instances).split_files(split)]
    opened = [shards.read_shard(instances.folder.local(name)) for name in files]
    return [
        [
            shard.ids[begin:end].tolist()
            for begin, end in zip(shard.offsets, shard.offsets[1:], strict=False)
        ]
        for shard in opened
    ]


class PlainStreams:
    """Streams as lists of blocks, read by a plain loop, with the states of two layers a stream."""

    def __init__(self, model: Any, streams: list[list[tuple[bool, list[int]]]]) -> None:
        self.model = model
        self.streams = streams
        self.states: dict[int, list[Any]] = {}

    def loss(self, block: int) -> tuple[Tensor, int]:
        """The mean over the tokens of that block of every stream, and their number."""
        total, count = torch.zeros(()), 0
        body, output = self.model.body, self.model.output_table()
        for number, stream in enumerate(self.streams):
            if block >= len(stream):
                continue
            opens, ids = stream[block]
            states = [None, None] if opens else self.states[number]  # None: zeros
            hidden, after = body.token_embedding(torch.tensor(ids[:-1])), []
            for layer, state in zip(body.layers, states, strict=True):
                hidden, state = layer(hidden, state)
                is_one = isinstance(state, Tensor)
                after.append(state.detach() if is_one else tuple(each.detach() for each in state))
            self.states[number] = after
            logits = hidden @ output.T + self.model.bias
            total = total + functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum")
            count += len(ids) - 1
        return total / count, count


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_those_of_a_plain_loop_over_the_same_streams(
    name: str, instances: Artifact, alone: Callable[[str], Progress]
) -> None:
    settings = recurrent().pretrain
    torch.manual_seed(settings.seed)
    module = MODELS[name].build(VOCAB, CAUSAL)
    optimizers = build_optimizers(module, settings.optimizer)
    by_shard = blocks_of(instances, "train")
    rows = [len(blocks) for blocks in by_shard]
    flat = [(number == 0, block) for blocks in by_shard for number, block in enumerate(blocks)]
    size = sum(rows) // STREAMS
    losses, tokens, moved = [], 0, 0
    reading = PlainStreams(module, [])
    for step in range(settings.steps):
        epoch, block = divmod(step, size)
        if block == 0:
            line = [flat[row] for row, _, _ in line_of(rows, settings.seed, epoch)]
            streams = [line[stream * size : (stream + 1) * size] for stream in range(STREAMS)]
            for stream in streams:
                stream[0] = (True, stream[0][1])
            moved += sum(opens for stream in streams for opens, _ in stream[1:])
            reading = PlainStreams(module, streams)
        loss, count = reading.loss(block)
        module.zero_grad()
        loss.backward()
        clip_gradients(module, settings.optimizer)
        for optimizer in optimizers:
            set_learning_rate(
                optimizer, compute_learning_rate(step, settings.steps, settings.optimizer)
            )
            optimizer.step()
        losses.append(loss.item())
        tokens += count
    assert moved  # streams have gone on with another shard
    progress = alone(name)
    assert [row["loss"] for row in progress.history] == pytest.approx(losses, rel=1e-6)
    assert progress.tokens == tokens

    # Thirty held-out blocks in ten streams: three each, and streams begin evenly over the split.
    (held_out,) = blocks_of(instances, "validation")
    begins = [3 * stream + (len(held_out) - 30) * stream // STREAMS for stream in range(STREAMS)]
    streams = [[(number == 0, held_out[begin + number]) for number in range(3)] for begin in begins]
    reading = PlainStreams(module, streams)
    with torch.no_grad():
        means = [reading.loss(block) for block in range(3)]
    mean = sum(loss.item() * count for loss, count in means) / sum(count for _, count in means)
    assert progress.validation[-1]["loss"] == pytest.approx(mean, rel=1e-6)


def test_killed_in_the_second_epoch_and_resumed_with_other_workers_goes_on_in_every_lane(
    instances: Artifact, alone: Callable[[str], Progress], tmp_path: Path
) -> None:
    keys = {"checkpoint_every_steps": 2}  # one is written before the next begins
    runs = {
        name: Shared(recurrent(model), instances, tmp_path / name, compute=keys)
        for name, model in MODELS.items()
    }
    for world, step in ((3, 13), (2, 17)):
        in_turn(world, [each._replace(killed_at=step) for each in runs.values()])
    for name, each in runs.items():
        resumed = run(each.settings, instances, each.output)
        assert [attempt["workers"] for attempt in resumed.attempts] == [3, 2, 1], name
        assert_same_rows_and_losses(alone(name), resumed)


def test_a_skipped_step_leaves_the_states_as_they_were(
    instances: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the forward passes of step 4 return is NaN; a step has three of them."""
    forward, passes = RecurrentForPretraining.forward, iter(range(1000))

    def spoilt(self: RecurrentForPretraining, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        total, correct, state = forward(self, *arguments)
        factor = math.nan if self.training and next(passes) // 3 == 3 else 1.0
        return total * factor, correct, state * factor

    monkeypatch.setattr(RecurrentForPretraining, "forward", spoilt)
    progress = run(recurrent(), instances, tmp_path, checkpoint_every_steps=1, keep_checkpoints=20)
    assert progress.skipped == [4]
    third, fourth, fifth = (
        load_tensors(Folder.at(path.parent), path.name)["lanes/state"]
        for step in (3, 4, 5)
        for path in tmp_path.glob(f"checkpoints/step-{step:09d}-*/*.safetensors")
    )
    assert third.shape == (STREAMS, 2, 2, 16)
    assert torch.equal(third, fourth)
    assert fifth.isfinite().all()
    assert not torch.isclose(fourth, fifth).any(dim=-1).all()


@pytest.mark.parametrize(
    ("changes", "compute", "message"),
    [
        ({"pretrain.order.window_instances": 8}, {}, r"pretrain\.order\.window_instances is 8"),
        ({"pretrain.order.lanes": 2}, {}, r"pretrain\.order\.lanes is 2.*global_batch_size"),
        ({}, {"parallel": "fsdp"}, r"compute\.parallel is fsdp.*leave it at ddp"),
        ({}, {"recompute_activations": True}, r"compute\.recompute_activations is True"),
    ],
)
def test_what_does_not_go_with_streams_is_refused(
    instances: Artifact, changes: dict[str, Any], compute: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_fit(recurrent(**changes), {"instances": instances}, ComputeConfig(**compute))
