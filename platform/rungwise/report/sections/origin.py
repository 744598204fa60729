"""Provenance: the text and what was dropped, versions, commands to rebuild and use the models."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rungwise.core.stages.artifact import Artifact
from rungwise.corpus.summary import CorpusSummary
from rungwise.report.sections.variants import select_stage
from rungwise.serving.stage import RegisterSummary

RECIPE = "recipe.yaml"


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """A recipe as YAML."""
    return yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True, width=100)


def workflow(inputs: Mapping[str, Artifact]) -> str:
    """The name of the workflow that has these stages."""
    if select_stage(inputs, "claims"):
        return "ladder"
    return "finetune" if select_stage(inputs, "evaluate") else "pretrain"


def uses(
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


def dropped(corpus: Artifact) -> list[dict[str, Any]]:
    """Dropped texts: the reason, how many, and some names."""
    summary = CorpusSummary.of(corpus)
    return [
        {"reason": reason, "count": count, "examples": summary.dropped_examples.get(reason, [])}
        for reason, count in sorted(summary.dropped.items(), key=lambda item: -item[1])
    ]


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
