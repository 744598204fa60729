"""What a dry run says: counts that follow from the config, and time at a known rate."""

from pathlib import Path

import pytest
import torch

from rungwise.__main__ import main
from rungwise.core.configuration.overrides import ComputeConfig, load
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import pretrain_config
from rungwise.training.estimate import Measures, estimate_run, memory_estimate
from rungwise.training.fit_config import require_gradient
from rungwise.training.initial import build_model
from rungwise.training.optimizer import build_optimizers
from tests.conftest import REPOSITORY, small_recipe, write_recipe
from tests.training_runs import config, make_instances


def test_bert_base_by_hand() -> None:
    """SPEC B1: 110,106,428 parameters; 545.4 MFLOP a token at length 128."""
    recipe = load(Recipe, REPOSITORY / "workflows" / "configs" / "bert-base.yaml")
    assert recipe.instances is not None
    settings = require_gradient(pretrain_config(recipe), "steps")
    measures = Measures.planned(recipe.instances, 30_522)
    compute = ComputeConfig(num_workers=4, micro_batch_size=16)
    estimate = estimate_run(settings, [measures], compute, tokens_per_second=1e6)
    steps, size = settings.pretrain.steps, settings.pretrain.global_batch_size
    assert estimate.parameters == 110_106_428
    assert estimate.training.tokens == steps * size * 128
    assert estimate.training.flops_per_token == pytest.approx(545.4e6, rel=0.01)
    assert estimate.seconds == pytest.approx(estimate.training.tokens / 1e6)


@pytest.mark.parametrize("kind", ["masked_pairs", "causal"])
def test_the_estimate_of_memory_is_near_what_a_step_holds(tmp_path: Path, kind: str) -> None:
    """Weights, gradients and moments, counted in the tensors themselves."""
    settings = config(kind)
    measures = Measures.of(make_instances(tmp_path, kind))
    parameters = estimate_run(settings, [measures], ComputeConfig()).parameters
    estimated = memory_estimate(settings, measures, ComputeConfig(), parameters, micro=0)
    model = build_model(settings, measures.vocab_size)
    optimizers = build_optimizers(model, settings.pretrain.optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    held = [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None)]
    held += [v for o in optimizers for s in o.state.values() for v in s.values()]
    assert estimated == pytest.approx(sum(t.numel() * 4 for t in held), rel=0.02)


def test_the_command_prints_what_a_recipe_would_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "r.yaml", small_recipe(tmp_path / "root", tmp_path))
    known = ["--tokens-per-second=1000", "compute.price_per_hour=2"]
    assert main(["dry-run", str(recipe), *known]) == 0
    text = capsys.readouterr().out
    heading, row = text.partition("\n\n")[0].splitlines()
    assert heading.split()[2:] == [
        *("parameters", "steps", "tokens", "operations", "memory", "time", "cost")
    ]
    tokens, *_, cost = row.split()[4:]
    assert float(cost) == pytest.approx(float(tokens.replace(",", "")) / 1000 / 3600 * 2, abs=0.01)
    wide = ["model.num_heads=32", "model.hidden_size=163840", "compute.micro_batch_size=64"]
    assert main(["dry-run", str(recipe), *wide, "pretrain.global_batch_size=512"]) == 0
    assert "on this machine, too little; lower compute.micro_batch" in capsys.readouterr().out
    assert not (tmp_path / "root").exists()


def test_a_ladder_has_a_row_for_each_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = small_recipe(tmp_path / "root", tmp_path)
    counts = {"model": {"kind": "ngram"}, "pretrain": {"kind": "counts"}}
    network = {"kind": "gpt"} | {k: v for k, v in recipe["model"].items() if k != "kind"}
    fit = {"kind": "interpolation", "network": recipe["pretrain"] | {"steps": 20}}
    recipe["variants"] = {
        "whole": {},
        "frozen": {"finetune.adaptation": {"kind": "frozen"}},
        "counted": counts,
        "longer": {"pretrain.steps": 60},
        "both": {
            "instances": {"kind": "causal", "sequence_length": 32},
            "model": {"kind": "counts_and_network", "counts": {"order": 3}, "network": network},
            "pretrain": fit,
        },
    }
    recipe |= {"finetune": {}, "measure": {"perplexity": {"kind": "perplexity"}}}
    assert main(["dry-run", str(write_recipe(tmp_path / "r.yaml", recipe))]) == 0
    table, total = capsys.readouterr().out.strip().split("\n\n")
    steps = {row.split()[0]: row.split()[3] for row in table.splitlines()[1:]}
    assert steps == {
        "frozen": "40",  # trains as `whole` does, and comes before it in the file
        "counted": "counts",
        "longer": "60",
        "both/counts": "counts",
        "both/network": "20",
        "both": "interpolation",
    }
    assert "not known" not in table
    assert total.startswith("run ladder, from text to page: about")
    recipe["variants"] = {"counted": counts}
    assert main(["dry-run", str(write_recipe(tmp_path / "r.yaml", recipe))]) == 0
    assert "by counts" in capsys.readouterr().out
