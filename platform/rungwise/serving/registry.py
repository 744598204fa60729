"""Register stage: a fine-tuned or pretrained model in MLflow's registry, loadable anywhere; and the
promotion of a version to an alias.

A registered model is data and this package's code (an MLflow "model from code"); nothing is
unpickled. The new version gets the alias unless the holder scores better on the same task's
validation split, or with the same objective on the same text, or its summary gives a caution.
"""

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from rungwise.core.errors import DataError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact, Inputs, chain
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.sender import PARENT_TAG
from rungwise.core.tracking.store import quieten_mlflow
from rungwise.corpus.summary import read_split
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.finetune import DESCRIPTION
from rungwise.models.trained.language_models import Sampling
from rungwise.serving import card
from rungwise.serving import predictor as predictors
from rungwise.serving.predictor import Predictor, PretrainedPredictor
from rungwise.serving.stage import RegisterConfig, RegisterSummary
from rungwise.tasks.interface import task_kind
from rungwise.tasks.kinds.examples import Example, TaskInfo, TaskSummary, Text, read_examples
from rungwise.tokenizer import FILE as TOKENIZER
from rungwise.training.pretrained import find_tokenizer
from rungwise.training.summary import PretrainSummary
from rungwise.training.tensor_files import MODEL

_EXAMPLES = 2
SCORE, _OBJECTIVE = "rungwise.validation_score", "rungwise.objective"
_REQUIREMENTS = (
    *("mlflow", "torch", "tokenizers", "safetensors", "numpy", "pandas", "pydantic", "pyyaml"),
    *("pyarrow", "fsspec", "scikit-learn"),
)


def find_faults(model: Artifact, served: Folder) -> list[str]:
    """Reasons against a version made of `model`, whose files are in `served`, a line each."""
    faults = [fault for artifact in chain(model) for fault in _check(artifact.verify)]
    faults += find_changed_copies(model, served)
    summary = EvaluateSummary if model.stage == "evaluate" else PretrainSummary
    return faults or list(filter(None, [summary.of(model).caution]))


def find_changed_copies(model: Artifact, served: Folder) -> list[str]:
    """Where the registry's copy in `served` differs from `model`, one line each."""
    names = dict.fromkeys(predictors.FILES, model)
    if model.stage == "pretrain":
        names = {MODEL: model, TOKENIZER: find_tokenizer(model)}
    changes = [
        f"the registry's {served.path(name)} is not that of {artifact.folder.uri}"
        for name, artifact in names.items()
        if served.sha256(name) != artifact.record["files"][name]["sha256"]
    ]
    return changes or _check(lambda: predictors.require_artifact(served).verify())


def _check(verify: Callable[[], None]) -> list[str]:
    try:
        verify()
    except DataError as error:
        return [str(error)]
    return []


def find_holder(client: Any, name: str, alias: str) -> str | None:
    """The version that has the alias, None if there is none."""
    aliases: Mapping[str, Any] = client.get_registered_model(name).aliases
    return None if (number := aliases.get(alias)) is None else str(number)


def find_better_holder(client: Any, name: str, alias: str, tags: Mapping[str, str]) -> Any:
    """The version that has the alias if it scores better than one with these tags on the same task,
    or with the same objective on the same text; else None. Both scores are rounded as in the tags,
    so that the same model rebuilt is not worse."""
    number = find_holder(client, name, alias)
    if number is None:
        return None
    holder = client.get_model_version(name, number)
    same = ("rungwise.tokens", _OBJECTIVE) if _OBJECTIVE in tags else ("rungwise.task",)
    is_comparable = all(holder.tags.get(key) == tags[key] for key in same)
    return holder if is_comparable and float(holder.tags[SCORE]) > float(tags[SCORE]) else None


@dataclass(frozen=True)
class _Entry:
    """A model to register, with example inputs and answers; a higher `score` is better."""

    files: dict[str, str]
    info: TaskInfo
    inputs: list[str] | pd.DataFrame
    answers: list[dict[str, Any]]
    card: str
    score: float
    caution: str
    tags: dict[str, str]
    writes: bool = False  # from left to right, so that it can continue a text


def register_model(
    config: RegisterConfig, inputs: Inputs, output: Folder, context: Context
) -> RegisterSummary:
    """Log and register the model in the run of this stage; write `registered.json`."""
    import mlflow
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModelOutput

    assert context.tracking is not None, "the register stage runs in the driver"
    make_entry = _make_task_entry if "evaluate" in inputs else _make_pretrain_entry
    entry = make_entry(config, inputs, output)
    output.write_bytes(card.NAME, entry.card.encode("utf-8"))
    quieten_mlflow()
    mlflow.set_tracking_uri(context.tracking.uri)
    entry.files["card"] = str(output.local(card.NAME))
    run_id = context.tracking.run_id
    number, model_id = _log_version(config.name, entry, inputs["pretrain"].fingerprint, run_id)
    client = MlflowClient(tracking_uri=context.tracking.uri)
    run = client.get_run(run_id)
    whole = run.data.tags.get(PARENT_TAG, run_id)
    if whole != run_id:  # so that the page of the whole run names the model too
        client.log_outputs(whole, [LoggedModelOutput(model_id, step=0)])
    licences = [licence for _, licence in card.list_sources(inputs["pretrain"], config.licences)]
    tags = {
        **{f"rungwise.{name}": artifact.fingerprint for name, artifact in sorted(inputs.items())},
        **entry.tags,
        SCORE: f"{entry.score:.6f}",
        "rungwise.licence": "; ".join(dict.fromkeys(licences)),
    }
    for key, value in tags.items():
        client.set_model_version_tag(config.name, number, key, value)
    root = inputs["pretrain"].folder.uri.rsplit("/", 2)[0]
    better = find_better_holder(client, config.name, config.alias, tags)
    if entry.caution:
        alias = f"no alias: {entry.caution}"
    elif better is not None:
        alias = f"{config.alias} stays with {better.version}"
    else:
        client.set_registered_model_alias(config.name, config.alias, number)
        alias = f"alias {config.alias}"
    page = card.link_page(run.info.experiment_id, whole, context.tracking.page)
    uses = "\n" + card.list_uses(f"models:/{config.name}/{number}", root, entry.info)
    text = card.fit_description(f"The page of its run: {page}\n\n", entry.card, uses)
    client.update_model_version(config.name, number, text)
    newest = f"[version {number}](#/models/{config.name}/versions/{number})"
    text = f"The newest is {newest}; the page of its run: {page}"
    client.update_registered_model(config.name, text)
    summary = RegisterSummary(
        name=config.name,
        version=number,
        alias=None if better or entry.caution else config.alias,
        model_uri=f"models:/{config.name}/{number}",
        tags=tags,
        headline=f"models:/{config.name}/{number}  {alias}",
    )
    output.write_bytes("registered.json", summary.model_dump_json(indent=1).encode())
    return summary


def _log_version(name: str, entry: _Entry, fingerprint: str, run_id: str) -> tuple[str, str]:
    """Log and register the model; return the version's number and the logged model's id."""
    import mlflow
    from mlflow.models import ModelSignature, infer_signature

    requirements = [f"{each}=={version(each).partition('+')[0]}" for each in _REQUIREMENTS]
    number = model_id = ""
    # MLflow prints what it registered, which the display already shows.
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stderr(nowhere),
        tempfile.TemporaryDirectory(prefix="rungwise-") as scratch,
        mlflow.start_run(run_id=run_id),
    ):
        for path in map(Path, entry.files.values()):
            (Path(scratch) / path.name).symlink_to(path)
        # With a record the copy is verified wherever it is loaded.
        artifacts.finish(Folder.at(scratch), {"stage": "served", "fingerprint": fingerprint}, {})
        entry.files["record"] = f"{scratch}/{artifacts.RECORD}"
        info = mlflow.pyfunc.log_model(
            name="model",
            python_model=str(Path(__file__).with_name("served_model.py")),
            artifacts=entry.files,
            code_paths=[str(Path(__file__).parents[1])],
            # An input schema would refuse other accepted forms (lists, `text` for words, option0
            # and so on); anything else is refused with a message of our own.
            signature=ModelSignature(
                outputs=infer_signature(entry.inputs, pd.DataFrame(entry.answers)).outputs,
                params=_list_params(entry),
            ),
            input_example=entry.inputs,
            pip_requirements=requirements,
            registered_model_name=name,
        )
        number, model_id = str(info.registered_model_version), str(info.model_id)
    assert number, "an error leaves the block above"
    return number, model_id


def _list_params(entry: _Entry) -> Any:
    """The fields of a `Sampling` that draws nothing; None for a model that does not write."""
    from mlflow.types import ParamSchema, ParamSpec

    if not entry.writes:
        return None
    kinds = {int: "long", float: "double"}
    none = dataclasses.asdict(Sampling(length=0))
    specs = [ParamSpec(name, kinds[type(value)], value) for name, value in none.items()]
    return ParamSchema(specs)


def _make_task_entry(config: RegisterConfig, inputs: Inputs, output: Folder) -> _Entry:
    evaluation, task = inputs["evaluate"], inputs["task"]
    summary, info = EvaluateSummary.of(evaluation), TaskSummary.of(task).info
    model, metric = summary.chosen, summary.metric
    examples = read_examples(task, "validation")[:_EXAMPLES]
    score = f"{model.test[metric]:.6f}"
    return _Entry(
        files=_list_files(evaluation.folder, evaluation.folder, evaluation.folder),
        info=info,
        inputs=_input_example(examples, info),
        answers=Predictor(evaluation.folder, quiet=True)(examples),
        card=card.write_task_card(config.name, inputs, config.licences),
        score=model.validation[metric],
        caution=summary.caution,
        tags={"rungwise.metric": metric, "rungwise.test_score_of_this_version": score},
    )


def _make_pretrain_entry(config: RegisterConfig, inputs: Inputs, output: Folder) -> _Entry:
    pretrain = inputs["pretrain"]
    predictor = predictors.load_predictor(pretrain.folder)
    assert isinstance(predictor, PretrainedPredictor), "it is the folder of a pretraining"
    documents = read_split(inputs["corpus"], "validation")
    held_out = (text for document in documents for text in document.sentences)
    texts = predictor.words[:_EXAMPLES] or list(islice(held_out, _EXAMPLES))
    answers = predictor([Text(text, text) for text in texts])
    description = json.dumps(predictors.describe_model(pretrain))
    output.write_bytes(DESCRIPTION, description.encode("utf-8"))
    summary = PretrainSummary.of(pretrain)
    return _Entry(
        files=_list_files(pretrain.folder, inputs["tokenizer"].folder, output),
        info=predictor.info,
        inputs=texts,
        answers=answers,
        card=card.write_pretrain_card(config.name, inputs, config.licences),
        score=-summary.final["loss"],
        caution=summary.caution,
        tags={_OBJECTIVE: summary.objective},
        writes=predictor.writes,
    )


def _list_files(weights: Folder, tokenizer: Folder, description: Folder) -> dict[str, str]:
    return {
        "weights": str(weights.local(MODEL)),
        "tokenizer": str(tokenizer.local(TOKENIZER)),
        "description": str(description.local(DESCRIPTION)),
    }


def _input_example(examples: list[Example], info: TaskInfo) -> list[str] | pd.DataFrame:
    """Examples in a caller's form: bare texts where an example is one text."""
    if task_kind(info).is_one_text and all(isinstance(each, Text) for each in examples):
        return [example.parts[0] for example in examples]
    return pd.DataFrame([example.as_input() for example in examples])
