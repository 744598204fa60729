"""The sweep block: spaces are checked before anything runs, draws are a function of the seed."""

import math
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from rungwise.core.configuration.config import Config, validate
from rungwise.core.errors import ConfigError
from rungwise.finetune import FinetuneConfig
from rungwise.tuning.trials import (
    SweepConfig,
    SweepStageConfig,
    TuningConfig,
    check_space,
    draw_trials,
    resolve_settings,
)
from tests.toy_sweeps import stage_config

RATES = {"kind": "loguniform", "low": 1e-5, "high": 1e-3}
# Devlin et al. 2019, appendix A.3, as a recipe holds it.
PAPER_GRID = """
space:
  finetune.learning_rate: {kind: choice, values: [5e-5, 3e-5, 2e-5]}
  finetune.batch_size: {kind: choice, values: [16, 32]}
  finetune.epochs: {kind: choice, values: [2, 3, 4]}
"""


def choice(*values: Any) -> dict[str, Any]:
    return {"kind": "choice", "values": list(values)}


def refusal(**sweep: Any) -> str:
    with pytest.raises(ConfigError) as error:
        validate(SweepStageConfig, {"finetune": {}, "sweep": sweep}, "recipe.yaml")
    return str(error.value)


def test_the_papers_grid_has_its_18_draw_trials() -> None:
    config = SweepStageConfig(
        finetune=FinetuneConfig(), sweep=SweepConfig.model_validate(yaml.safe_load(PAPER_GRID))
    )
    combinations = {
        (one.learning_rate, one.batch_size, one.epochs)
        for one in (resolve_settings(config, values) for values in draw_trials(config.sweep))
    }
    assert combinations == {
        (r, b, e) for r in (5e-5, 3e-5, 2e-5) for b in (16, 32) for e in (2, 3, 4)
    }
    assert len(draw_trials(config.sweep)) == config.sweep.size() == 18
    assert config.rounds == [4]


@pytest.mark.parametrize(
    ("key", "allowed", "said"),
    [
        ("finetune.learning_rat", RATES, "did you mean 'learning_rate'?"),
        ("finetune.learning_rate", choice(1e-3, 1e-4, -1.0), "-1.0 does not fit"),
        ("finetune.dropout", {"kind": "uniform", "low": 0.1, "high": 1.0}, "1.0 does not fit"),
        ("finetune.batch_size", choice(8, 16, "many"), "'many' does not fit"),
        ("finetune.batch_size", {"kind": "uniform", "low": 8, "high": 12}, "9.6568 does not fit"),
        ("finetune.pooling", choice("cls", "avg"), "'avg' does not fit"),
        ("finetune.weight_decay", choice(0.1, True), "True would become 1.0"),
        ("finetune.batch_size", choice(8, 16.0), None),
        ("finetune.batch_size", choice("16", 8), "'16' would become 16"),
    ],
)
def test_every_value_is_tried_first(key: str, allowed: dict[str, Any], said: str | None) -> None:
    block = {"space": {key: allowed}, "trials": 1}
    if said is None:
        stage_config(**block)
        return
    message = refusal(**block)
    assert f"sweep.space.{key}: " in message
    assert said in message


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"trials": 1, "space": {"learning_rate": RATES}}, "expected a dotted key"),
        ({"trials": 1, "space": {"compute.num_workers": choice(1)}}, "expected a dotted key"),
        ({"trials": 1, "space": {"pretrain.optimizer.learning_rate": RATES}}, "of `search`"),
        ({"trials": 1, "space": {"finetune": choice({}), "finetune.epochs": choice(1)}}, "dotted"),
        (
            {"trials": 1}
            | {"space": {"finetune.top": choice({}), "finetune.top.kind": choice("linear")}},
            "sweep.space.finetune.top.kind lies inside sweep.space.finetune.top",
        ),
        ({"space": {"finetune.learning_rate": RATES}}, "without trials, their number, all values"),
        ({"trials": 1, "space": {"finetune.epochs": choice(1, 1)}}, "found 1 twice"),
        (
            {"trials": 1, "space": {"finetune.epochs": choice(1)}, "halving": {"grace_period": 1}},
            "less than 1",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(block: dict[str, Any], said: str) -> None:
    assert said in refusal(**block)


def test_draws_depend_on_the_seed_and_the_number_alone() -> None:
    space = {"finetune.learning_rate": RATES, "finetune.batch_size": choice(8, 16)}

    def drawn(trials: int, seed: int) -> list[dict[str, Any]]:
        return draw_trials(stage_config(space=space, trials=trials, seed=seed).sweep)

    assert drawn(5, 0) == drawn(5, 0) == drawn(9, 0)[:5]
    assert drawn(5, 0) != drawn(5, 1)


def test_no_settings_are_drawn_twice() -> None:
    space = {"finetune.epochs": choice(1, 2, 3), "finetune.batch_size": choice(8, 16)}
    for trials in (6, 7):
        drawn = draw_trials(stage_config(space=space, trials=trials).sweep)
        assert len({tuple(values.values()) for values in drawn}) == len(drawn) == 6


@pytest.mark.parametrize(
    ("allowed", "distribution"),
    [
        ({"kind": "uniform", "low": 0.1, "high": 0.4}, stats.uniform(0.1, 0.3)),
        ({"kind": "loguniform", "low": 1e-5, "high": 1e-2}, stats.loguniform(1e-5, 1e-2)),
    ],
)
def test_ranges_are_drawn_as_their_kind_says(allowed: dict[str, Any], distribution: Any) -> None:
    space = stage_config(space={"finetune.learning_rate": allowed}, trials=1).sweep.space
    (one,) = space.values()
    drawn = [one.draw(np.random.default_rng(seed)) for seed in range(2000)]
    assert stats.kstest(drawn, distribution.cdf).pvalue > 1e-3
    assert min(drawn) >= allowed["low"]
    assert max(drawn) <= allowed["high"]


def test_a_whole_block_can_be_a_value() -> None:
    class Full(Config):
        kind: str = "full"
        decay: float = 1.0

    class Recipe(Config):
        adaptation: dict[str, Full]

    space = {"adaptation.a": choice({"kind": "full"}, {"kind": "slow", "decay": 0.9})}
    sweep = TuningConfig.model_validate({"trials": 2, "space": space})
    check_space(Recipe, {"adaptation": {"a": {}}}, sweep.space)
    assert sorted(values["adaptation.a"]["kind"] for values in draw_trials(sweep)) == [
        "full",
        "slow",
    ]


@pytest.mark.parametrize(
    ("halving", "rounds"),
    [
        (None, [10]),
        ({}, [2, 5, 10]),
        ({"grace_period": 0.1, "reduction_factor": 3}, [1, 3, 9, 10]),
        ({"grace_period": 0.4}, [4, 8, 10]),
        ({"grace_period": 0.01}, [1, 2, 3, 6, 10]),
    ],
)
def test_trials_are_compared_on_the_way(halving: dict[str, Any] | None, rounds: list[int]) -> None:
    space = {"finetune.epochs": choice(4, 10)}
    assert stage_config(space=space, trials=2, halving=halving).rounds == rounds


def test_a_number_that_yaml_takes_for_a_text_is_a_number() -> None:
    space = yaml.safe_load("finetune.learning_rate: {kind: choice, values: [5e-5, 3.0e-5, 2E-5]}")
    assert isinstance(space["finetune.learning_rate"]["values"][0], str)
    drawn = draw_trials(stage_config(space=space, trials=3).sweep)
    assert math.isclose(sum(v["finetune.learning_rate"] for v in drawn), 1e-4)
