"""Mixtures of objectives on one encoder: whose turn it is, what each member reads, and training."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import with_overrides
from rungwise.core.errors import ConfigError
from rungwise.core.stages.artifact import Artifact
from rungwise.instances.texts import LabelledPairsConfig
from rungwise.training.config import GradientFit
from rungwise.training.feed import MIXED_INSTANCES, find_phase, list_turns, open_phases
from rungwise.training.fit_config import PretrainStageConfig, require_gradient
from tests.conftest import SPECIAL_IDS, write_shards
from tests.summaries import standing
from tests.training_runs import (
    CPU,
    VOCAB,
    ComputeConfig,
    Group,
    SilentReporter,
    Worker,
    kill_and_resume,
    made_up_text,
    make_instances,
    run,
    together,
    weights,
)

RUNS: dict[str, Any] = {"kind": "sentence_runs", "sentences": 8, "sentence_length": 9}
PAIRS: dict[str, Any] = {"kind": "labelled_pairs", "sentence_length": 9}
MEMBERS: dict[str, Any] = {
    "sentence_autoencoder": {"instances": RUNS},
    "inference": {"instances": PAIRS, "every": 5, "global_batch_size": 16},
}


def settings(*members: str, **changes: Any) -> GradientFit:
    data = {
        "model": {
            "kind": "sentence_encoder",
            "network": "gru",
            "embedding_size": 12,
            "hidden_size": 12,
            "classifier_size": 6,
        },
        "pretrain": {
            "objective": "+".join(("skip_thoughts", *members)),
            "mixture": {name: MEMBERS[name] for name in members},
            "steps": 20,
            "global_batch_size": 4,
            "optimizer": {"learning_rate": 0.02},
            "precision": "float32",
            "validation_every_steps": 10,
            "validation_instances": 20,
            "log_every_steps": 1,
        },
    }
    return require_gradient(validate(PretrainStageConfig, with_overrides(data, changes)), "steps")


ALL = settings(*MEMBERS)


def pairs(folder: Path) -> Artifact:
    """Pairs whose label is the last word of the first, in thirds of the vocabulary."""
    config, shards = LabelledPairsConfig(**PAIRS), {}
    for seed, split in enumerate(("train", "validation")):
        text = made_up_text(seed, 80)
        count = len(text.starts) // 2
        last = text.ids[text.starts[1 : 2 * count : 2] - 1].astype(np.int64)
        text = replace(
            text,
            first_sentence=np.arange(0, 2 * count + 1, 2),
            documents=np.arange(count, dtype=np.uint64),
            labels=((last - 5) * 3 // (VOCAB - 5)).astype(np.uint16),
        )
        built = config.build(text, SPECIAL_IDS, np.random.default_rng(0))
        shards[f"{split}-00000.arrow"] = built.shard
    summary = write_shards(
        folder, shards, VOCAB, {}, kind=config.kind, sequence_length=config.length
    )
    return standing("instances", folder, summary, config.model_dump(mode="json"))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    folder = tmp_path_factory.mktemp("mixed")
    keys = {key: value for key, value in RUNS.items() if key != "kind"}
    runs = make_instances(folder / "runs", "sentence_runs", documents=(120,), **keys)
    return {
        "instances": runs,
        f"{MIXED_INSTANCES}sentence_autoencoder": runs,
        f"{MIXED_INSTANCES}inference": pairs(folder / "pairs"),
    }


def mixed(inputs: dict[str, Artifact]) -> dict[str, Artifact]:
    return {
        name.removeprefix(MIXED_INSTANCES): each
        for name, each in inputs.items()
        if name.startswith(MIXED_INSTANCES)
    }


def test_some_members_have_every_fifth_step_and_the_others_are_drawn_alike() -> None:
    names = ["skip_thoughts", *MEMBERS]
    config = ALL.pretrain.model_copy(update={"steps": 10_000})
    turns = config.draw_turns(names)
    assert np.flatnonzero(turns == 2).tolist() == [*range(4, 10_000, 5)]
    counts = Counter(turns.tolist())
    assert sum(counts.values()) == 10_000
    # Of 8,000 draws of two, five standard deviations are 224.
    assert abs(counts[0] - counts[1]) < 2 * 224
    shorter = config.model_copy(update={"steps": 100}).draw_turns(names)
    np.testing.assert_array_equal(shorter, turns[:100])
    # Where the turns of two meet, it is that of the rarer one, whatever their order.
    often = settings(*MEMBERS, **{"pretrain.mixture.sentence_autoencoder.every": 2}).pretrain
    for order in (names, names[::-1]):
        turns = often.draw_turns(order)[:10]
        assert [order[turn] for turn in turns[[1, 4, 9]]] == [names[1], names[2], names[2]]


def rows_read(config: GradientFit, inputs: dict[str, Artifact]) -> dict[str, list[int]]:
    compute = ComputeConfig(micro_batch_size=4)
    worker = Worker(Group.current(CPU), compute, SilentReporter(), lambda: False)
    phases = open_phases(config, list_turns(inputs, config.pretrain), worker)
    rows: dict[str, list[int]] = {}
    for step in range(config.pretrain.steps):
        phase = find_phase(phases, step)
        assert sum(each.reads(step) for each in phases) == 1
        batch = phase.step(step)
        rows.setdefault(phase.objective.name, []).extend(batch.instances.tolist())
    return rows


def test_a_member_reads_as_it_does_alone_and_without_another(inputs: dict[str, Artifact]) -> None:
    whole = rows_read(ALL, inputs)
    turns = list_turns(inputs, ALL.pretrain)
    counted = {str(turn.member): turn.count(20) for turn in turns}
    sizes = {"skip_thoughts": 4, "sentence_autoencoder": 4, "inference": 16}
    assert {name: len(rows) // sizes[name] for name, rows in whole.items()} == counted
    assert counted["inference"] == 4
    for left in (("inference",), ("sentence_autoencoder",), ()):
        for name, rows in rows_read(settings(*left), inputs).items():
            shared = min(len(rows), len(whole[name]))
            assert shared > 0
            assert rows[:shared] == whole[name][:shared]


def test_all_members_learn_and_a_killed_run_ends_the_same_on_more_workers(
    inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    first, others = inputs["instances"], mixed(inputs)
    keys: dict[str, Any] = {"mixed": others, "logical_workers": 2}
    straight = kill_and_resume(ALL, first, tmp_path, (13,), **keys)
    begin, end = straight.validation[0], straight.validation[-1]
    for part in ("neighbour_words", "own_words", "relation"):
        assert end[f"{part}_loss"] < begin[f"{part}_loss"]
    assert end["loss"] == pytest.approx(
        sum(end[f"{part}_loss"] for part in ("neighbour_words", "own_words", "relation"))
    )
    two = together(2, ALL, first, tmp_path / "two", **keys)
    assert two is not None
    assert two.data == straight.data
    expected = weights(tmp_path / "whole")
    assert {"writers.-1.cells.weight_ih_l0", "classifier.0.weight"} < set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], value, rtol=1e-3, atol=1e-5)


def test_what_a_step_leaves_out_is_kept(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    """The classifier learns in every fifth step only, whatever its momentum and weight decay."""

    def classifier(steps: int, weight_decay: float) -> torch.Tensor:
        optimizer = {"learning_rate": 0.01, "weight_decay": weight_decay}
        plateau = {"kind": "warmup_stable_decay", "warmup_steps": 0, "decay_fraction": 0}
        config = settings(
            *MEMBERS,
            **{"pretrain.steps": steps, "pretrain.optimizer": {**optimizer, "schedule": plateau}},
        )
        folder = tmp_path / f"{steps} {weight_decay}"
        run(config, inputs["instances"], folder, mixed=mixed(inputs))
        return weights(folder)["classifier.0.weight"]

    assert torch.equal(classifier(4, 0.0), classifier(4, 0.5))
    after = classifier(5, 0.5)
    assert not torch.equal(classifier(4, 0.5), after)
    assert torch.equal(classifier(9, 0.5), after)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pretrain.objective": "skip_thoughts+inference"}, "expected the objectives behind"),
        ({"pretrain.objective": "skip_thoughts+skip_thoughts"}, "names an objective twice"),
        ({"pretrain.objective": "skip_thoughts+mlm"}, "which takes quick_thoughts"),
        ({"pretrain.max_seconds": 9}, "set pretrain.max_seconds=null"),
        ({"pretrain.mixture.sentence_autoencoder.every": 5}, r"a different `every`.* \[5, 5\]"),
    ],
)
def test_mixtures_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    def checked() -> None:
        config = settings(*MEMBERS, **changes)
        config.pretrain.check(config.model, ComputeConfig())

    with pytest.raises(ConfigError, match=message):
        checked()
