"""Rows that change over a run: longer instances for its last part."""

from pathlib import Path

import pytest

from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import ComputeConfig, with_overrides
from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact
from rungwise.instances.summary import InstancesSummary, read_kind
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import pretrain_stages
from rungwise.training.feed import DataPhase, count_epochs, list_turns, open_phases
from rungwise.training.parallel import Group, Worker
from tests.conftest import small_recipe
from tests.training_runs import CPU, config, kill_and_resume, make_instances

SHORT, LONG = 16, 32


@pytest.fixture(scope="module", params=["masked_pairs", "causal"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Artifact]:
    folder = tmp_path_factory.mktemp("instances")
    return [make_instances(folder / str(n), request.param, n) for n in (SHORT, LONG)]


def test_every_step_reads_what_its_phase_says_from_its_own_beginning(both: list[Artifact]) -> None:
    settings = config(read_kind(both[0]).kind, **{"pretrain.longer_share": 0.25})
    inputs = {"instances": both[0], "longer_instances": both[1]}
    worker = Worker(Group.current(CPU), ComputeConfig(micro_batch_size=6))
    turns = list_turns(inputs, settings.pretrain)
    short, long = open_phases(settings, turns, worker)
    assert [short.reads(14), long.reads(14), long.reads(15)] == [True, False, True]
    (alone,) = open_phases(settings, [DataPhase("instances", range(20), both[1])], worker)
    assert long.step(15).instances.tolist() == alone.step(0).instances.tolist()
    assert long.step(19).data_hash == alone.step(4).data_hash
    # Twelve rows a step: six at once of length 16, and three of length 32.
    assert [len(phase.step(first).micro_batches) for phase, first in ((short, 0), (long, 15))] == [
        2,
        4,
    ]
    assert count_epochs(settings, turns, 18) == pytest.approx(
        15 * 12 / InstancesSummary.of(both[0]).instances.train
        + 3 * 12 / InstancesSummary.of(both[1]).instances.train
    )


def test_a_run_killed_in_each_phase(both: list[Artifact], tmp_path: Path) -> None:
    settings = config(read_kind(both[0]).kind, **{"pretrain.longer_share": 0.5})
    kill_and_resume(settings, both[0], tmp_path, killed_at=(7, 12), longer=both[1])


@pytest.mark.parametrize("missing", ["longer_instances", "pretrain.longer_share"])
def test_longer_instances_and_their_share_are_set_together(missing: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Some text.")
    data = small_recipe(tmp_path, tmp_path / "text.txt")
    keys = {
        "model.max_position_embeddings": 64,
        "longer_instances": data["instances"] | {"sequence_length": 64},
        "pretrain.longer_share": 0.1,
    }
    recipe = validate(Recipe, with_overrides(data, keys))
    assert list(pretrain_stages(recipe)) == [
        "corpus",
        "tokenizer",
        "tokens",
        "instances",
        "longer_instances",
        "pretrain",
    ]
    del keys[missing]
    with pytest.raises(ConfigError, match=r"only the .* is set; set both or none"):
        pretrain_stages(validate(Recipe, with_overrides(data, keys)))
