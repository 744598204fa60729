"""Provenance: the text and what was dropped, versions, commands to rebuild and use the models."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rungwise.core.configuration.secrecy import redact
from rungwise.core.stages.artifact import Artifact
from rungwise.corpus.summary import CorpusSummary, describe_sources
from rungwise.evaluation.comparison.summary import EvaluateSummary
from rungwise.report.page import Section
from rungwise.report.sections.variants import Row, input_artifact, select_stage
from rungwise.serving.stage import RegisterSummary
from rungwise.training.summary import PretrainSummary

Registered = Sequence[tuple[RegisterSummary, EvaluateSummary]]


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """A recipe as YAML."""
    return yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True, width=100)


def workflow(inputs: Mapping[str, Artifact]) -> str:
    """The name of the workflow that has these stages."""
    if select_stage(inputs, "claims"):
        return "ladder"
    return "finetune" if select_stage(inputs, "evaluate") else "pretrain"


def list_uses(
    inputs: Mapping[str, Artifact], registered: Sequence[tuple[RegisterSummary, object]]
) -> list[tuple[str, str]]:
    """List the uses of a run's models, each with its command or Python code."""
    folder = inputs["pretrain"].folder.uri
    root = shlex.quote(root_folder(inputs["pretrain"]))
    commands = [
        (
            "Export the pretrained model to the other formats that fit it:",
            f"rungwise export {shlex.quote(folder)} --to model",
        ),
        (
            "Load it in Python, with its tokenizer:",
            f"import rungwise\nmodel = rungwise.load({folder!r})",
        ),
        ("Show what it was made from:", f"rungwise why {shlex.quote(folder)}"),
    ]
    for model, _ in registered:
        predict = f"rungwise predict {shlex.quote(model.model_uri)} --root {root} --input FILE"
        commands.append((f"Predict with the fine-tuned model {model.name}:", predict))
    return commands


def root_folder(artifact: Artifact) -> str:
    """The root of an artifact's folder {root}/{stage}/{label-fingerprint}."""
    return artifact.folder.uri.rsplit("/", 2)[0]


def list_dropped_texts(corpus: Artifact) -> list[dict[str, Any]]:
    """Dropped texts: the reason, how many, and some names."""
    summary = CorpusSummary.of(corpus)
    rows = []
    for reason, count in sorted(summary.dropped.items(), key=lambda item: -item[1]):
        examples = [one["id"] for one in summary.dropped_samples.get(reason, [])]
        rows.append({"reason": reason, "count": count, "examples": examples})
    return rows


def environment(inputs: Mapping[str, Artifact]) -> dict[str, list[str]]:
    """Commits, Python, packages and machines, each with every value that occurs in the stages."""
    versions: dict[str, list[str]] = {}
    for artifact in inputs.values():
        origin = artifact.record["made_by"]
        values = {
            "commit": origin["commit"] or "outside a checkout",
            "Python": origin["python"],
            **origin["packages"],
            "machine": f"{origin['machine']['system']}, {origin['machine']['cpus']} CPUs",
        }
        for key, value in values.items():
            if value not in versions.setdefault(key, []):
                versions[key].append(value)
    return versions


def write_use(inputs: Mapping[str, Artifact], registered: Registered, quote: str) -> Section:
    """The section with commands that use the models, and a summary to `quote`."""
    pretrain = inputs["pretrain"]
    name = f"{pretrain.label}-{pretrain.fingerprint}"
    fields = {"uses": list_uses(inputs, registered), "quote": quote, "name": name}
    return Section("use", "Use it", fields)


def write_origin(
    inputs: Mapping[str, Artifact],
    recipe: str,
    registered: Registered = (),
    pretrain: PretrainSummary | None = None,
) -> Section:
    """The section about where everything on the page is from. Secrets are cut from the recipe and
    the sources; results, with names of labels, are data."""
    run = pretrain.gradient if pretrain else None
    stages = stage_rows(inputs)
    fields = {
        "stages": stages,
        "root": root_folder(list(inputs.values())[-1]),
        "registered": registered,
        "workflow": workflow(inputs),
        "recipe": redact(recipe),
        "corpus": CorpusSummary.of(inputs["corpus"]),
        "dropped": list_dropped_texts(inputs["corpus"]),
        "text_sources": run.sources if run else (),
        "tokens": pretrain.tokens if pretrain else 0,
        "environment": environment(inputs),
        "sources": [redact(source) for source in describe_sources(inputs["corpus"])],
    }
    return Section("origin", "Provenance", fields, csv={"stages": stages})


def list_registered(inputs: Mapping[str, Artifact]) -> Registered:
    """Every registered model with its evaluation."""
    models = []
    for artifact in select_stage(inputs, "register").values():
        evaluate = input_artifact(artifact, "evaluate", inputs)
        assert evaluate is not None, "what registers a model has its evaluation before it"
        models.append((RegisterSummary.of(artifact), EvaluateSummary.of(evaluate)))
    return models


def stage_rows(inputs: Mapping[str, Artifact]) -> list[Row]:
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
