"""Small runs of the training loop, in this process or in several: what tests of it share."""

import contextlib
import functools
import gc
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import distributed as dist
from torch import multiprocessing
from torch.multiprocessing.spawn import (
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,
)

from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import ComputeConfig, with_overrides
from rungwise.core.stages.artifact import Artifact, finish
from rungwise.core.stages.stage import ContinuableRun, SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.instances.summary import InstancesConfig
from rungwise.tokenizer.token_text import TokenisedText
from rungwise.training.checkpoint import CheckpointRules, Checkpoints
from rungwise.training.config import GradientFit
from rungwise.training.feed import MIXED_INSTANCES, list_turns
from rungwise.training.fit_config import PretrainStageConfig, require_gradient
from rungwise.training.parallel import Group, Worker
from rungwise.training.ray.gradient import Run, pretrain
from rungwise.training.tensor_files import MODEL, load_tensors
from rungwise.training.throughput import Progress
from tests.conftest import SPECIAL_IDS, write_shards
from tests.summaries import standing

VOCAB = 60
instances_config = TypeAdapter(InstancesConfig).validate_python
LENGTH = 32
CPU = torch.device("cpu")


def made_up_text(seed: int, documents: int = 60) -> TokenisedText:
    """A language in which a word calls for the next."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 9, size=(documents, 8))
    steps = rng.choice([1] * 19 + [7], size=int(lengths.sum()))
    return TokenisedText(
        ids=(5 + np.cumsum(steps) % (VOCAB - 5)).astype(np.uint16),
        starts=np.concatenate([[0], np.cumsum(lengths.ravel())]),
        first_sentence=np.arange(0, documents * 8 + 1, 8),
        documents=np.arange(documents, dtype=np.uint64),
    )


def make_instances(
    folder: Path,
    kind: str = "masked_pairs",
    length: int = LENGTH,
    documents: Sequence[int] = (60,),
    sources: Sequence[str] = (),
    text: Callable[[int, int], TokenisedText] = made_up_text,
    **keys: Any,
) -> Artifact:
    """An instances artifact of the made-up language, built without Ray.

    `documents` are those of each training shard, `sources` the names of their sources, `text` makes
    a text of a seed and a number of documents, `keys` are those of kinds without a sequence length.
    """
    settings = instances_config({"kind": kind, **(keys or {"sequence_length": length})})
    shards = {}
    texts = [("train", 0), ("validation", 0), *(("train", n) for n in range(1, len(documents)))]
    for seed, (split, number) in enumerate(texts):
        part = text(seed, 60 if split == "validation" else documents[number])
        generator = np.random.Generator(np.random.Philox(seed))
        built = settings.build(part, SPECIAL_IDS, generator)
        shards[f"{split}-{number:05d}.arrow"] = built.shard
    named = {f"train-{number:05d}.arrow": source for number, source in enumerate(sources)}
    summary = write_shards(folder, shards, VOCAB, named, kind=kind, sequence_length=settings.length)
    return standing(
        "instances", folder, summary, settings.model_dump(mode="json"), fingerprint="f" * 12
    )


def config(kind: str = "masked_pairs", family: str | None = None, /, **changes: Any) -> GradientFit:
    """A run of twenty steps, by default of BERT or GPT; `changes` are dotted keys."""
    data: dict[str, Any] = {
        "model": {
            "kind": family or ("gpt" if kind == "causal" else "bert"),
            "num_layers": 2,
            "num_heads": 2,
            "hidden_size": 16,
            "intermediate_size": 32,
            "max_position_embeddings": LENGTH,
        },
        "pretrain": {
            "objective": "mlm_nsp" if family is None and kind != "causal" else None,
            "steps": 20,
            "global_batch_size": 12,
            "optimizer": {"kind": "adamw", "learning_rate": 0.01},
            "precision": "float32",
            "validation_every_steps": 10,
            "validation_instances": 30,
            "log_every_steps": 1,
        },
    }
    return require_gradient(validate(PretrainStageConfig, with_overrides(data, changes)), "steps")


def run(
    settings: GradientFit,
    instances: Artifact,
    output: Path | str,
    group: Group | None = None,
    report: Any = None,
    notice: Any = lambda: False,
    longer: Artifact | None = None,
    mixed: dict[str, Artifact] | None = None,
    initial: Artifact | None = None,
    earlier: ContinuableRun | None = None,
    beside: Artifact | None = None,
    **compute: Any,
) -> Progress:
    """The loop in this process."""
    torch.set_num_threads(1)
    small: dict[str, Any] = {"micro_batch_size": 4, "checkpoint_every_steps": 5}
    keys = ComputeConfig(**small | compute)
    rules = CheckpointRules(
        Folder.at(output) / "checkpoints",
        keys.keep_checkpoints,
        keys.keep_checkpoint_every_steps,
        settings.pretrain.shared_steps,
        earlier,
    )
    inputs = {"instances": instances} | ({"longer_instances": longer} if longer else {})
    inputs |= {MIXED_INSTANCES + name: each for name, each in (mixed or {}).items()}
    turns = list_turns(inputs, settings.pretrain)
    worker = Worker(group or Group.current(CPU), keys, report or SilentReporter(), notice)
    return pretrain(settings, Run(turns, initial, Folder.at(output), rules, beside), worker)[0]


def checkpoints_in(folder: Path | str, keep: int = 2, group: Group | None = None) -> Checkpoints:
    return Checkpoints(CheckpointRules(Folder.at(folder), keep), group)


def newest_step(checkpoints: Checkpoints) -> int | None:
    """The step of the newest sound checkpoint."""
    newest = checkpoints.newest_sound()
    return newest and newest.step


class Killed(Exception):
    """Stands for a kill at a step."""


class KilledAt(SilentReporter):
    """Raises when the run reports a step, as if it were killed there."""

    def __init__(self, step: int) -> None:
        self.step = step

    def progress(self, done: float, total: float, **shown: float | str) -> None:
        if done >= self.step:
            self.kill()

    def kill(self) -> None:
        raise Killed


class Notes(SilentReporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.points: dict[str, list[float]] = {}

    def note(self, message: str) -> None:
        self.notes.append(message)

    def metrics(self, values: dict[str, float], step: int, run: str | None = None) -> None:
        for name, value in values.items():
            self.points.setdefault(name, []).append(value)


def finished_instances(folder: Path, kind: str = "masked_pairs") -> Artifact:
    """Instances of the made-up language with their record, for other processes to load."""
    made = make_instances(folder, kind)
    record = {"stage": "instances", "fingerprint": made.fingerprint, **made.record}
    return finish(made.folder, record, {})


def weights(output: Path) -> dict[str, torch.Tensor]:
    """The model that a run left."""
    return load_tensors(Folder.at(output), MODEL)


def assert_same_weights(one: Path, other: Path) -> None:
    """Two runs left the same bits."""
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def assert_same_rows_and_losses(one: Progress, other: Progress, relative: float = 1e-5) -> None:
    """Two runs read the same rows, and their losses differ by no more than this share."""
    assert one.data == other.data
    assert one.tokens == other.tokens
    for ours, theirs in ((one.history, other.history), (one.validation, other.validation)):
        losses = [row["loss"] for row in theirs]
        assert [row["loss"] for row in ours] == pytest.approx(losses, rel=relative)


def kill_and_resume(
    settings: GradientFit,
    instances: Artifact,
    folder: Path,
    killed_at: Sequence[int] = (12,),
    **more: Any,
) -> Progress:
    """Run to the end, and with a kill at each of these steps: both end with the same bits."""
    whole = run(settings, instances, folder / "whole", **more)
    for step in killed_at:
        with pytest.raises(Killed):
            run(settings, instances, folder / "cut", report=KilledAt(step), **more)
    resumed = run(settings, instances, folder / "cut", **more)
    assert resumed == whole
    assert_same_weights(folder / "whole", folder / "cut")
    return resumed


class Shared(NamedTuple):
    """A run of several processes; `killed_at` a step, it does not end."""

    settings: GradientFit
    instances: Artifact
    output: Path
    killed_at: int | None = None
    compute: dict[str, Any] = {}  # noqa: RUF012


def together(
    world: int,
    settings: GradientFit,
    instances: Artifact,
    output: Path,
    killed_at: int | None = None,
    **compute: Any,
) -> Progress | None:
    """The same run on so many processes with gloo; None if it was to be killed at a step."""
    (progress,) = in_turn(world, [Shared(settings, instances, output, killed_at, compute)])
    return progress


def in_turn(world: int, runs: Sequence[Shared]) -> list[Progress | None]:
    """One run after the other on the same processes, which only the last may kill: the leader of an
    earlier one fails instead, and the others because it is gone."""
    for each in runs:
        each.output.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if runs[-1].killed_at is not None:
            # The first of the processes that fail is named, which need not be the one killed.
            failed = (ProcessExitedException, ProcessRaisedException)
            stack.enter_context(pytest.raises(failed))
        stack.enter_context(forkserver())
        # They meet by a file, since another process could take a port before that.
        arguments = (world, f"file://{folder}", runs)
        start_processes(_work, args=arguments, nprocs=world, start_method="forkserver")
    return [None if each.killed_at is not None else _progress_of(each.output) for each in runs]


def _progress_of(output: Path) -> Progress:
    return Progress(**json.loads((output / "progress.json").read_text()))


@contextlib.contextmanager
def forkserver(*modules: str) -> Iterator[None]:
    """Start processes of this block from a server that has imported PyTorch already."""
    multiprocessing.set_forkserver_preload([*(modules or (__name__, "torch._dynamo", "pandas"))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        yield


def _work(rank: int, world: int, folder: str, runs: Sequence[Shared]) -> None:
    gc.freeze()  # what is imported
    torch.set_num_threads(1)
    # Graphs without kernels of their own: compilers of two processes damage each other's files.
    torch.compile = functools.partial(  # pyright: ignore[reportAttributeAccessIssue]
        torch.compile, backend="aot_eager"
    )
    for number, each in enumerate(runs):
        meeting = f"{folder}/{number}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
        last = number == len(runs) - 1
        fails = each.killed_at is not None and not last
        with contextlib.suppress(*(Killed, RuntimeError) if fails else ()):
            _run_shared(rank, each, _KillsItself if last else KilledAt)
        gc.collect()  # else the others may wait for one that has failed
        dist.destroy_process_group()


def _run_shared(rank: int, each: Shared, killing: type[KilledAt]) -> None:
    report = SilentReporter() if each.killed_at is None else killing(each.killed_at)
    progress = run(each.settings, each.instances, each.output, report=report, **each.compute)
    if rank == 0:
        (each.output / "progress.json").write_text(json.dumps(asdict(progress)))


class _KillsItself(KilledAt):
    """A real kill of the leader at a step; the others fail because it is gone."""

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
