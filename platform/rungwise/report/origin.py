"""The section about provenance: stages, registered models, the recipe, the text, versions."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rungwise.core.configuration.secrecy import redact
from rungwise.core.stages.artifact import Artifact
from rungwise.corpus.summary import CorpusSummary, describe_sources
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.report.page import Row, Section
from rungwise.report.variants import input_artifact, select_stage
from rungwise.serving.stage import RegisterSummary
from rungwise.training.summary import PretrainSummary

Registered = Sequence[tuple[RegisterSummary, EvaluateSummary]]


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """A recipe as YAML."""
    return yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True, width=100)


def list_registered(inputs: Mapping[str, Artifact]) -> Registered:
    """Every registered model with its evaluation."""
    models = []
    for artifact in select_stage(inputs, "register").values():
        evaluate = input_artifact(artifact, "evaluate", inputs)
        assert evaluate is not None, "what registers a model has its evaluation before it"
        models.append((RegisterSummary.of(artifact), EvaluateSummary.of(evaluate)))
    return models


def write_origin(
    inputs: Mapping[str, Artifact],
    recipe: str,
    workflow: str,
    registered: Registered = (),
    pretrain: PretrainSummary | None = None,
) -> Section:
    """The section. Secrets are cut from the recipe and the sources; names of labels are data."""
    stages, corpus = _list_stages(inputs), CorpusSummary.of(inputs["corpus"])
    fields = {
        "stages": stages,
        "root": _root_folder(list(inputs.values())[-1]),
        "registered": registered,
        "workflow": workflow,
        "recipe": redact(recipe),
        "corpus": corpus,
        "dropped": sorted(corpus.dropped.items(), key=lambda item: -item[1]),
        "text_sources": pretrain.gradient.sources if pretrain and pretrain.gradient else (),
        "tokens": pretrain.tokens if pretrain else 0,
        "sources": [redact(source) for source in describe_sources(inputs["corpus"])],
    }
    return Section("origin", "Provenance", fields, csv={"stages": stages})


def _root_folder(artifact: Artifact) -> str:
    """The root of an artifact's folder {root}/{stage}/{label-fingerprint}."""
    return artifact.folder.uri.rsplit("/", 2)[0]


def _list_stages(inputs: Mapping[str, Artifact]) -> list[Row]:
    """Every stage: its duration, headline, folder, MLflow run and commit."""
    return [
        {
            "stage": name,
            "seconds": artifact.record["seconds"],
            "starting_seconds": artifact.record.get("starting_seconds", ""),
            "made": artifact.headline,
            "fingerprint": artifact.fingerprint,
            "folder": artifact.folder.uri,
            "mlflow_run_id": artifact.record["mlflow_run_id"],
            "commit": artifact.record["made_by"]["commit"],
            "finished": artifact.record["finished"],
        }
        for name, artifact in inputs.items()
    ]
