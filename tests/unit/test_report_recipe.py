"""The recipe that a page leaves behind builds the same stages again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rungwise.core.artifact import Artifact
from rungwise.core.config import load
from rungwise.core.stage import Stage
from rungwise.core.storage import Folder
from rungwise.pipeline.experiment import experiment_stages
from rungwise.pipeline.recipe import Recipe, report_stage
from rungwise.report import origin, rebuild


def test_the_recipe_left_behind_builds_the_same_fingerprints(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("One sentence here. Another one there.")
    pretrain = {"steps": 40, "optimizer": {"kind": "adamw", "learning_rate": 6.0e-4}}
    paragraphs = {"kind": "paragraph_label", "num_labels": 2, "train_per_label": 20}
    rates = {"kind": "loguniform", "low": 1e-4, "high": 1e-2}
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
        "pretrain": pretrain,
        "continued_pretraining": {
            "domain": {
                "corpus": {"sources": [{"kind": "text", "paths": [str(tmp_path / "b.txt")]}]},
                "instances": {"kind": "masked_pairs", "sequence_length": 32},
                "pretrain": pretrain | {"steps": 5},
            },
            "adapt": {
                "task_text": {"seed": 3},
                "instances": {"kind": "masked_pairs", "sequence_length": 32},
                "pretrain": pretrain | {"steps": 6},
            },
        },
        "tasks": {
            "two.ways": {"data": paragraphs, "finetune": {"epochs": 4}},
            "three": {"data": paragraphs | {"num_labels": 3}},
        },
        "variants": {
            "plain": {},
            "longer": {"pretrain.steps": 50},
            "random": {"finetune.initialisation": "random"},
            "continued_pretraining": {"continue_with": ["domain", "adapt"], "finetune.epochs": 2},
            "seeds": {
                "sweep.space": {
                    "finetune.learning_rate": rates | {"low": 1e-3},
                    "pretrain.seed": {"kind": "choice", "values": [1, 2]},
                }
            },
        },
        "match_pretraining": "flops",
        "finetune": {"pooling": "mean", "epochs": 3},
        "sweep": {"trials": 4, "space": {"finetune.learning_rate": rates}},
        "evaluate": {"label_budgets": [10]},
        "registry": {},
        "report": {"fill_in_examples": 3},
    }
    (tmp_path / "first.yaml").write_text(yaml.safe_dump(blocks, sort_keys=False))
    first = load(Recipe, tmp_path / "first.yaml")
    stages = experiment_stages(first)
    inputs = _as_built(stages, Folder.at(first.root))
    text = origin.recipe_text(rebuild.recipe(inputs, first.report.model_dump(mode="json")))
    (tmp_path / "again.yaml").write_text(text)
    again = load(Recipe, tmp_path / "again.yaml")
    rebuilt = experiment_stages(again)
    assert {title: stage.fingerprint for title, stage in rebuilt.items()} == {
        title: stage.fingerprint for title, stage in stages.items()
    }
    assert report_stage(again, rebuilt).fingerprint == report_stage(first, stages).fingerprint
    assert again.root == first.root
    assert origin.workflow(inputs) == "finetune"


def _as_built(stages: dict[str, Stage], root: Folder) -> dict[str, Artifact]:
    """Artifacts with what the recipe is put together from."""
    found: dict[str, Artifact] = {}
    for title, stage in stages.items():
        config = stage.config.model_dump(mode="json")
        summary: dict[str, Any] = {}
        if stage.name == "evaluate":
            summary = {"task": config["task"], "budget": config["budget"]}
        record = {
            "label": "small",
            "config": config,
            "inputs": {
                name: {"stage": source.name, "fingerprint": source.fingerprint}
                for name, source in stage.inputs.items()
            },
            "summary": summary,
        }
        folder = root / stage.name / f"small-{stage.fingerprint}"
        found[title] = Artifact(stage.name, stage.fingerprint, folder, record)
    return found
