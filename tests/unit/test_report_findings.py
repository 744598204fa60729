"""What the report says in words, against cases worked by hand; and the recipe it leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rungwise.artifact import Artifact
from rungwise.config import load
from rungwise.recipe import Recipe, finetune_stages, pretrain_stages, report_stage
from rungwise.report import findings, formats, origin
from rungwise.storage import Folder


@pytest.mark.parametrize(
    ("low", "mean", "high", "name"),
    [
        (0.01, 0.05, 0.09, "helped"),
        (-0.09, -0.05, -0.01, "did not help"),
        (-0.01, 0.05, 0.11, "unresolved"),
        (-0.11, -0.05, 0.01, "unresolved"),
        (0.0, 0.05, 0.10, "unresolved"),  # 0 is in the interval
        (0.0, 0.0, 0.0, "unresolved"),
    ],
)
def test_a_verdict_needs_an_interval_without_0(
    low: float, mean: float, high: float, name: str
) -> None:
    found = findings.verdict({"mean": mean, "low": low, "high": high, "count": 5})
    assert found.name == name
    assert formats.points(mean) in found.sentence
    assert name != "unresolved" or found.sentence.startswith("Unresolved")


def test_relative_error_reduction_is_that_of_elmo() -> None:
    # Peters et al. 2018, table 1: SQuAD 81.1 -> 85.8 is 24.9 %, SNLI 88.0 -> 88.7 is 5.8 %, SRL
    # 81.4 -> 84.6 is 17.2 %, Coref 67.2 -> 70.4 is 9.8 %, NER 90.15 -> 92.22 is 21 %, SST-5
    # 51.4 -> 54.7 is 6.8 %.
    for old, new, published in (
        (81.1, 85.8, 24.9),
        (88.0, 88.7, 5.8),
        (81.4, 84.6, 17.2),
        (67.2, 70.4, 9.8),
        (90.15, 92.22, 21.0),
        (51.4, 54.7, 6.8),
    ):
        found = findings.relative_error_reduction(old / 100, new / 100)
        assert found is not None
        assert 100 * found == pytest.approx(published, abs=0.06)
    assert findings.relative_error_reduction(1.0, 1.0) is None


def test_the_use_of_context_is_not_flattered() -> None:
    assert findings.use_of_context(7.0, 6.5) == "0.50 nats above what a guess without context costs"
    assert findings.use_of_context(6.44, 6.5).startswith("only 0.06 nats below")
    assert findings.use_of_context(4.0, 6.5).startswith("2.50 nats below")


def test_numbers_as_people_read_them() -> None:
    minus = "\N{MINUS SIGN}"
    assert formats.points(-0.0997) == f"{minus}10.0"
    assert formats.points(0.074) == "+7.4"
    assert formats.percent(0.2167) == "21.7%"
    assert formats.compact(1503746) == "1.5\N{NO-BREAK SPACE}M"
    assert formats.compact(12) == "12"
    assert formats.duration(2.37) == "2.4 s"
    assert formats.duration(59.99) == "1 min 0 s"
    assert formats.duration(155.5) == "2 min 36 s"
    assert formats.duration(3599.9) == "1 h 0 min"
    assert (
        formats.share_with_interval({"mean": 0.5, "low": 0.4, "high": 0.6}) == "50.0% [40.0, 60.0]"
    )
    assert formats.setting(0.0022) == "2.2e-03"
    assert formats.setting(16) == "16"


def test_the_recipe_left_behind_builds_the_same_fingerprints(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One sentence here. Another one there.")
    blocks = {
        "name": "small",
        "root": str(tmp_path / "artifacts"),
        "corpus": {"sources": [{"kind": "text", "paths": [str(tmp_path / "a.txt")]}]},
        "tokenizer": {"kind": "wordpiece", "vocab_size": 300},
        "instances": {"kind": "masked_pairs", "sequence_length": 32},
        "model": {
            "kind": "bert",
            "num_layers": 1,
            "num_heads": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
        },
        "pretrain": {"steps": 40, "optimizer": {"kind": "adamw", "learning_rate": 6.0e-4}},
        "task": {"num_labels": 3},
        "finetune": {"pooling": "mean"},
        "sweep": {"space": {"learning_rate": {"kind": "loguniform", "low": 1e-4, "high": 1e-2}}},
        "evaluate": {},
        "registry": {},
        "report": {"fill_in_examples": 3},
    }
    (tmp_path / "first.yaml").write_text(yaml.safe_dump(blocks))
    first = load(Recipe, tmp_path / "first.yaml")
    stages = pretrain_stages(first)
    stages |= finetune_stages(first, stages)
    report = report_stage(first, stages)
    root = Folder.at(first.root)
    inputs = {
        name: Artifact(
            name,
            stage.fingerprint,
            root / name / f"small-{stage.fingerprint}",
            {"label": "small", "config": stage.config.model_dump(mode="json")},
        )
        for name, stage in stages.items()
    }
    text = origin.recipe_text(origin.recipe(inputs, first.report.model_dump(mode="json")))
    (tmp_path / "again.yaml").write_text(text)
    again = load(Recipe, tmp_path / "again.yaml")
    rebuilt = pretrain_stages(again)
    rebuilt |= finetune_stages(again, rebuilt)
    assert {name: stage.fingerprint for name, stage in rebuilt.items()} == {
        name: stage.fingerprint for name, stage in stages.items()
    }
    assert report_stage(again, rebuilt).fingerprint == report.fingerprint
    assert again.root == first.root
    assert origin.workflow(inputs) == "finetune"
