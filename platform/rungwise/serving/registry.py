"""Register stage: the fine-tuned model as an MLflow registered model that loads anywhere.

What is registered is data and this package's code (an MLflow "model from code"): safetensors, the
tokenizer, a JSON file; nothing is unpickled. Its tags name the fingerprint of every artifact it
comes from. The alias goes to the new version unless one with a higher score on the same task's
validation split holds it.
"""

from __future__ import annotations

import contextlib
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import Field

from rungwise.core.artifact import Artifact
from rungwise.core.config import Config
from rungwise.core.context import Context
from rungwise.core.stage import StageType
from rungwise.core.storage import Folder
from rungwise.core.summary import Summary
from rungwise.core.tracking import quieten_mlflow
from rungwise.evaluation.summary import EvaluateSummary
from rungwise.finetune import DESCRIPTION
from rungwise.serving import promotion
from rungwise.serving.card import NAME as CARD
from rungwise.serving.card import card
from rungwise.serving.predictor import Predictor
from rungwise.tasks.examples import (
    ChoiceExample,
    Example,
    Question,
    Tagged,
    TaskInfo,
    TaskSummary,
    Text,
    read,
)
from rungwise.tokenizer import FILE as TOKENIZER_FILE
from rungwise.training.checkpoint import MODEL

_EXAMPLES = 2
_REQUIREMENTS = (
    *("mlflow", "torch", "tokenizers", "safetensors", "numpy", "pandas", "pydantic", "pyyaml"),
    *("pyarrow", "fsspec", "scikit-learn"),
)


class RegistryConfig(Config):
    """The name in the registry, and the alias of the version to use."""

    name: str = Field(default="rungwise", pattern=r"^[^/:.%\"']+$")  # and, after it, the task's
    alias: str = "champion"

    def for_task(self, task: str) -> RegistryConfig:
        """The same with the name that the model of a task has, such as rungwise-sst-2."""
        # MLflow refuses some characters that a task's name may have.
        return self.model_copy(update={"name": f"{self.name}-{task.replace('.', '-')}"})


class RegisterSummary(Summary):
    """A version in the registry. `alias` is None where another version has kept it."""

    name: str
    version: str
    alias: str | None
    model_uri: str
    tags: dict[str, str]


def register_model(
    config: RegistryConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> RegisterSummary:
    """Log and register the model in the run of this stage; write `registered.json`."""
    import mlflow
    from mlflow import MlflowClient
    from mlflow.models import ModelSignature, infer_signature
    from mlflow.models.model import ModelInfo

    assert context.tracking is not None, "the register stage runs in the driver"
    evaluation, task = inputs["evaluate"], inputs["task"]
    evaluated = EvaluateSummary.of(evaluation)
    chosen, metric = evaluated.chosen, evaluated.metric
    examples = read(task, "validation")[:_EXAMPLES]
    task_info = TaskSummary.of(task).info
    shown = _input_example(examples, task_info)
    predictor = Predictor.load(evaluation.folder)
    written = card(config.name, inputs)
    output.write_bytes(CARD, written.encode("utf-8"))
    quieten_mlflow()
    mlflow.set_tracking_uri(context.tracking.uri)
    info: ModelInfo | None = None
    # MLflow prints what it registered; the display says it already.
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stderr(nowhere),
        mlflow.start_run(run_id=context.tracking.run_id),
    ):
        info = mlflow.pyfunc.log_model(
            name="model",
            python_model=str(Path(__file__).with_name("served_model.py")),
            artifacts={
                "weights": str(evaluation.folder.local(MODEL)),
                "tokenizer": str(evaluation.folder.local(TOKENIZER_FILE)),
                "description": str(evaluation.folder.local(DESCRIPTION)),
                "card": str(output.local(CARD)),
            },
            code_paths=[str(Path(__file__).parents[1])],
            # A schema of inputs would refuse what else is understood: lists, `text` for words,
            # option0 and so on; what is not understood is refused with a message of our own.
            signature=ModelSignature(
                outputs=infer_signature(shown, pd.DataFrame(predictor(examples))).outputs
            ),
            input_example=shown,
            pip_requirements=[
                f"{name}=={version(name).partition('+')[0]}" for name in _REQUIREMENTS
            ],
            registered_model_name=config.name,
        )
    assert info is not None, "an error leaves the block above"
    client = MlflowClient(tracking_uri=context.tracking.uri)
    number = str(info.registered_model_version)
    score = chosen.validation[metric]
    tags = {
        **{f"rungwise.{name}": made.fingerprint for name, made in sorted(inputs.items())},
        "rungwise.metric": metric,
        "rungwise.validation_score": f"{score:.6f}",
        "rungwise.test_score_of_this_version": f"{chosen.test[metric]:.6f}",
    }
    for key, value in tags.items():
        client.set_model_version_tag(config.name, number, key, value)
    of_task = (
        f"the task {evaluated.task} ({task_info.kind}: {', '.join(task_info.labels) or 'free'})"
    )
    client.update_registered_model(
        config.name,
        f"Models fine-tuned for {of_task}. `@{config.alias}` is the version to use: a new one gets "
        f"it unless the holder's {metric} on the validation split is higher, any other by "
        "`rungwise promote`.",
    )
    client.update_model_version(config.name, number, written)
    better = _better_holder(client, config, task.fingerprint, score)
    if better is None:
        promotion.give(client, config.name, config.alias, number)
        alias = f"alias {config.alias}"
    else:
        alias = f"{config.alias} stays with {better.version}"
    summary = RegisterSummary(
        name=config.name,
        version=number,
        alias=None if better else config.alias,
        model_uri=f"models:/{config.name}/{number}",
        tags=tags,
        headline=f"models:/{config.name}/{number}  {alias}",
    )
    output.write_bytes("registered.json", summary.model_dump_json(indent=1).encode())
    return summary


REGISTER = StageType("register", 4, register_model, RegisterSummary, place="driver")


def _input_example(examples: list[Example], info: TaskInfo) -> list[str] | pd.DataFrame:
    """Examples as a caller gives them: bare texts where an example is one text."""
    if info.kind == "classification" and not info.pair:
        return [example.text for example in examples if isinstance(example, Text)]
    return pd.DataFrame([_record(example) for example in examples])


def _record(example: Example) -> dict[str, Any]:
    match example:
        case Text():
            return {"text": example.text, "second": example.second}
        case Tagged():
            return {"words": list(example.words)}
        case Question():
            return {"question": example.question, "context": example.context}
        case ChoiceExample():
            return {
                "context": example.context,
                "question": example.question or "",
                "options": list(example.options),
            }


def _better_holder(client: Any, config: RegistryConfig, task: str, score: float) -> Any:
    """The version that has the alias, if it scored higher on the same task; else None."""
    number = promotion.holder(client, config.name, config.alias)
    if number is None:
        return None
    holder = client.get_model_version(config.name, number)
    same_task = holder.tags.get("rungwise.task") == task
    higher = float(holder.tags.get("rungwise.validation_score", "-1")) > score
    return holder if same_task and higher else None
