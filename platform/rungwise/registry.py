"""Register stage: the fine-tuned model as an MLflow registered model that loads anywhere.

What is registered is data and this package's code (an MLflow "model from code"): safetensors, the
tokenizer, a JSON file; nothing is unpickled. Its tags name the fingerprint of every artifact it
comes from. The alias goes to the new version unless one with a higher score on the same task's
validation split holds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import Field

from rungwise.artifact import Artifact
from rungwise.config import Config
from rungwise.context import Context
from rungwise.storage import Folder
from rungwise.tasks.paragraphs import read
from rungwise.tokenizer import FILE as TOKENIZER_FILE
from rungwise.tracking import quieten_mlflow
from rungwise.training.checkpoint import MODEL

_EXAMPLES = 2


class RegistryConfig(Config):
    """The name in the registry, and the alias of the version to use."""

    name: str = Field(default="rungwise-paragraph-bert", pattern=r"^[^/:.%\"']+$")
    alias: str = "champion"


def run(
    config: RegistryConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> dict[str, Any]:
    """Log and register the model in the run of this stage; write `registered.json`."""
    import mlflow
    from mlflow import MlflowClient
    from mlflow.models import infer_signature
    from mlflow.models.model import ModelInfo

    assert context.tracking is not None, "the register stage runs in the driver"
    evaluation, task, pretrained = inputs["evaluate"], inputs["task"], inputs["pretrain"]
    chosen = evaluation.summary["chosen"]
    best = inputs["sweep"].summary["best"][chosen["initialisation"]]
    description = {
        "model": pretrained.summary["model"],
        "vocab_size": pretrained.summary["vocab_size"],
        "labels": task.summary["labels"],
        "finetune": best["finetune"],
    }
    texts = [example.text for example in read(task, "validation")[:_EXAMPLES]]
    quieten_mlflow()
    mlflow.set_tracking_uri(context.tracking.uri)
    info: ModelInfo | None = None
    with tempfile.TemporaryDirectory(prefix="rungwise-") as scratch:
        described = Path(scratch) / "classifier.json"
        described.write_text(json.dumps(description, indent=1), encoding="utf-8")
        # MLflow prints what it registered; the display says it already.
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stderr(nowhere),
            mlflow.start_run(run_id=context.tracking.run_id),
        ):
            info = mlflow.pyfunc.log_model(
                name="model",
                python_model=str(Path(__file__).with_name("served_classifier.py")),
                artifacts={
                    "weights": str(evaluation.folder.local(MODEL)),
                    "tokenizer": str(inputs["tokenizer"].folder.local(TOKENIZER_FILE)),
                    "description": str(described),
                },
                code_paths=[str(Path(__file__).parent)],
                signature=infer_signature(texts, [{"label": "python", "probability": 0.5}]),
                input_example=texts,
                pip_requirements=[
                    f"{name}=={version(name).partition('+')[0]}"
                    for name in (
                        "mlflow",
                        "torch",
                        "tokenizers",
                        "safetensors",
                        "numpy",
                        "pandas",
                        "pydantic",
                        "pyyaml",
                        "pyarrow",
                        "fsspec",
                        "scikit-learn",
                    )
                ],
                registered_model_name=config.name,
            )
    assert info is not None, "an error leaves the block above"
    client = MlflowClient(tracking_uri=context.tracking.uri)
    number = str(info.registered_model_version)
    score = chosen["validation"]["accuracy"]
    tags = {
        **{f"rungwise.{name}": found.fingerprint for name, found in sorted(inputs.items())},
        "rungwise.validation_accuracy": f"{score:.6f}",
        "rungwise.test_accuracy_of_this_version": f"{chosen['test']['accuracy']:.6f}",
    }
    for key, value in tags.items():
        client.set_model_version_tag(config.name, number, key, value)
    holder = _holder(client, config)
    takes = True
    shown = f"alias {config.alias}"
    if holder is not None and _better(holder, task.fingerprint, score):
        takes = False
        shown = f"{config.alias} stays with {holder.version}"
    if takes:
        client.set_registered_model_alias(config.name, config.alias, number)
    summary = {
        "name": config.name,
        "version": number,
        "alias": config.alias if takes else None,
        "model_uri": f"models:/{config.name}/{number}",
        "tags": tags,
        "headline": f"models:/{config.name}/{number}  {shown}",
    }
    output.write_bytes("registered.json", json.dumps(summary, indent=1).encode())
    return summary


def _holder(client: Any, config: RegistryConfig) -> Any:
    """The version that has the alias, or None."""
    model = client.get_registered_model(config.name)
    number = model.aliases.get(config.alias)
    return client.get_model_version(config.name, number) if number else None


def _better(holder: Any, task: str, score: float) -> bool:
    """True if `holder` was scored on the same task and scored higher."""
    same_task = holder.tags.get("rungwise.task") == task
    return same_task and float(holder.tags.get("rungwise.validation_accuracy", "-1")) > score
