"""Configuration: strict, dotted overrides, one text for one value."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from rungwise.core.config import (
    Config,
    canonical_json,
    fingerprint,
    flatten,
    load,
    parse_overrides,
    validate,
    with_overrides,
)
from rungwise.core.errors import ConfigError


class Files(Config):
    kind: Literal["files"] = "files"
    paths: list[str]


class Made(Config):
    kind: Literal["made"] = "made"
    count: int = 1


class Optimizer(Config):
    learning_rate: float = Field(gt=0)


class Whole(Config):
    optimizer: Optimizer
    sources: list[Annotated[Files | Made, Field(discriminator="kind")]] = Field(
        default_factory=list
    )


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"optimizer": {"learning_rat": 1}},
            "optimizer.learning_rat: unknown key; did you mean 'learning_rate'?",
        ),
        ({"optimiser": {}}, "optimiser: unknown key; did you mean 'optimizer'?"),
        ({"optimizer": {"learning_rate": "fast"}}, "optimizer.learning_rate: "),
        ({"optimizer": {"learning_rate": -1}}, "greater than 0, found -1"),
        ({}, "optimizer: this key is missing"),
        (
            {"optimizer": {"learning_rate": 1}, "sources": [{"kind": "made", "cuont": 2}]},
            "sources.0.cuont: unknown key; did you mean 'count'?",
        ),
        (
            {"optimizer": {"learning_rate": 1}, "sources": [{"kind": "other"}]},
            "sources.0.kind: expected one of files, made; found 'other'",
        ),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_path(data: dict, message: str) -> None:
    with pytest.raises(ConfigError, match="config: ") as caught:
        validate(Whole, data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_overrides_reach_into_blocks_and_lists(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("optimizer: {learning_rate: 1}\nsources: [{kind: files, paths: [a]}]\n")
    whole = load(Whole, path, ["optimizer.learning_rate=6e-4", "sources.0.paths=[b, c]"])
    assert whole.optimizer.learning_rate == 6e-4  # which YAML reads as text
    assert whole.sources[0] == Files(paths=["b", "c"])


@pytest.mark.parametrize("text", ["optimizer.learning_rate", "=1", " =2"])
def test_an_override_without_a_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected key\.path=value"):
        parse_overrides([text])


def test_an_override_below_a_value_or_beyond_a_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected an index below 1"):
        with_overrides({"sources": [1]}, {"sources.3": 2})


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "just words"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load(Whole, path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the config .*gone\.yaml"):
        load(Whole, tmp_path / "gone.yaml")


@given(st.dictionaries(st.text(), JSON))
def test_the_order_of_keys_does_not_enter_a_fingerprint(value: dict) -> None:
    assert fingerprint(value) == fingerprint(dict(reversed(list(value.items()))))


@given(st.dictionaries(st.text(min_size=1), st.integers(), min_size=1))
def test_any_changed_value_changes_the_fingerprint(value: dict) -> None:
    key = next(iter(value))
    assert fingerprint(value) != fingerprint({**value, key: value[key] + 1})


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, {1: 2}, object(), {"f": print}, {"s": {1, 2}}]
)
def test_what_json_cannot_hold_exactly_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical_json(value)


def test_canonical_json_is_the_text_worked_out_by_hand() -> None:
    text = canonical_json({"b": [1, 2.5, "é"], "a": Optimizer(learning_rate=1)})
    assert text == '{"a":{"learning_rate":1.0},"b":[1,2.5,"é"]}'


def test_flatten_gives_dotted_leaves() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": [1]}}, "e": {}}) == {"a.b": 1, "a.c.d": [1], "e": {}}
    assert flatten({}) == {}
