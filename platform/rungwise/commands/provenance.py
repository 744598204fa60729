"""`rungwise why|verify|rebuild MODEL`: what a model was built from, and whether it still agrees.

`rungwise why --source NAME` or `--document ID` asks the other way round: which models read it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rungwise.commands.arguments import Commands, add_overrides, add_registry, add_verb
from rungwise.core.errors import DataError, UserError
from rungwise.core.exit_codes import plain_console

if TYPE_CHECKING:
    from rungwise.core.stages.artifact import Artifact

_MODELS = ("pretrain", "evaluate", "register")


def add(commands: Commands) -> None:
    for command, description in (
        (why, "trace a model to its sources, or a source to its models"),
        (verify, "check that no file behind a model has changed"),
        (rebuild, "rebuild a model elsewhere and compare every file"),
    ):
        parser = add_verb(commands, command, description)
        parser.add_argument(
            "model",
            metavar="MODEL",
            nargs="?" if command is why else None,
            help="models:/NAME@ALIAS, a recipe (its pretrained model), or the folder of an "
            "artifact or of a stage (its newest artifact), local or s3://",
        )
        add_registry(parser)
        add_overrides(parser)
        if command is why:
            text = parser.add_mutually_exclusive_group()
            text.add_argument("--source", metavar="NAME", help="a source's name, path or kind")
            text.add_argument("--document", metavar="ID", help="a document's id in a corpus")
        if command is rebuild:
            parser.add_argument("--into", required=True, metavar="FOLDER", help="root of the copy")


def _trace(options: argparse.Namespace) -> list[Artifact]:
    """The artifacts behind the model, inputs first. Raises UserError if there is no such model."""
    from rungwise.core.stages.artifact import chain
    from rungwise.pipeline.loading import find_built

    return chain(find_built(options.model, options.root, options.overrides))


def why(options: argparse.Namespace) -> None:
    """Print what a model was built from, or which models read a source or a document."""
    if (options.model is None) == (options.source is None and options.document is None):
        raise UserError("why expects one of MODEL, --source NAME and --document ID")
    if options.source:
        _print_readers(options.root, options.source, _locate_source)
    elif options.document:
        _print_readers(options.root, options.document, _locate_document)
    else:
        _print_origin(options)


def _print_origin(options: argparse.Namespace) -> None:
    """Print the registered version, then each artifact from the model back to the corpus with its
    date, commit and external inputs."""
    from rungwise.core.configuration.canonical import flatten
    from rungwise.pipeline import loading

    console = plain_console()
    artifacts = _trace(options)
    if options.model.startswith(loading.REGISTERED):
        version = loading.find_version(options.model, options.root)
        console.print(f"models:/{version.name}/{version.version}", style="bold")
        date = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC)
        console.print(f"  registered {date.isoformat(timespec='seconds')}")
    for artifact in reversed(artifacts):
        record = artifact.record
        console.print(f"{artifact.stage} {artifact.fingerprint}", style="bold")
        lines = [
            artifact.headline,
            f"made {record['finished']} in {record['seconds']:,.0f} s",
            f"by {_describe_maker(record.get('made_by', {}))}",
            f"content sha256 {artifact.digest}",
        ]
        if run := record.get("mlflow_run_id"):
            lines.append(f"MLflow run {run}")
        files = flatten(record["facts"]["outside"])
        lines += [f"read {key} {value}" for key, value in files.items()]
        for line in lines:
            console.print(f"  {line}")


def _describe_maker(made_by: Mapping[str, Any]) -> str:
    from rungwise.core.stages.provenance import PACKAGES

    versions = made_by.get("packages", {})
    packages = [f"{name} {versions[name]}" for name in PACKAGES if name in versions]
    return ", ".join([f"commit {made_by.get('commit') or 'unknown'}", *packages])


def _print_readers(root_uri: str, text: str, locate: Callable[[Artifact, str], str]) -> None:
    """Print each corpus where `locate` finds the text, and the models built from that corpus.
    Raises UserError if there is none."""
    from rungwise.core.stages import artifact as artifacts
    from rungwise.corpus.summary import CORPORA
    from rungwise.pipeline.places import root_folder

    say = plain_console().print
    root = root_folder(root_uri)
    existing = artifacts.find_artifacts(root)
    corpora = [artifact for artifact in existing if artifact.stage in CORPORA]
    if not corpora:
        raise UserError(f"there is no corpus below {root.uri}; give the root of a run with --root")
    places = [locate(corpus, text) for corpus in corpora]
    if not any(places):
        raise UserError(f"none of {len(corpora)} corpora below {root.uri} holds {text!r}")
    for corpus, place in zip(corpora, places, strict=True):
        if not place:
            continue
        say(f"{corpus.stage} {corpus.fingerprint} ({corpus.label}): {place}")
        for artifact in existing:
            inputs = artifacts.collect_inputs([artifact.fingerprint], existing)
            if artifact.stage in _MODELS and corpus.fingerprint in inputs:
                name = f"{artifact.fingerprint} ({artifact.label})"
                say(f"  {artifact.stage:<9} {name}  {artifact.headline}")


def _locate_source(corpus: Artifact, name: str) -> str:
    """Say that the corpus has the source; empty if it has not."""
    from rungwise.corpus.summary import source_blocks

    for source in source_blocks(corpus):
        if name in (source.get("name"), source["kind"], *(source.get("paths") or [])):
            return f"the source {name}"
    return ""


def _locate_document(corpus: Artifact, document: str) -> str:
    """Say which file of the corpus has the document; empty if none has."""
    import pyarrow.parquet as pq

    for name in corpus.record["files"]:
        if name.endswith(".parquet"):
            with corpus.folder.open(name) as stream:
                ids = pq.read_table(stream, columns=["id"])["id"]
            if ids.index(document).as_py() >= 0:
                return f"{document} in {name}"
    return ""


def verify(options: argparse.Namespace) -> None:
    """Print a line per artifact, inputs first, one for the registry's copy, and one that says what
    this proves. Raises DataError that names each changed file."""
    from rungwise.pipeline import loading
    from rungwise.serving import registry

    say = plain_console().print
    faults: list[str] = []
    artifacts = _trace(options)
    for artifact in artifacts:
        files = artifact.record["files"].values()
        try:
            artifact.verify()
            state = "unchanged"
        except DataError as error:
            faults.append(str(error))
            state = "CHANGED"
        megabytes = sum(file["bytes"] for file in files) / 1e6
        say(
            f"{artifact.stage:<12} {artifact.fingerprint}  {len(files):>5,} files "
            f"{megabytes:>10,.1f} MB  {state}"
        )
    if options.model.startswith(loading.REGISTERED):
        served = loading.download_served(options.model, options.root)
        changes = registry.find_changed_copies(artifacts[-1], served)
        faults += changes
        say(f"{options.model}  {'CHANGED' if changes else 'unchanged'}")
    if faults:
        raise DataError("\n".join(faults))
    say(
        "files agree with their records, which are not signed: whoever can write here could have "
        "changed both (docs/how-to/lineage.md)"
    )


def rebuild(options: argparse.Namespace) -> None:
    """Print each artifact and its files that differ. Raises DataError if any file differs."""
    from rungwise.core.configuration.config import validate
    from rungwise.core.configuration.overrides import ComputeConfig
    from rungwise.core.tracking.sender import default_uri
    from rungwise.core.tracking.tracker import Tracker
    from rungwise.pipeline import rebuilding, runner
    from rungwise.pipeline.places import root_folder, spool_folder

    artifacts = _trace(options)
    stages = rebuilding.restore_stages(artifacts)
    root, recipe = root_folder(options.into), artifacts[-1].record["recipe"]
    own = artifacts[-1].folder.uri.rsplit("/", 2)[0]
    # There, everything is built, and would be compared with itself.
    if root.uri == own or Path(root.uri).resolve() == Path(own).resolve():
        raise UserError(f"{root.uri} holds the model itself; give another folder with --into")
    compute = validate(ComputeConfig, recipe["compute"], f"compute of {artifacts[-1].folder.uri}")
    console = Console(highlight=False)

    def tracker(driver: str) -> Tracker:
        return Tracker(default_uri(root, None), "rebuilt", spool_folder(root), driver)

    outcome = runner.run(
        stages, root, artifacts[-1].label, compute, tracker, console, recipe | {"root": root.uri}
    )
    say = plain_console().print
    say()
    faults = []
    for before, stage in zip(artifacts, stages, strict=True):
        compared = rebuilding.compare(before, outcome.artifacts[stage.display_name])
        omitted = len(before.record["files"]) - compared.compared
        state = ", ".join(compared.different) + " differ" if compared.different else "same bytes"
        state += f"; {omitted:,} with timestamps not compared" * (omitted > 0)
        say(f"{before.stage:<12} {before.fingerprint}  {compared.compared:>5,} files  {state}")
        faults += [f"{before.folder.path(name)} differs if rebuilt" for name in compared.different]
    if faults:
        raise DataError("\n".join(faults))
