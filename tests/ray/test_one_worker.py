"""One worker in its stage's own process: the bits of a worker group, and each resumes the other."""

import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import pytest

from rungwise.core.errors import UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context, SilentReporter
from rungwise.core.storage.folder import Folder
from rungwise.models.families.gpt import GptConfig
from rungwise.training.config import GradientFit
from rungwise.training.ray import gradient
from tests.ray.one_worker_runs import (
    COMPUTE,
    Runs,
    families,
    small,
    train_here,
    train_in_a_group,
    train_watched,
)
from tests.training_runs import KilledAt, assert_same_weights, forkserver, make_instances, run
from tests.unit.models.test_elmo import instances as elmo_instances

# Kinds of instances that are built of one text, with the keys of those without a sequence length.
ROWS: dict[str, dict[str, Any]] = {
    "masked_pairs": {},
    "causal": {},
    "corrupted_words": {},
    "sentence_runs": {"sentences": 8, "sentence_length": 9},
}
# Instances that know how their tokens are written.
made_for_elmo = elmo_instances


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> tuple[GradientFit, Artifact]:
    return small(GptConfig), make_instances(tmp_path_factory.mktemp("causal"), "causal")


@pytest.fixture(params=["gpt", pytest.param("every family", marks=pytest.mark.slow)])
def runs(request: pytest.FixtureRequest, tmp_path: Path, gpt: tuple[GradientFit, Artifact]) -> Runs:
    """A small run of GPT, or of every family that reads one text, and its instances."""
    if request.param == "gpt":
        return {"gpt": gpt}
    made = {
        reads: make_instances(tmp_path / reads, reads, documents=(120,), **rows)
        for reads, rows in ROWS.items()
    }
    every = {settings.model.kind: settings for settings in map(small, families())}
    runs = {
        name: (settings, made[reads])
        for name, settings in every.items()
        if (reads := settings.objective.reads[0]) in ROWS
    }
    return runs | {"elmo": (every["elmo"], request.getfixturevalue("made_for_elmo"))}


def test_the_bits_are_those_of_a_worker_group_and_each_resumes_the_others_checkpoints(
    ray_session: None, runs: Runs, tmp_path: Path
) -> None:
    train_here(runs, tmp_path / "here")
    train_here(runs, tmp_path / "here, then group", KilledAt(5))
    group_first = tmp_path / "group, then here"
    train_in_a_group(
        runs,
        (tmp_path / "group", None),
        (tmp_path / "here, then group", None),
        (group_first, KilledAt(5)),
    )
    assert not list(group_first.glob("*/model.safetensors"))
    train_here(runs, group_first)
    for name in runs:
        for way in ("group", "here, then group", "group, then here"):
            assert_same_weights(tmp_path / way / name, tmp_path / "here" / name)


class Breaks(SilentReporter):
    """Raises an error the first few times that a run reports a step."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.attempts = error, times, 0

    def progress(self, done: float, total: float, **shown: float | str) -> None:
        if done >= 5 and self.attempts < self.times:
            self.attempts += 1
            raise self.error


@pytest.mark.parametrize(
    ("error", "times", "ends"),
    [
        (RuntimeError("a disk is gone"), 2, True),
        (RuntimeError("a disk is gone"), 3, False),
        (UserError("mend it"), 1, False),
    ],
    ids=str,
)
def test_an_error_costs_the_steps_since_the_checkpoint_as_often_as_max_failures(
    gpt: tuple[GradientFit, Artifact], tmp_path: Path, error: Exception, times: int, ends: bool
) -> None:
    settings, rows = gpt
    report = Breaks(error, times)
    compute = COMPUTE.model_copy(update={"max_failures": 2})
    context = Context(compute, report, trains_here=True)
    output = Folder.at(tmp_path / "broken")
    if not ends:
        with pytest.raises(type(error), match=str(error)):
            gradient.pretrain_by_gradient(settings, {"instances": rows}, output, context)
        assert report.attempts == times
        return
    summary = gradient.pretrain_by_gradient(settings, {"instances": rows}, output, context)
    assert summary.gradient
    assert [each.step for each in summary.gradient.attempts] == [0, 3]  # of those that saved
    run(settings, rows, tmp_path / "whole")
    assert_same_weights(tmp_path / "broken", tmp_path / "whole")


@pytest.mark.slow
def test_killed_21_times_at_random_the_files_are_the_same(
    gpt: tuple[GradientFit, Artifact], tmp_path: Path
) -> None:
    settings, rows = gpt
    settings = GradientFit(settings.model, settings.pretrain.model_copy(update={"steps": 22 * 20}))
    rng, steps, output = random.Random(0), tmp_path / "step", tmp_path / "killed"
    with forkserver():
        start = multiprocessing.get_context("forkserver").Process
        for number in range(1, 23):
            process = start(target=train_watched, args=(settings, rows, str(output), str(steps)))
            process.start()
            if number == 22:
                process.join()
                assert process.exitcode == 0
                break
            while process.exitcode is None and read_step(steps) < 20 * number:
                time.sleep(0.002)
            time.sleep(rng.uniform(0.0, 0.02))
            assert process.exitcode is None
            process.kill()
            process.join()
    run(settings, rows, tmp_path / "whole")
    assert_same_weights(output, tmp_path / "whole")
    assert {path.name for path in output.iterdir()} == {"checkpoints", "model.safetensors"}


def read_step(path: Path) -> int:
    return int(path.read_text() or 0) if path.exists() else 0
