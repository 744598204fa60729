"""Whether Ray starts while a recipe is read: what the text of the recipe and the root say."""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from rungwise.core.configuration.compute import ComputeConfig
from rungwise.core.stages import provenance
from rungwise.pipeline.forecast import expect_building

COMPUTE = ComputeConfig(object_store_megabytes=100)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("nothing of this name", COMPUTE),
        ("made by this command", None),
        ("by another command", COMPUTE),
        ("the recipe is newer", COMPUTE),
        ("another name has all", COMPUTE),
        ("a record that is cut off", None),
        ("faults", None),
        ("no recipe", None),
        ("in a bucket", None),
    ],
)
def test_ray_starts_ahead_where_something_will_be_built(
    case: str, expected: ComputeConfig | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["rungwise", "run", "pretrain", "r.yaml"])
    recipe = tmp_path / "r.yaml"
    root = "s3://bucket/x" if case == "in a bucket" else str(tmp_path / "root")
    blocks = {"name": "one", "root": root, "compute": {"object_store_megabytes": 100}}
    if case == "faults":
        blocks["compute"] = {"object_store_megabyte": 100}
    recipe.write_text(yaml.safe_dump(blocks))
    if case not in ("nothing of this name", "in a bucket"):
        name = "other" if case == "another name has all" else "one"
        record = tmp_path / "root" / "report" / f"{name}-0123" / "artifact.json"
        record.parent.mkdir(parents=True)
        command = provenance.command() + " a=1" * (case == "by another command")
        text = json.dumps({"made_by": {"command": command}})
        record.write_text(text[:9] if case == "a record that is cut off" else text)
        later = record.stat().st_mtime + (5 if case == "the recipe is newer" else -5)
        os.utime(recipe, (later, later))
    place = tmp_path / "none.yaml" if case == "no recipe" else recipe
    assert expect_building(str(place), []) == expected


def test_an_override_counts(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("name: one\nroot: s3://bucket/x\n")
    overrides = [f"root={tmp_path}", "compute.object_store_megabytes=100"]
    assert expect_building(str(recipe), overrides) == COMPUTE
