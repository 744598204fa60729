"""The recipes that come with the project say what differs, and every system of history has one."""

import contextlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.reference.generate import reference
from rungwise.core.configuration.config import validate
from rungwise.core.configuration.overrides import find_value, load, with_overrides
from rungwise.core.errors import ConfigError
from rungwise.instances.pairs import MaskedPairsConfig
from rungwise.models.families.bert import BertConfig
from rungwise.pipeline.experiment import change_recipe, resolve_variants
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.stages import pretrain_config, pretrain_stages
from rungwise.tokenizer.config import TrainedConfig
from tests.conftest import REPOSITORY, small_recipe

CONFIGS = sorted((REPOSITORY / "workflows" / "configs").glob("*.yaml"))


@cache
def loaded(path: Path) -> Recipe:
    return load(Recipe, path)


def blocks_of(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple, dict]]:
    """The blocks of a recipe and where they are; its variants have no defaults."""
    if isinstance(data, dict):
        yield path, data
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(value, dict | list) and key != "variants":
            yield from blocks_of(value, (*path, key))


def test_a_recipe_says_only_what_differs_from_the_defaults() -> None:
    seen = set()  # a default depends on the kind of its block, and on the model
    for path in CONFIGS:
        written = yaml.load(path.read_text(), yaml.CSafeLoader)
        whole = loaded(path).model_dump()
        for place, block in blocks_of(written):
            for key, value in [*block.items()]:
                own = json.dumps([place, block.get("kind"), key, value, written.get("model")])
                if own in seen:
                    continue
                seen.add(own)
                del block[key]
                with contextlib.suppress(ConfigError):  # it cannot be left out
                    assert validate(Recipe, written).model_dump() != whole, (
                        f"{path.name}: {(*place, key)} is the default"
                    )
                block[key] = value


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_resolved_recipe_is_the_recipe_with_every_key(path: Path) -> None:
    recipe = loaded(path)
    written = yaml.load(recipe.to_yaml(), yaml.CSafeLoader)
    assert written == recipe.model_dump(mode="json")
    assert validate(Recipe, written).model_dump() == recipe.model_dump()


LSTM = {"model": {"kind": "lstm"}, "instances": {"kind": "causal", "sequence_length": 8}}


@pytest.mark.parametrize(
    ("blocks", "keys", "message"),
    [
        (LSTM, {"pretrain.order.window_instances": 8}, r"^pretrain\.order\.window_instances is 8"),
        ({}, {"compute.num_workers": 17}, r"global_batch_size is 16, too few for .* 17"),
        ({}, {"instances.sequence_length": 33}, r"is 32, but instances\.sequence_length is 33"),
        ({}, {"instances.kind": "causal"}, r"objective is mlm_nsp and .* bert, which .* is causal"),
        (
            {},
            {
                "steps": [
                    {},
                    {
                        "name": "more",
                        "corpus": {"sources": [{"kind": "text", "paths": ["x"]}]},
                        "instances": {"kind": "masked_pairs"},
                        "pretrain": {"steps": 1},
                    },
                ]
            },
            r"^steps\.1: .* is 32, but instances\.sequence_length is 128",
        ),
    ],
)
def test_a_plan_refuses_what_the_stage_would_refuse(
    tmp_path: Path, blocks: dict[str, Any], keys: dict[str, Any], message: str
) -> None:
    """And before it looks for the corpus, which is not there."""
    recipe = small_recipe(tmp_path, tmp_path / "gone.txt", **blocks)
    with pytest.raises(ConfigError, match=message):
        pretrain_stages(validate(Recipe, with_overrides(recipe, keys)))


def test_the_reference_is_what_the_classes_say() -> None:
    page = (REPOSITORY / "docs" / "reference" / "recipe.md").read_text("utf-8")
    assert page == reference(), "write it again with: make reference"


def test_bert_base_is_the_papers() -> None:
    """SPEC B1 and B3; tests/unit/training/test_training_dry_run.py counts its parameters."""
    recipe = load(Recipe, REPOSITORY / "workflows" / "configs" / "bert-base.yaml")
    assert isinstance(recipe.model, BertConfig)
    assert isinstance(recipe.tokenizer, TrainedConfig)
    assert isinstance(recipe.instances, MaskedPairsConfig)
    assert recipe.tokenizer.vocab_size == 30_522
    masking = recipe.instances.masking
    assert (masking.rate, masking.mask_share, masking.random_share) == (0.15, 0.8, 0.1)
    assert (recipe.instances.sequence_length, masking.max_predictions) == (128, 20)


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
    recipe = loaded(REPOSITORY / "workflows" / "configs" / f"{name}.yaml")
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
