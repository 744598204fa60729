"""What decides a pretrained artifact, and runs that go on from the plateau of a shorter one."""

import argparse
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rungwise.commands.run import gc
from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact, Summary
from rungwise.core.stages.stage import Stage, StageType, plan
from rungwise.core.storage.folder import Folder
from rungwise.pipeline import runner
from rungwise.training.config import GradientFit
from rungwise.training.fit_config import PRETRAIN, PretrainStageConfig, find_earlier
from tests.report_pages import pretrain_summary
from tests.summaries import end_stage
from tests.training_runs import Notes, assert_same_weights, config, run

SCHEDULE = "pretrain.optimizer.schedule"
DECAY = f"{SCHEDULE}.decay_fraction"
PLATEAU = {f"{SCHEDULE}.kind": "warmup_stable_decay", f"{SCHEDULE}.warmup_steps": 4, DECAY: 0}


def of(steps: int, decay: int = 0, /, **changes: Any) -> GradientFit:
    length = {"pretrain.steps": steps, DECAY: decay / steps}
    settings = {**PLATEAU, **length, "pretrain.log_every_steps": 4}
    return config(**(settings | changes))


def stages(settings: GradientFit) -> list[Stage]:
    nothing = StageType("instances", 1, lambda *_: Summary(headline=""), Summary)
    before = nothing.stage(PretrainStageConfig.model_validate(of(4).blocks()))
    return [
        before,
        PRETRAIN.stage(
            PretrainStageConfig.model_validate(settings.blocks()), {"instances": before}
        ),
    ]


def finish(root: Folder, settings: GradientFit) -> Artifact:
    """End both stages as the runner does, with what their folders hold."""
    trained = pretrain_summary(settings.model, "mlm_nsp", {"mlm_loss": 3.0}, None)
    instances, pretrain = plan(stages(settings), root, "toy")
    end_stage(instances.folder, instances.stage, "toy", Summary(headline="done"))
    return end_stage(pretrain.folder, pretrain.stage, "toy", trained)


def trained(root: Folder, settings: GradientFit, instances: Artifact, **compute: Any) -> Artifact:
    row = plan(stages(settings), root, "toy")[1]
    run(settings, instances, row.folder.uri, **compute)
    return finish(root, settings)


@pytest.mark.parametrize(
    ("changes", "rebuilt"),
    [
        ({"pretrain.log_every_steps": 7}, False),
        ({"pretrain.validation_every_steps": 3}, False),
        ({"pretrain.max_skipped_steps": 0}, False),
        ({"pretrain.seed": 1}, True),
        ({"pretrain.validation_instances": 7}, True),  # its loss is in the summary
    ],
)
def test_watching_rebuilds_nothing(tmp_path: Path, changes: dict[str, Any], rebuilt: bool) -> None:
    root = Folder.at(tmp_path)
    finish(root, of(8))
    after = stages(of(8, **changes))
    assert [row.artifact is None for row in plan(after, root, "toy")] == [False, rebuilt]
    if rebuilt:
        return

    def tracker(driver: str) -> Any:
        raise AssertionError("nothing is built, so nothing is tracked")

    console = Console(file=io.StringIO())
    outcome = runner.run(after, root, "toy", ComputeConfig(), tracker, console)
    assert outcome.built == ()


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, 60),
        ({DECAY: 0.2}, 48),
        ({DECAY: 1 / 3, "pretrain.longer_share": 0.5}, 30),
        ({"pretrain.average": {"steps": 25}}, 35),
        ({f"{SCHEDULE}.warmup_steps": None}, 0),
        ({f"{SCHEDULE}.kind": "cosine"}, 0),
        ({"pretrain.max_tokens": 10**6}, 0),
        ({"pretrain.early_stop": {}}, 0),
    ],
)
def test_the_steps_that_a_longer_run_takes_too_by_hand(changes: Any, steps: int) -> None:
    settings = config(**({"pretrain.steps": 60} | PLATEAU | changes)).pretrain
    assert settings.shared_steps == steps


@pytest.mark.parametrize(
    ("first", "then", "begins"),
    [
        ((12, 0), (18, 4), 12),  # prolonged from the plateau
        ((12, 4), (18, 4), 8),  # its decay is not shared, the end of its plateau is kept
        ((12, 0), (10, 2), 8),  # decayed from a checkpoint on the way
    ],
)
def test_a_prolonged_run_ends_as_an_undisturbed_one_and_trains_no_step_twice(
    instances: Artifact, tmp_path: Path, first: Any, then: Any, begins: int
) -> None:
    first, then = of(*first), of(*then)
    root = Folder.at(tmp_path / "root")
    every = {"checkpoint_every_steps": 4, "keep_checkpoint_every_steps": 4}
    done = trained(root, first, instances, **every)
    row = plan(stages(then), root, "toy")[1]
    assert row.reason == f"goes on from step {begins} of toy-{done.fingerprint}"
    inputs = {"instances": stages(then)[0].fingerprint}
    earlier = find_earlier(then, inputs, artifacts.list_artifacts(root, "pretrain"))
    notes = Notes()
    prolonged = run(then, instances, tmp_path / "prolonged", report=notes, earlier=earlier)
    assert prolonged.attempts[-1]["step"] == begins
    assert prolonged.prolonged == [
        {"fingerprint": done.fingerprint, "label": "toy", "step": begins}
    ]
    assert row.reason in notes.notes
    undisturbed = run(then, instances, tmp_path / "undisturbed")
    assert prolonged.data_hash == undisturbed.data_hash
    assert prolonged.tokens == undisturbed.tokens
    assert prolonged.validation[-1] == undisturbed.validation[-1]
    assert_same_weights(tmp_path / "prolonged", tmp_path / "undisturbed")


def test_a_damaged_checkpoint_of_the_earlier_run_costs(instances: Artifact, tmp_path: Path) -> None:
    root = Folder.at(tmp_path / "root")
    done = trained(root, of(10), instances)
    for path in Path(done.folder.uri).glob("checkpoints/step-000000010-*/*.safetensors"):
        path.write_bytes(path.read_bytes()[:-8] + b"damaged!")
    inputs = {"instances": stages(of(8))[0].fingerprint}
    earlier = find_earlier(of(15), inputs, artifacts.list_artifacts(root, "pretrain"))
    prolonged = run(of(15), instances, tmp_path / "prolonged", earlier=earlier)
    assert prolonged.attempts[-1]["step"] == 5
    assert prolonged == run(of(15), instances, tmp_path / "undisturbed")


def test_gc_keeps_a_run_until_a_longer_one_has_it(instances: Artifact, tmp_path: Path) -> None:
    root = Folder.at(tmp_path)
    short, other = trained(root, of(8), instances), finish(root, of(8, **{"pretrain.seed": 1}))
    options = argparse.Namespace(
        workflow=lambda recipe: stages(of(12)),
        config="quickstart",
        overrides=["name=toy", f"root={root.uri}"],
        delete=True,
        instead_of=None,
    )
    gc(options)
    assert artifacts.load(Folder(short.folder.uri))
    assert not artifacts.load(Folder(other.folder.uri))
    finish(root, of(12))
    gc(options)
    assert [each.stage for each in artifacts.find_artifacts(root)] == ["instances", "pretrain"]
    assert not artifacts.load(Folder(short.folder.uri))
