"""Find and load built models by recipe, folder or registered name, and the curve of a ladder;
rebuild an artifact and all its inputs from their records alone, and compare their files."""

import fnmatch
import os
import shlex
import typing
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from tokenizers import Tokenizer

from rungwise import tokenizer as tokenizers
from rungwise.core.configuration.canonical import flatten
from rungwise.core.errors import ConfigError, DataError, UserError
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Stage, StageType, Title, import_function, plan
from rungwise.core.storage.folder import Folder
from rungwise.core.tracking.store import default_uri, store_client
from rungwise.corpus.summary import CORPUS, CorpusSummary
from rungwise.evaluation.comparison.claims import CLAIMS
from rungwise.evaluation.comparison.summary import EVALUATE, TABLE
from rungwise.evaluation.pretrainings import CurveSummary, read_points
from rungwise.evaluation.suites.measure import MEASURE
from rungwise.finetune import DESCRIPTION
from rungwise.forecast.curves import Point
from rungwise.instances.summary import INSTANCES, LONGER_INSTANCES
from rungwise.models.config import name_models
from rungwise.pipeline import workflow
from rungwise.pipeline.experiment import change_recipe, resolve_variants
from rungwise.pipeline.places import root_folder
from rungwise.pipeline.recipe import Recipe
from rungwise.pipeline.search import apply_searches
from rungwise.pipeline.stages import chain_stages, pretrain_config
from rungwise.report.stage import LADDER, REPORT
from rungwise.serving.importing import INITIAL_WEIGHTS
from rungwise.serving.predictor import Predictor, read_pretrained_copy, require_artifact
from rungwise.tasks.config import TASK, TASK_TEXT, TASK_TOKENS
from rungwise.tokenizer.token_stage import TOKENIZER, TOKENS
from rungwise.training.fit_config import PRETRAIN
from rungwise.training.pretrained import find_tokenizer, load_model
from rungwise.tuning.trials import SWEEP

_RECIPES = (".yaml", ".yml")
REGISTERED = "models:/"
_RUN = "runs:/"
_ALIAS = "@"
_TYPES: dict[str, StageType[Any, Any]] = {
    each.name: each
    for each in (
        *(CORPUS, TOKENIZER, TOKENS, INSTANCES, LONGER_INSTANCES, INITIAL_WEIGHTS, PRETRAIN),
        *(TASK, TASK_TEXT, TASK_TOKENS, SWEEP, EVALUATE, MEASURE, TABLE, CLAIMS, REPORT, LADDER),
    )
}
# Files with times or speeds in them, or named after an attempt.
_OF_THE_RUN = {
    PRETRAIN.name: "checkpoints/*",
    **{kind.name: "*" for kind in (SWEEP, REPORT, LADDER)},
}


@dataclass(frozen=True)
class Pretrained:
    """A pretrained model on the CPU, with its capabilities (models/trained/capabilities.py)."""

    model: object
    tokenizer: Tokenizer


def load(model: str | Recipe, root: str = "artifacts") -> Pretrained | Predictor:
    """Load the pretrained model of a recipe or a pretrain artifact, else a fine-tuned one. `model`
    is a recipe or its file, the folder of an artifact or of several (the newest is used), local or
    in an object store, or models:/NAME@ALIAS in the registry of `root`. Raises UserError if there
    is no such model."""
    if isinstance(model, Recipe):
        return _load_pretrained(
            _built(apply_searches(model), "rungwise.run with a workflow that pretrains")
        )
    result = find_model(model, root)
    return _load_pretrained(result) if isinstance(result, Artifact) else result


def find_model(model: str, root: str, overrides: Sequence[str] = ()) -> Artifact | Predictor:
    """Find a finished pretrain artifact or else load a fine-tuned model; arguments as in `load`."""
    artifact = _find_artifact(model, overrides)
    if artifact is not None and artifact.stage == "pretrain":
        return artifact
    served = require_artifact(find_served(model, root))
    if read_pretrained_copy(served) is not None:
        raise UserError(
            f"{model} is a pretrained model; give its artifact, as in artifacts/pretrain"
        )
    return Predictor(served.folder)


def find_built(model: str, root: str, overrides: Sequence[str] = ()) -> Artifact:
    """Find the artifact of a registered model, of a recipe's pretraining, or in a folder. Raises
    UserError if there is none."""
    artifact = _find_artifact(model, overrides)
    if artifact is not None:
        return artifact
    if not model.startswith(REGISTERED):
        raise UserError(
            f"{model}: no artifact here; expected a recipe (.yaml), models:/NAME@ALIAS, or a "
            "folder such as artifacts/pretrain"
        )
    place, version = root_folder(root), find_version(model, root)
    stage = "evaluate" if "rungwise.evaluate" in version.tags else "pretrain"
    fingerprint = version.tags.get(f"rungwise.{stage}", "")
    artifact = artifacts.load(artifacts.find_folder(place, stage, "", fingerprint))
    if artifact is None:
        raise UserError(
            f"{model} was made by the artifact {stage} {fingerprint}, which is not below "
            f"{place.uri}; give --root"
        )
    return artifact


def find_version(model: str, root: str) -> Any:
    """Find MLflow's version of models:/NAME/VERSION or models:/NAME@ALIAS. Raises UserError if
    there is none."""
    name, which = name_and_version(model)
    with store_client(registry_uri(root)) as client:
        if which.isdecimal():
            return client.get_model_version(name, which)
        return client.get_model_version_by_alias(name, which)


def name_and_version(model: str) -> tuple[str, str]:
    """Split models:/NAME/VERSION or models:/NAME@ALIAS; the second part is "" if there is none."""
    words = model.removeprefix(REGISTERED).replace("/", _ALIAS).split(_ALIAS, 1)
    return words[0], words[1] if len(words) > 1 else ""


def registry_uri(root: str) -> str:
    """The URI of the registry for artifacts below `root`."""
    return default_uri(root_folder(root), os.environ.get("MLFLOW_TRACKING_URI"))


def find_served(model: str, root: str) -> Folder:
    """Find the files of a servable model in a folder or the registry of `root`, for
    `load_predictor`. Raises UserError if there is none."""
    if model.startswith((REGISTERED, _RUN)):
        return download_served(model, root)
    artifact = _find_artifact(model)
    if artifact is not None:
        return artifact.folder
    folder = Folder.at(model)
    if not folder.exists(DESCRIPTION):
        raise UserError(
            f"{model}: no model here; expected models:/NAME@ALIAS, the folder of an evaluate or "
            "pretrain artifact, such as artifacts/evaluate/NAME-FINGERPRINT, or "
            "artifacts/evaluate for the newest"
        )
    return folder


def _find_artifact(model: str, overrides: Sequence[str] = ()) -> Artifact | None:
    """The artifact of a recipe's pretraining (RECIPE@VARIANT: of its variant), or in or directly
    below a folder; None for others. Raises UserError for overrides of what is no recipe."""
    file, _, variant = model.rpartition(_ALIAS)
    if not file.endswith(_RECIPES):
        file, variant = model, ""  # a folder may have the sign in its name
    if file.endswith(_RECIPES):
        recipe = apply_searches(workflow.load_recipe(file, overrides))
        verb = "pretrain"
        if variant:
            recipe, verb = change_recipe(recipe, variant), "ladder"
        command = shlex.join(["rungwise", "run", verb, file, *overrides])
        return _built(recipe, command)
    if overrides:
        raise UserError(
            f"{shlex.join(overrides)}: keys can be changed of a recipe, and {model} is none; "
            "leave them out, or give the recipe"
        )
    return None if model.startswith(REGISTERED) else artifacts.at_or_below(Folder.at(model))


def _built(recipe: Recipe, how: str) -> Artifact:
    root = root_folder(recipe.root)
    row = plan(chain_stages(recipe)[0], root, recipe.name)[-1]
    if row.artifact is None:
        raise ConfigError(
            f"{recipe.name}: its pretrain stage is not finished below {root.uri} ({row.reason}); "
            f"build it first: {how}"
        )
    return row.artifact


def _load_pretrained(artifact: Artifact) -> Pretrained:
    tokenizer = find_tokenizer(artifact)
    return Pretrained(load_model(artifact), tokenizers.load_reader(tokenizer.folder))


def download_served(model: str, root: str) -> Folder:
    """Download the files of a registered model or of an MLflow run's model, runs:/ID/model.
    Raises UserError if there is none, DataError for files without a record to check them by."""
    import mlflow.artifacts

    uri = registry_uri(root)
    with store_client(uri):
        mlflow.set_tracking_uri(uri)
        folder = Folder.at(Path(mlflow.artifacts.download_artifacts(model)) / "artifacts")
    require_artifact(folder)
    return folder


@dataclass(frozen=True)
class LoadedCurve:
    """The finished curve of a ladder: its points, the names of rungs as people write them, why
    other rungs have no points, the words of the training text, and what scores on a task are."""

    points: list[Point]
    names: dict[str, str]
    passed_over: dict[str, str]
    words: float
    metrics: dict[str, str] = field(default_factory=dict)


def load_curve(recipe: Recipe, file: str) -> LoadedCurve:
    """Read the curve of a ladder that was run. Raises ConfigError if the recipe has none, UserError
    if it is not built below the root."""
    if recipe.curve is None:
        raise ConfigError(
            f"{file} has no block curve, so each rung was trained at one budget; add it and run "
            "the ladder again",
            {"curve": {"budgets": [0.25, 0.5, 1]}},
        )
    rows = {row.stage.display_name: row.artifact for row in workflow.plan("ladder", recipe)}
    corpus, curve = rows.get("corpus"), rows.get("curve")
    if corpus is None or curve is None:
        raise UserError(
            f"the curve of {recipe.name} is not below {recipe.root}; run it first: "
            f"rungwise run ladder {file}"
        )
    models = {
        variant.name: (config.model, config.objective)
        for variant in resolve_variants(recipe)
        for config in [pretrain_config(variant.recipe)]
    }
    return LoadedCurve(
        points=read_points(curve),
        names=name_models(models),
        passed_over=CurveSummary.of(curve).passed_over,
        words=CorpusSummary.of(corpus).words.train,
        metrics=CurveSummary.of(curve).metrics,
    )


@dataclass(frozen=True)
class Compared:
    """How many files of an artifact were compared with the rebuilt ones, and which differ. Files
    that contain times are left out; files derived from them, such as a model, are compared."""

    compared: int
    different: tuple[str, ...]


def restore_stages(chain: Sequence[Artifact]) -> list[Stage]:
    """The stages that built `chain` (inputs first), with the sources as they are now. Raises
    DataError naming what differs from the records: a changed source, or a stage version or key that
    this package no longer has."""
    names = Counter(each.stage for each in chain)
    stages: dict[str, Stage] = {}
    for artifact in chain:
        if artifact.stage not in _TYPES:
            raise DataError(
                f"{artifact.folder.uri} records what is in MLflow and cannot be built again; give "
                "the evaluation whose model was registered"
            )
        record, kind = artifact.record, _TYPES[artifact.stage]
        adapter = TypeAdapter[Any](typing.get_type_hints(import_function(kind.run))["config"])
        try:
            config = adapter.validate_python(record["config"])
        except ValidationError as error:
            raise DataError(
                f"{artifact.folder.uri} was built with keys that this version lacks: {error}"
            ) from error
        inputs = {name: stages[of["fingerprint"]] for name, of in record["inputs"].items()}
        step = artifact.fingerprint if names[artifact.stage] > 1 else None
        stage = kind.stage(config, inputs, Title(artifact.stage, step=step))
        if stage.fingerprint != artifact.fingerprint:
            before, now = flatten(record["facts"]), flatten(stage.facts)
            keys = [key for key in sorted(before | now) if before.get(key) != now.get(key)]
            raise DataError(
                f"{artifact.stage} {artifact.fingerprint} cannot be built again, because "
                + "; ".join(f"{key} was {before.get(key)}, is {now.get(key)}" for key in keys)
            )
        stages[artifact.fingerprint] = stage
    return list(stages.values())


def compare_files(before: Artifact, after: Artifact) -> Compared:
    """Compare two artifacts of one stage by the hashes in their records."""
    old, new = (
        {name: file["sha256"] for name, file in each.record["files"].items()}
        for each in (before, after)
    )
    left_out = _OF_THE_RUN.get(before.stage, "")
    names = [name for name in sorted(old | new) if not fnmatch.fnmatch(name, left_out)]
    return Compared(len(names), tuple(name for name in names if old.get(name) != new.get(name)))
