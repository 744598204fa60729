"""AdamW's groups, and its schedule against numbers worked out by hand."""

import pytest
import torch
from torch import nn

from rungwise.models.families.recurrent import LstmConfig
from rungwise.models.losses.objectives import CAUSAL
from rungwise.training.optimizer import (
    OptimizerConfig,
    ScheduleConfig,
    build_optimizer,
    build_optimizers,
    compute_learning_rate,
    decay_groups,
)
from tests.small_models import small_model


def schedule(**keys):
    return OptimizerConfig(learning_rate=1.0, schedule=ScheduleConfig(**keys))


@pytest.mark.parametrize(
    ("keys", "total", "expected"),
    [
        # Four of ten steps are warm-up: fifths up to the peak, then sixths down.
        (
            {"warmup_fraction": 0.4},
            10,
            [*(n / 5 for n in range(1, 5)), *(n / 6 for n in range(6, 0, -1))],
        ),
        (
            {"kind": "cosine", "warmup_fraction": 0.0, "final_fraction": 0.1},
            6,
            {0: 1.0, 2: 0.1 + 0.9 * 0.75, 3: 0.55, 4: 0.1 + 0.9 * 0.25},
        ),
        (
            {"kind": "warmup_stable_decay", "warmup_fraction": 0.2, "decay_fraction": 0.4},
            10,
            [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 3 / 4, 2 / 4, 1 / 4],
        ),
        # A number of steps replaces its fraction.
        ({"kind": "warmup_stable_decay", "warmup_steps": 0, "decay_fraction": 1.0}, 2, [1, 1 / 2]),
        ({"final_fraction": 0.25}, 100, {100: 0.25, 150: 0.25}),  # beyond the last step
    ],
)
def test_rates_by_hand(keys, total, expected):
    rates = expected if isinstance(expected, dict) else dict(enumerate(expected))
    for step, rate in rates.items():
        assert compute_learning_rate(step, total, schedule(**keys)) == pytest.approx(
            rate, rel=1e-12
        )


def test_down_is_the_way_of_transformers():
    from transformers import get_linear_schedule_with_warmup

    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = get_linear_schedule_with_warmup(optimizer, 20, 100)
    config = schedule(warmup_fraction=0.2)
    for step in range(100):
        if step >= 20:
            expected = scheduler.get_last_lr()[0]
            assert compute_learning_rate(step, 100, config) == pytest.approx(expected, rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_biases_and_layer_norm_do_not_decay():
    """The rule of google-research/bert, by name: LayerNorm, layer_norm, bias."""
    model = small_model("mlm_nsp")
    decayed, undecayed = decay_groups(model)
    assert {**decayed, **undecayed}.keys() == dict(model.named_parameters()).keys()
    for name in (*decayed, *undecayed):
        assert (name.endswith("bias") or "norm" in name) == (name in undecayed), name
    assert "bert.token_embedding.weight" in decayed
    groups = build_optimizer(model, OptimizerConfig()).param_groups
    assert [group["weight_decay"] for group in groups] == [0.01, 0.0]


def test_it_is_the_adamw_of_pytorch_with_the_numbers_of_the_config() -> None:
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.5, epsilon=1e-5, beta1=0.8)
    optimizer = build_optimizer(nn.Linear(1, 1), config)
    assert isinstance(optimizer, torch.optim.AdamW)
    for group, decay in zip(optimizer.param_groups, (0.5, 0.0), strict=True):
        found = [group[key] for key in ("lr", "betas", "eps", "weight_decay", "fused")]
        assert found == [0.1, (0.8, 0.999), 1e-5, decay, True]


def test_lower_layers_learn_more_slowly_and_heads_as_the_highest() -> None:
    """Two layers: embeddings, which are the output too, first layer, second layer and the bias."""
    model = LstmConfig(num_layers=2, hidden_size=4).build(9, CAUSAL)
    (optimizer,) = build_optimizers(model, OptimizerConfig(layer_decay=0.5))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    shares = {
        names[id(parameter)]: group["learning_rate_share"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert shares.pop("lstm.token_embedding.weight") == 0.25
    assert shares.pop("bias") == 1.0
    assert {
        name: value for name, value in shares.items() if value != (0.5, 1.0)["s.1." in name]
    } == {}
    assert len(shares) == 8
