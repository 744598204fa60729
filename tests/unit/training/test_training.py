"""The loop without Ray: exact resume, sums whatever the split, checkpoints that lie."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rungwise.core.configuration.overrides import ComputeConfig
from rungwise.core.errors import UserError
from rungwise.core.stages.artifact import Artifact
from rungwise.instances.summary import InstancesSummary
from rungwise.models import ngram_model
from rungwise.models.families.kneser_ney import Smoothing, estimate_model
from rungwise.training.ray import gradient
from rungwise.training.ray.gradient import check_fit
from tests.conftest import SPECIAL_IDS
from tests.training_runs import (
    VOCAB,
    Killed,
    KilledAt,
    Notes,
    checkpoints_in,
    config,
    kill_and_resume,
    made_up_text,
    make_instances,
    newest_step,
    run,
)


def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(
    instances: Artifact, tmp_path: Path
) -> None:
    """Each attempt is killed between two checkpoints, the last goes through."""
    settings = config(**{"pretrain.steps": 15})
    kill_and_resume(settings, instances, tmp_path, killed_at=(8, 14))


def test_dropout_half_width_and_an_average_go_on_with_the_same_bits(
    instances: Artifact, tmp_path: Path
) -> None:
    """Killed when there is a part of the average."""
    changes = {"model.dropout": 0.1, "pretrain.precision": "bfloat16"}
    settings = config(**changes, **{"pretrain.steps": 10, "pretrain.average": {"steps": 6}})
    kill_and_resume(settings, instances, tmp_path, killed_at=(9,))


def test_a_network_beside_counts_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ngram_model.count_documents(made_up_text(2), SPECIAL_IDS, 2)
    (start,) = SPECIAL_IDS.require("cls")
    counts = estimate_model(table, VOCAB, start, Smoothing((0.5, 1.0, 1.5)))
    counts = dataclasses.replace(counts, end_id=SPECIAL_IDS.end)
    monkeypatch.setattr(
        gradient,
        "put_beside",
        lambda module, *_: setattr(module, "beside", ngram_model.NextTokenCounts(counts)),
    )
    instances = make_instances(tmp_path / "instances", "causal")
    settings = config("causal", **{"pretrain.steps": 10})
    alone = run(settings, instances, tmp_path / "alone")
    progress = kill_and_resume(settings, instances, tmp_path, killed_at=(8,), beside=instances)
    first, last = progress.validation[0]["loss"], progress.validation[-1]["loss"]
    assert last < first < alone.validation[-1]["loss"]


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    instances: Artifact, tmp_path: Path
) -> None:
    settings = config(**{"pretrain.steps": 12})
    undisturbed = run(settings, instances, tmp_path / "a")
    with pytest.raises(Killed):
        run(settings, instances, tmp_path / "b", report=KilledAt(11))
    (part,) = tmp_path.glob("b/checkpoints/step-000000010-*/*.safetensors")
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    checkpoints = checkpoints_in(tmp_path / "b" / "checkpoints")
    assert checkpoints.steps() == [5, 10]
    assert newest_step(checkpoints) == 5
    notes = Notes()
    assert run(settings, instances, tmp_path / "b", report=notes) == undisturbed
    [note] = notes.notes
    assert note == f"{part.parent} is damaged: goes on from step 5"


def test_a_start_far_from_its_known_loss_is_named(instances: Artifact, tmp_path: Path) -> None:
    sound, off = Notes(), Notes()
    short = {"pretrain.steps": 1}
    run(config(**short), instances, tmp_path / "a", report=sound)
    assert sound.notes == []
    wild = config(**short, **{"model.initializer_range": 3.0})
    run(wild, instances, tmp_path / "b", report=off)
    [note] = [note for note in off.notes if note.startswith("mlm loss before the first step")]
    assert "look at model.initializer_range" in note


@pytest.mark.parametrize(
    ("changes", "compute", "message"),
    [
        ({"model.max_position_embeddings": 16}, {}, "max_position_embeddings is 16, but"),
        ({"pretrain.global_batch_size": 10**6}, {}, "there are .* training instances"),
        ({"pretrain.global_batch_size": 1}, {}, r"too few for compute\.num_workers 2"),
        ({"pretrain.objective": "left_to_right"}, {}, "reads instances.kind causal, but"),
        (
            {"pretrain.validation_instances": 1},
            {"parallel": "fsdp"},
            "1 rows for validation, too few",
        ),
        ({}, {"min_workers": 3}, "min_workers is 3, more than compute.num_workers 2"),
        ({}, {"num_workers": 3, "logical_workers": 4}, r"4, .*num_workers 3 does not divide"),
        ({}, {"logical_workers": 14}, r"12, too few for compute\.logical_workers 14"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    instances: Artifact, changes: dict[str, Any], compute: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_fit(config(**changes), {"instances": instances}, ComputeConfig(**compute))


def test_a_split_without_rows_to_measure_a_loss_on_is_refused(tmp_path: Path) -> None:
    """Its loss would be reported as 0."""
    made = make_instances(tmp_path, "masked_blocks")
    summary = InstancesSummary.of(made)
    for held_out, objective in ((0, "mlm"), (1, "simcse")):
        counts = summary.instances.model_copy(update={"validation": held_out})
        few = summary.model_copy(update={"instances": counts}).replace_summary(made)
        settings = config(**{"pretrain.objective": objective})
        with pytest.raises(UserError, match=f"have {held_out} rows for validation, but pretrain"):
            check_fit(settings, {"instances": few}, ComputeConfig())
        check_fit(settings, {"instances": made}, ComputeConfig())
