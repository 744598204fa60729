"""Every system of the history has a recipe, a row of a year, a paper and a test."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from rungwise.core.configuration.overrides import find_value, load, with_overrides
from rungwise.pipeline.experiment import change_recipe, resolve_variants
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import pretrain_config
from tests.conftest import REPOSITORY

SYSTEMS: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("systems.yaml").read_text("utf-8")
)
# The specification's tables of language models, representations and transfers.
IDS = [
    *(f"L{number}" for number in range(11)),
    *(f"E{number}" for number in range(8)),
    *(f"T{number}s" for number in range(1, 8)),
    *(f"C{number}" for number in range(1, 6)),
]


@cache
def recipe_of(name: str) -> Recipe:
    recipe = load(Recipe, REPOSITORY / "workflows" / "configs" / f"{name}.yaml")
    if recipe.tasks:
        resolve_variants(recipe)
    return recipe


def test_the_list_is_that_of_the_specification() -> None:
    assert list(dict.fromkeys(name.partition("-")[0] for name in SYSTEMS)) == IDS


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_has_a_recipe_that_plans_a_row_and_a_test(name: str) -> None:
    entry = SYSTEMS[name]
    path, test = entry["test"].split("::")
    assert re.search(rf"^def {test}\(", (REPOSITORY / "tests" / path).read_text("utf-8"), re.M)
    if name in ("L0", "E0"):
        return
    recipe = recipe_of(entry["recipe"])
    changes = recipe.variants[entry["variant"]] if "variant" in entry else {}
    chosen = change_recipe(recipe, entry["variant"]) if changes else recipe
    config = pretrain_config(chosen)
    origin = config.model.origin(config.objective)
    assert origin.year == entry["year"]
    assert origin.paper
    assert origin.idea
    # Settings of fine-tuning are those of a variant, and not of its pretraining.
    data = with_overrides(chosen.to_record("root"), changes, Recipe)
    for key, value in entry["keys"].items():
        assert find_value(data, key) == value, key
