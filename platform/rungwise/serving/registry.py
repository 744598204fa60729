"""Register stage: a fine-tuned or pretrained model in MLflow's registry, loadable anywhere.

A registered model is data (safetensors, the tokenizer, a JSON file) and this package's code (an
MLflow "model from code"); nothing is unpickled. Its tags have the fingerprint of every artifact it
comes from. The new version gets the alias unless the holder scores better on the same task's
validation split, or with the same objective on the same text.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context, TrackingRun
from rungwise.core.stages.stage import StageType
from rungwise.core.stages.summary import Summary
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.sender import PARENT_TAG
from rungwise.core.tracking.store import quieten_mlflow
from rungwise.corpus.document import read_documents
from rungwise.corpus.summary import CorpusSummary
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.finetune import DESCRIPTION
from rungwise.pretraining.summary import PretrainSummary
from rungwise.serving import promotion
from rungwise.serving.card import NAME as CARD
from rungwise.serving.card import (
    fit_description,
    link_page,
    list_sources,
    list_uses,
    write_pretrain_card,
    write_task_card,
)
from rungwise.serving.predictor import Predictor
from rungwise.serving.pretrained import PretrainedPredictor, describe_model, load_predictor
from rungwise.tasks.kinds.examples import (
    Example,
    TaskInfo,
    TaskSummary,
    Text,
    read_examples,
)
from rungwise.tokenizer import FILE as TOKENIZER_FILE
from rungwise.training.tensor_files import MODEL

_EXAMPLES = 2
_SCORE = "rungwise.validation_score"
_REQUIREMENTS = (
    *("mlflow", "torch", "tokenizers", "safetensors", "numpy", "pandas", "pydantic", "pyyaml"),
    *("pyarrow", "fsspec", "scikit-learn"),
)


class RegistryConfig(Config):
    """Where models go in the MLflow registry."""

    # followed by the task, or by the model.kind of a pretraining: rungwise-sst-2, rungwise-ngram
    name: str = Field(default="rungwise", pattern=r"^[^/:.%\"']+$")
    alias: str = "champion"  # alias of the version to use

    def name_of(self, what: str) -> str:
        """The name of a model of this task or kind."""
        # MLflow refuses some characters that a task's name may have.
        return f"{self.name}-{what.replace('.', '-')}"


class RegisterConfig(RegistryConfig):
    """The whole name, and the licences of the sources of each corpus, by its fingerprint."""

    licences: dict[str, tuple[str | None, ...]] = Field(default_factory=dict)


class RegisterSummary(Summary):
    """A version in the registry. `alias` is None if another version keeps it."""

    name: str
    version: str
    alias: str | None
    model_uri: str
    tags: dict[str, str]


@dataclass(frozen=True)
class _Entry:
    """A model to register, and what it is asked. `shown` are example inputs as a caller gives them,
    `said` the answers. Versions with the same tags `compared_on` compare by `score`; higher is
    better."""

    files: dict[str, str]
    info: TaskInfo
    shown: list[str] | pd.DataFrame
    said: list[dict[str, Any]]
    card: str
    about: str
    score: float
    score_name: str
    compared_on: tuple[str, ...]
    tags: dict[str, str]


def register_model(
    config: RegisterConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> RegisterSummary:
    """Log and register the model in the run of this stage; write `registered.json`."""
    import mlflow
    from mlflow import MlflowClient
    from mlflow.models import ModelSignature, infer_signature
    from mlflow.models.model import ModelInfo

    assert context.tracking is not None, "the register stage runs in the driver"
    of = _of_task if "evaluate" in inputs else _of_pretraining
    entry = of(config, inputs, output)
    output.write_bytes(CARD, entry.card.encode("utf-8"))
    quieten_mlflow()
    mlflow.set_tracking_uri(context.tracking.uri)
    info: ModelInfo | None = None
    # MLflow prints what it registered, which the display already shows.
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stderr(nowhere),
        tempfile.TemporaryDirectory(prefix="rungwise-") as scratch,
        mlflow.start_run(run_id=context.tracking.run_id),
    ):
        entry.files["card"] = str(output.local(CARD))
        for path in map(Path, entry.files.values()):
            (Path(scratch) / path.name).symlink_to(path)
        # With a record the copy is verified wherever it is loaded.
        made = {"stage": "served", "fingerprint": inputs["pretrain"].fingerprint}
        artifacts.finish(Folder.at(scratch), made, {})
        entry.files["record"] = f"{scratch}/{artifacts.RECORD}"
        info = mlflow.pyfunc.log_model(
            name="model",
            python_model=str(Path(__file__).with_name("served_model.py")),
            artifacts=entry.files,
            code_paths=[str(Path(__file__).parents[1])],
            # An input schema would refuse other accepted forms (lists, `text` for words, option0
            # and so on); anything else is refused with a message of our own.
            signature=ModelSignature(
                outputs=infer_signature(entry.shown, pd.DataFrame(entry.said)).outputs
            ),
            input_example=entry.shown,
            pip_requirements=[
                f"{name}=={version(name).partition('+')[0]}" for name in _REQUIREMENTS
            ],
            registered_model_name=config.name,
        )
    assert info is not None, "an error leaves the block above"
    client = MlflowClient(tracking_uri=context.tracking.uri)
    number = str(info.registered_model_version)
    licences = [licence for _, licence in list_sources(inputs["pretrain"], config.licences)]
    tags = {
        **{f"rungwise.{name}": made.fingerprint for name, made in sorted(inputs.items())},
        **entry.tags,
        _SCORE: f"{entry.score:.6f}",
        "rungwise.licence": "; ".join(dict.fromkeys(licences)),
    }
    for key, value in tags.items():
        client.set_model_version_tag(config.name, number, key, value)
    page = _page(client, context.tracking)
    root = inputs["pretrain"].folder.uri.rsplit("/", 2)[0]
    client.update_registered_model(
        config.name,
        f"{entry.about} `@{config.alias}` is the version to use: a new one gets it unless the "
        f"holder's {entry.score_name} is better, any other through `rungwise promote`.\n\n"
        f"The newest is [version {number}](#/models/{config.name}/versions/{number}); the page of "
        f"its run: {page}\n\n"
        + list_uses(f"models:/{config.name}@{config.alias}", root, entry.info),
    )
    client.update_model_version(
        config.name,
        number,
        fit_description(
            f"The page of its run: {page}\n\n",
            entry.card,
            "\n" + list_uses(f"models:/{config.name}/{number}", root, entry.info),
        ),
    )
    better = _better_holder(client, config, entry.compared_on, tags)
    if better is None:
        promotion.set_alias(client, config.name, config.alias, number)
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


def _page(client: Any, tracking: TrackingRun) -> str:
    """A link to the page of the run that this stage belongs to."""
    run = client.get_run(tracking.run_id)
    whole = run.data.tags.get(PARENT_TAG, tracking.run_id)
    return link_page(run.info.experiment_id, whole, tracking.page)


def _of_task(config: RegisterConfig, inputs: Mapping[str, Artifact], output: Folder) -> _Entry:
    evaluation, task = inputs["evaluate"], inputs["task"]
    evaluated, info = EvaluateSummary.of(evaluation), TaskSummary.of(task).info
    chosen, metric = evaluated.chosen, evaluated.metric
    examples = read_examples(task, "validation")[:_EXAMPLES]
    return _Entry(
        files=_files(evaluation.folder, evaluation.folder, evaluation.folder),
        info=info,
        shown=_input_example(examples, info),
        said=Predictor.load(evaluation.folder, quiet=True)(examples),
        card=write_task_card(config.name, inputs, config.licences),
        about=f"Models fine-tuned for the task {evaluated.task} ({info.goal}).",
        score=chosen.validation[metric],
        score_name=f"{metric} on the validation split",
        compared_on=("rungwise.task",),
        tags={
            "rungwise.metric": metric,
            "rungwise.test_score_of_this_version": f"{chosen.test[metric]:.6f}",
        },
    )


def _of_pretraining(
    config: RegisterConfig, inputs: Mapping[str, Artifact], output: Folder
) -> _Entry:
    pretrain = inputs["pretrain"]
    predictor = load_predictor(pretrain.folder)
    assert isinstance(predictor, PretrainedPredictor), "it is the folder of a pretraining"
    texts = predictor.words[:_EXAMPLES] or _held_out(inputs["corpus"])
    said = predictor([Text(text, text) for text in texts])
    answered = {"answered": [texts, said]}  # `rungwise promote` checks these again
    output.write_bytes(DESCRIPTION, json.dumps(describe_model(pretrain) | answered).encode("utf-8"))
    summary = PretrainSummary.of(pretrain)
    return _Entry(
        files=_files(pretrain.folder, inputs["tokenizer"].folder, output),
        info=predictor.info,
        shown=texts,
        said=said,
        card=write_pretrain_card(config.name, inputs, config.licences),
        about=f"Pretrained models of the kind {summary.model.kind}.",
        score=-summary.final["loss"],
        score_name="validation loss with the same objective on the same text",
        compared_on=("rungwise.tokens", "rungwise.objective"),
        tags={"rungwise.objective": summary.objective},
    )


def _held_out(corpus: Artifact) -> list[str]:
    """The first sentences of the held-out text."""
    files = CorpusSummary.of(corpus).file_names("validation")
    documents = chain.from_iterable(read_documents(corpus.folder, file) for file in files)
    return list(islice((text for each in documents for text in each.sentences), _EXAMPLES))


def _files(weights: Folder, tokenizer: Folder, description: Folder) -> dict[str, str]:
    return {
        "weights": str(weights.local(MODEL)),
        "tokenizer": str(tokenizer.local(TOKENIZER_FILE)),
        "description": str(description.local(DESCRIPTION)),
    }


REGISTER = StageType("register", 6, register_model, RegisterSummary, place="driver")


def _input_example(examples: list[Example], info: TaskInfo) -> list[str] | pd.DataFrame:
    """Examples as a caller gives them: bare texts where an example is one text."""
    if info.kind in ("classification", "multilabel", "generation") and not info.pair:
        return [example.text for example in examples if isinstance(example, Text)]
    return pd.DataFrame([example.as_input() for example in examples])


def _better_holder(
    client: Any, config: RegisterConfig, compared_on: tuple[str, ...], tags: Mapping[str, str]
) -> Any:
    """The alias holder if its score is comparable and better, else None. Both scores are rounded
    as in the tags, so that the same model rebuilt is not worse."""
    number = promotion.find_holder(client, config.name, config.alias)
    if number is None:
        return None
    holder = client.get_model_version(config.name, number)
    comparable = all(holder.tags.get(name) == tags[name] for name in compared_on)
    return holder if comparable and float(holder.tags[_SCORE]) > float(tags[_SCORE]) else None
