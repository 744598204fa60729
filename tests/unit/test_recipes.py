"""The recipes that come with the project load, are complete, and are what they say they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rungwise.core.config import load
from rungwise.core.errors import ConfigError
from rungwise.models.bert import BertForPretraining
from rungwise.pipeline.recipe import Recipe
from tests.conftest import REPOSITORY

CONFIGS = sorted((REPOSITORY / "workflows" / "configs").glob("*.yaml"))
# Written out they would say nothing: a list of nineteen packages, what a source does not set, and
# what the files of a task do not need (docs/reference/tasks.md has all of it).
LEFT_OUT = {"packages", "label", "data"}


def missing(written: Any, whole: Any, path: str = "") -> list[str]:
    """Keys that a recipe leaves to their defaults."""
    if isinstance(whole, dict):
        return [
            found
            for key, value in whole.items()
            if key not in LEFT_OUT
            for found in (
                missing(written[key], value, f"{path}.{key}")
                if key in written
                else [f"{path}.{key}"]
            )
        ]
    if isinstance(whole, list):
        pairs = zip(written, whole, strict=True)
        return [found for one, other in pairs for found in missing(one, other, path)]
    return []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_recipe_loads_and_names_every_key_of_its_blocks(path: Path) -> None:
    written = yaml.safe_load(path.read_text())
    whole = load(Recipe, path).model_dump(mode="json")
    assert missing(written, {key: whole[key] for key in written}) == []


def test_bert_base_is_the_papers() -> None:
    """SPEC B1 and B3: 110,106,428 parameters with both heads at a vocabulary of 30,522."""
    recipe = load(Recipe, REPOSITORY / "workflows" / "configs" / "bert-base.yaml")
    with torch.device("meta"):
        model = BertForPretraining(recipe.model, recipe.tokenizer.vocab_size)
    assert sum(parameter.numel() for parameter in model.parameters()) == 110_106_428
    masking = recipe.instances.masking
    assert (masking.rate, masking.mask_share, masking.random_share) == (0.15, 0.8, 0.1)
    assert (recipe.instances.sequence_length, masking.max_predictions) == (128, 20)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("systems={a: {}}", "systems: this key is called variants now"),
        ("further={}", "further: this key is called continued_pretraining now"),
        ("pretrain_further=[a]", "pretrain_further: this key is called continue_with now"),
        ("finetune.use.kind=full", "finetune.use: this key is called adaptation now"),
        ("instances.units.segmenter=none", "instances.units: this key is called mask_units now"),
        ("model.kind=two_way", "model.kind: two_way is called bidirectional now"),
    ],
)
def test_an_old_key_is_refused_with_the_new_one_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(Recipe, REPOSITORY / "workflows" / "configs" / "quickstart.yaml", [override])
