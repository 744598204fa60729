"""Configuration: strict, dotted overrides, one text for one value."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, model_validator

from rungwise.core.configuration.canonical import canonical_json, fingerprint, flatten
from rungwise.core.configuration.config import Config, validate
from rungwise.core.configuration.overrides import load, parse_overrides, with_overrides
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


def test_a_key_given_twice_is_refused_and_one_that_is_merged_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("optimizer: {learning_rate: 1.0}\noptimizer:\n  learning_rate: 2.0\n")
    with pytest.raises(ConfigError, match=r'given twice in "a\.yaml", line 2, column 1'):
        load(Whole, path)
    with pytest.raises(ConfigError, match="the key learning_rate is given twice"):
        parse_overrides(["optimizer={learning_rate: 1.0, learning_rate: 2.0}"])
    path.write_text(
        "optimizer: &a {learning_rate: 1.0}\nsources:\n"
        "  - &b {kind: made, count: 3}\n  - {<<: *b, count: 4}\n  - {<<: *b}\n"
    )
    assert [each.count for each in load(Whole, path).sources if isinstance(each, Made)] == [3, 4, 3]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"optimizer": {"learning_rat": 1}}, "rat: unknown key; did you mean 'learning_rate'?"),
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


@pytest.mark.parametrize("text", ["optimizer.learning_rate", "=1", " =2"])
def test_an_override_without_a_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected key\.path=value"):
        parse_overrides([text])


def test_an_override_beyond_a_list_is_refused() -> None:
    for place in ("3", "-1", "²"):
        with pytest.raises(ConfigError, match="expected an index below 1"):
            with_overrides({"sources": [1]}, {f"sources.{place}": 2})


def test_a_file_that_is_missing_or_no_mapping_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    with pytest.raises(ConfigError, match=r"cannot read the config .*c\.yaml"):
        load(Whole, path)
    for text in ("[1, 2]", "a: [", "just words"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"c\.yaml"):
            load(Whole, path)


@settings(max_examples=30)
@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_the_order_of_keys_does_not_enter_a_fingerprint(value: dict) -> None:
    assert fingerprint(value) == fingerprint(dict(reversed(list(value.items()))))


@given(st.dictionaries(st.text(min_size=1), st.integers(), min_size=1))
def test_any_changed_value_changes_the_fingerprint(value: dict) -> None:
    key = next(iter(value))
    assert fingerprint(value) != fingerprint({**value, key: value[key] + 1})


def test_canonical_json_is_the_text_worked_out_by_hand_or_an_error() -> None:
    value = {"b": [1, 2.5, "é"], "a": Optimizer(learning_rate=1)}
    assert canonical_json(value) == '{"a":{"learning_rate":1.0},"b":[1,2.5,"é"]}'
    assert flatten(value) == {"a.learning_rate": 1.0, "b": [1, 2.5, "é"]}
    for inexact in (math.nan, math.inf, {1: 2}, object(), {"f": print}, {"s": {1, 2}}):
        with pytest.raises((TypeError, ValueError)):
            canonical_json(inexact)


class Steps(Config):
    learning_rate: float = Field(default=1.0, gt=0)
    clip: float | None = 1.0


class Plain(Steps):
    kind: Literal["plain"] = "plain"


class Heavy(Steps):
    kind: Literal["heavy"] = "heavy"
    momentum: float = 0.9
    turns: int = 5


class Training(Config):
    steps: int = 10
    optimizer: Annotated[Plain | Heavy, Field(discriminator="kind")] = Plain()
    tasks: dict[str, Files] = Field(default_factory=dict)
    sources: list[Files] = Field(default_factory=list)

    @model_validator(mode="after")
    def _few(self) -> Training:
        if self.steps * self.optimizer.learning_rate > 100:
            raise ValueError("steps times learning_rate is above 100; lower one")
        return self


HEAVY = "optimizer: {kind: heavy, momentum: 0.5, learning_rate: 2}\n"


def loaded(tmp_path: Path, text: str, *overrides: str) -> tuple[Training, list[str]]:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    notes: list[str] = []
    return load(Training, path, overrides, notes.append), notes


def test_keys_of_another_kind_fall_away_and_are_named(tmp_path: Path) -> None:
    training, (note,) = loaded(tmp_path, HEAVY, "optimizer.kind=plain")
    assert training.optimizer == Plain(learning_rate=2)
    assert note.startswith("optimizer.kind=plain has no momentum: ")
    assert loaded(tmp_path, HEAVY, "optimizer.kind=heavy") == loaded(tmp_path, HEAVY)


@pytest.mark.parametrize(
    ("overrides", "blamed"),
    [
        (["optimizer.kind=plain", "optimizer.momentum=0.1"], "optimizer.momentum=0.1: unknown key"),
        (["optimizer.kind=heavi"], "optimizer.kind=heavi: expected one of plain, heavy"),
        (["optimizer.learning_rat=1"], "optimizer.learning_rat=1: unknown key; did you mean"),
        (["optimiser.clip=1"], "optimiser.clip=1: optimiser: unknown key; did you mean 'optim"),
        (["sources.0={}"], "sources.0={}: "),
        (["stepps=null"], "stepps=null: unknown key; did you mean 'steps'?"),
        (["steps=1", "optimizer.learning_rate=-1"], "optimizer.learning_rate=-1: input should"),
        (["optimizer.learning_rate=50"], "optimizer.learning_rate=50: steps times"),
    ],
)
def test_an_override_is_blamed_for_it(tmp_path: Path, overrides: list[str], blamed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, HEAVY + "sources: [{paths: [a]}]", *overrides)
    assert str(caught.value).startswith(blamed)
    assert "c.yaml" not in str(caught.value)


def test_a_mistake_of_the_file_is_blamed_on_it_beside_one_of_an_override(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, "stepps: 5\n", "optimizer.clip=-x")
    assert "optimizer.clip=-x: input should" in str(caught.value)
    assert f"{tmp_path}/c.yaml: stepps: unknown key" in str(caught.value)


def test_null_drops_a_key_that_cannot_be_null_and_is_a_value_elsewhere(tmp_path: Path) -> None:
    text = "steps: 5\ntasks: {a: {paths: [x]}, b: {paths: [y]}}\n"
    text += "sources: [{paths: [s]}, {paths: [t]}, {paths: [u]}]\n"
    overrides = ["steps=null", "tasks.a=null", "sources.0=null", "sources.1=null"]
    training, _ = loaded(tmp_path, text, *overrides, "optimizer.clip=null")
    assert (training.steps, training.optimizer.clip) == (10, None)
    assert list(training.tasks) == ["b"]
    assert training.sources == [Files(paths=["u"])]


@pytest.mark.parametrize(
    "overrides",
    [
        ["optimizer.kind=plain", "optimizer=null"],
        ["optimizer.kind=plain", "optimizer=3"],
        ["sources.0.paths=[b]", "sources=[]"],
        ["optimizer=3", "optimizer.kind=plain"],
    ],
)
def test_overrides_that_undo_each_other_are_refused(tmp_path: Path, overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match="undo each other"):
        loaded(tmp_path, HEAVY + "sources: [{paths: [a]}]", *overrides)


def test_a_block_set_to_null_or_anew_takes_later_keys(tmp_path: Path) -> None:
    for block in ("null", "{}", "{clip: 4}"):
        training, _ = loaded(tmp_path, HEAVY, f"optimizer={block}", "optimizer.clip=6e-4")
        assert training.optimizer == Plain(clip=6e-4)  # which YAML reads as text


KEYS = ("optimizer", "optimizer.kind", "optimizer.clip", "optimizer.momentum", "sources")
KEYS += ("sources.0", "sources.0.paths", "sources.0.paths.0", "tasks", "tasks.a", "tasks.a.paths")
VALUES = ("null", "3", "[]", "{}", "plain", "heavy", "[x]", "{paths: [y]}", "0x_", "&a [*a]")


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=4))
def test_no_overrides_end_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, given: list[tuple[str, str]]
) -> None:
    with contextlib.suppress(ConfigError):
        text = HEAVY + "sources: [{paths: [a]}]"
        loaded(tmp_path_factory.getbasetemp(), text, *("=".join(each) for each in given))


def test_a_date_is_text_and_what_json_lacks_is_refused(tmp_path: Path) -> None:
    assert parse_overrides(["name=2026-13-45"]) == {"name": "2026-13-45"}
    assert parse_overrides(["names={2026-01-02: 3, 4: 5}"]) == {"names": {"2026-01-02": 3, "4": 5}}
    levels = (f"&b{n} [{', '.join([f'*b{n - 1}'] * 10)}]" for n in range(1, 9))
    bomb = f"[&b0 x, {', '.join(levels)}]"
    for value in ("!!set {a}", "!!binary aGk=", "!!timestamp x", "!!int x", "[\n" * 5000, bomb):
        with pytest.raises(ConfigError, match=r"^the value of steps is not YAML: "):
            parse_overrides([f"steps={value}"])
        with pytest.raises(ConfigError, match=r"c\.yaml is not YAML: "):
            loaded(tmp_path, f"steps: {value}")
    assert loaded(tmp_path, "tasks: {2026-01-02: {paths: [2026-01-03]}}")[0].tasks == {
        "2026-01-02": Files(paths=["2026-01-03"])
    }


def test_a_block_that_names_no_kind_is_of_the_default_one(tmp_path: Path) -> None:
    assert loaded(tmp_path, "steps: 5", "optimizer.clip=3")[0].optimizer == Plain(clip=3)
    assert loaded(tmp_path, "optimizer: {clip: 3}")[0].optimizer == Plain(clip=3)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "learning_rate": st.floats(0.1, 2),
            "clip": st.none() | st.floats(0.1, 2),
            "momentum": st.floats(0, 1),
            "turns": st.integers(1, 9),
        },
    )
)
def test_a_change_of_kind_leaves_the_common_keys_and_nothing_else(block: dict) -> None:
    changes = {"optimizer.kind": "plain"}
    data = with_overrides({"optimizer": {"kind": "heavy", **block}}, changes, Training)
    common = {key: value for key, value in block.items() if key in Plain.model_fields}
    assert data == {"optimizer": {"kind": "plain", **common}}
    assert validate(Training, data).optimizer == Plain(**common)
