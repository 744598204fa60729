"""Rows that are read in another way as a run goes on: a mask rate that falls."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.instances.kinds import read_kind
from rungwise.instances.masking import MaskingConfig
from rungwise.instances.reader import InstanceReader
from rungwise.pretraining.gradient import check_fit, plan_run
from rungwise.training.curriculum import list_turns, open_phases
from rungwise.training.parallel import Group, Worker
from tests.training_runs import CPU, LENGTH, config, kill_and_resume, make_instances

FALLING: dict[str, Any] = {"masking": {"rate": 0.5, "final_rate": 0.1, "max_predictions": 16}}
MLM: dict[str, Any] = {"pretrain.objective": "mlm"}
PLATEAU = {
    f"pretrain.optimizer.schedule.{k}": v
    for k, v in {"kind": "warmup_stable_decay", "warmup_steps": 4, "decay_steps": 4}.items()
}


@pytest.fixture(scope="module")
def falling(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("instances")
    return make_instances(folder, "masked_blocks", sequence_length=LENGTH, **FALLING)


@pytest.mark.parametrize(("final", "middle"), [(None, 0.5), (0.1, 0.3), (0.7, 0.6)])
def test_the_rate_goes_in_a_straight_line(final: float | None, middle: float) -> None:
    masking = MaskingConfig(rate=0.5, final_rate=final, max_predictions=40)
    rates = [masking.at(progress).rate for progress in (0.0, 0.5, 1.0)]
    assert rates == pytest.approx([0.5, middle, 0.5 if final is None else final])


def test_each_step_masks_its_share_and_held_out_rows_that_of_the_beginning(
    falling: Artifact,
) -> None:
    settings = config("masked_blocks", **MLM, **{"pretrain.steps": 40})
    inputs = {"instances": falling}
    worker = Worker(Group.current(CPU), ComputeConfig(micro_batch_size=12))
    (phase,) = open_phases(settings, list_turns(inputs, settings.pretrain), worker)

    def share(batches: Any) -> float:
        masked = sum(float(part.masked_weights.sum()) for part in batches)
        return masked / sum(part.tokens - 2 * len(part.ids) for part in batches)  # [CLS], [SEP]

    shares = [share(phase.step(step).micro_batches) for step in range(40)]
    expected = 0.5 - 0.4 * np.arange(40) / 40
    np.testing.assert_allclose(
        np.mean(np.reshape(shares, (4, 10)), axis=1),
        np.mean(expected.reshape(4, 10), axis=1),
        atol=0.01,
    )
    assert share(phase.validation()) == pytest.approx(0.5, abs=0.02)
    # A lower rate takes fewer of the same tokens of a row.
    kind, rows = read_kind(falling), np.arange(8)
    reader_rows = [set(map(tuple, np.argwhere(_hidden(kind.at(p), falling, rows)))) for p in (0, 1)]
    assert reader_rows[1] < reader_rows[0]


def _hidden(kind: Any, artifact: Artifact, rows: Any) -> Any:
    reader = InstanceReader(artifact, "train")
    batch = kind.batch(reader.rows(rows), np.zeros_like(rows), 3, reader.vocabulary)
    hidden = np.zeros(batch.ids.shape, dtype=bool)
    row, column = np.nonzero(batch.masked_weights)
    hidden[row, batch.masked_positions[row, column]] = True
    return hidden


def test_a_killed_run_goes_on_with_the_same_bits(falling: Artifact, tmp_path: Path) -> None:
    kill_and_resume(config("masked_blocks", **MLM), falling, tmp_path)


def test_runs_of_other_lengths_share_no_steps_and_nothing_ends_one_early(
    falling: Artifact, tmp_path: Path
) -> None:
    plain = make_instances(tmp_path / "plain", "masked_blocks")
    settings, compute = config("masked_blocks", **MLM, **PLATEAU), ComputeConfig()
    output = Folder.at(tmp_path / "pretrain" / "run")
    shared = [
        plan_run(settings, {"instances": each}, output, compute).checkpoints
        for each in (plain, falling)
    ]
    assert [each.keep_step for each in shared] == [16, 0]
    early = config("masked_blocks", **MLM, **{"pretrain.max_seconds": 10.0})
    check_fit(early, {"instances": plain}, compute)
    with pytest.raises(ConfigError, match=r"max_seconds could end it .*set pretrain\.max_seconds"):
        check_fit(early, {"instances": falling}, compute)
