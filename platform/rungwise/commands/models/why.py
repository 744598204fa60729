"""`rungwise why MODEL`: trace a model to the bytes of its sources."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rungwise.commands.arguments import Commands, add_artifact, add_verb, find_artifact
from rungwise.core.stages.provenance import PACKAGES


def add(commands: Commands) -> None:
    parser = add_verb(commands, why, "trace a model to its sources")
    add_artifact(parser)


def why(options: argparse.Namespace) -> None:
    """Print the registered version, then each artifact from the model back to the corpus with its
    date, commit and external inputs."""
    from rungwise.core.configuration.canonical import flatten
    from rungwise.core.console import plain_console
    from rungwise.core.stages.artifact import chain
    from rungwise.pipeline import loading

    console = plain_console()
    artifacts = chain(find_artifact(options))
    if options.model.startswith(loading.REGISTERED):
        version = loading.registered(options.model, options.root)
        console.print(f"models:/{version.name}/{version.version}", style="bold")
        date = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
        console.print(f"  registered {date.isoformat(timespec='seconds')}")
    machine = ""
    for artifact in reversed(artifacts):
        record = artifact.record
        console.print(f"{artifact.stage} {artifact.fingerprint}", style="bold")
        lines = [
            artifact.headline,
            f"made {record['finished']} in {record['seconds']:,.0f} s",
            f"content sha256 {artifact.digest}",
        ]
        before, machine = machine, _maker(record.get("made_by", {}))
        if machine != before:
            lines.insert(2, f"by {machine}")
        if run := record.get("mlflow_run_id"):
            lines.append(f"MLflow run {run}")
        files = flatten(record["facts"]["outside"])
        lines += [f"read {key} {value}" for key, value in files.items()]
        for line in lines:
            console.print(f"  {line}")


def _maker(made_by: Mapping[str, Any]) -> str:
    versions = made_by.get("packages", {})
    packages = [f"{name} {versions[name]}" for name in PACKAGES if name in versions]
    return ", ".join([f"commit {made_by.get('commit') or 'unknown'}", *packages])
