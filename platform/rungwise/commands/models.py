"""`rungwise why|verify|rebuild|export|promote MODEL`: what a model was built from, and its use."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rungwise.commands.parser import Commands, add_overrides, add_registry, add_verb
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
        (export, "export for transformers or as ONNX, an n-gram as ARPA"),
        (promote, "give a version the alias champion if it passes the checks"),
    ):
        parser = add_verb(commands, command, description)
        help_text = "models:/NAME/VERSION or models:/NAME@ALIAS"
        if command is not promote:
            help_text += ", a recipe (its pretrained model), or the folder of an artifact or of a "
            help_text += "stage (its newest artifact), local or s3://"
        count = "?" if command is why else None
        parser.add_argument("model", metavar="MODEL", nargs=count, help=help_text)
        add_registry(parser)
        if command is promote:
            parser.epilog = "checks: unchanged files, a score that is no worse"
            parser.add_argument("--to", default="champion", metavar="ALIAS", help="another alias")
            continue
        add_overrides(parser)
        if command is why:
            text = "a source's name, path or kind, or a document's id in a corpus"
            parser.add_argument("--source", "--document", dest="text", metavar="NAME", help=text)
        elif command is rebuild:
            parser.add_argument("--into", required=True, metavar="FOLDER", help="root of the copy")
        elif command is export:
            parser.add_argument("--to", required=True, metavar="FOLDER", help="local or s3://")
            text = "vectors: one per token, in word2vec's formats; the default for word vectors"
            parser.add_argument("--format", choices=("onnx", "vectors"), help=text)


def _trace(options: argparse.Namespace) -> list[Artifact]:
    """The artifacts behind the model, inputs first. Raises UserError if there is no such model."""
    from rungwise.core.stages.artifact import chain
    from rungwise.pipeline.loading import find_built

    return chain(find_built(options.model, options.root, options.overrides))


def why(options: argparse.Namespace) -> None:
    """Print what a model was built from, or which models read a source or a document."""
    if (options.model is None) == (options.text is None):
        raise UserError("why expects one of MODEL, --source NAME and --document ID")
    if options.text is None:
        _print_origin(options)
    else:
        _print_readers(options.root, options.text)


def _print_origin(options: argparse.Namespace) -> None:
    """Print the registered version, then each artifact from the model back to the corpus."""
    from rungwise.core.configuration.canonical import flatten
    from rungwise.core.stages.provenance import PACKAGES
    from rungwise.pipeline import loading

    console = plain_console()
    artifacts = _trace(options)
    if options.model.startswith(loading.REGISTERED):
        version = loading.find_version(options.model, options.root)
        console.print(f"models:/{version.name}/{version.version}", style="bold")
    for artifact in reversed(artifacts):
        record = artifact.record
        maker = record.get("made_by", {})
        versions = maker.get("packages", {})
        made_by = [f"commit {maker.get('commit') or 'unknown'}"]
        made_by += [f"{name} {versions[name]}" for name in PACKAGES if name in versions]
        console.print(f"{artifact.stage} {artifact.fingerprint}", style="bold")
        history = f"made {record['finished']} in {record['seconds']:,.0f} s"
        lines = [artifact.headline, history, f"by {', '.join(made_by)}"]
        lines.append(f"content sha256 {artifact.digest}")
        if run := record.get("mlflow_run_id"):
            lines.append(f"MLflow run {run}")
        files = flatten(record["facts"]["outside"])
        lines += [f"read {key} {value}" for key, value in files.items()]
        for line in lines:
            console.print(f"  {line}")


def _print_readers(root_uri: str, text: str) -> None:
    """Print each corpus that has the source or document, and the models built from it."""
    from rungwise.core.stages import artifact as artifacts
    from rungwise.corpus.summary import CORPORA
    from rungwise.pipeline.places import root_folder

    say = plain_console().print
    root = root_folder(root_uri)
    existing = artifacts.find_artifacts(root)
    corpora = [artifact for artifact in existing if artifact.stage in CORPORA]
    if not corpora:
        raise UserError(f"there is no corpus below {root.uri}; give the root of a run with --root")
    places = [_locate(corpus, text) for corpus in corpora]
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


def _locate(corpus: Artifact, text: str) -> str:
    """Say where the corpus has a source or a document of this name; empty if it has none."""
    import pyarrow.parquet as pq

    from rungwise.corpus.summary import source_blocks

    for source in source_blocks(corpus):
        if text in (source.get("name"), source["kind"], *(source.get("paths") or [])):
            return f"the source {text}"
    for name in corpus.record["files"]:
        if name.endswith(".parquet"):
            with corpus.folder.open(name) as stream:
                ids = pq.read_table(stream, columns=["id"])["id"]
            if ids.index(text).as_py() >= 0:
                return f"{text} in {name}"
    return ""


def verify(options: argparse.Namespace) -> None:
    """Print a line per artifact, inputs first. Raises DataError that names each changed file."""
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
        say(f"{artifact.stage:<12} {artifact.fingerprint}  {len(files):>5,} files  {state}")
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
    from rungwise.core.tracking.store import default_uri
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
        state = ", ".join(compared.different) + " differ" if compared.different else "same bytes"
        say(f"{before.stage:<12} {before.fingerprint}  {compared.compared:>5,} files  {state}")
        faults += [f"{before.folder.path(name)} differs if rebuilt" for name in compared.different]
    if faults:
        raise DataError("\n".join(faults))


def export(options: argparse.Namespace) -> None:
    """Write the files to a folder or s3:// URL, and print how to load them."""
    from rungwise.core.stages.artifact import Artifact
    from rungwise.core.storage.folder import Folder
    from rungwise.pipeline.loading import REGISTERED, download_served, find_model
    from rungwise.serving.card import NAME as CARD
    from rungwise.serving.export import write_onnx, write_pretrained, write_task_model

    say, folder = plain_console().print, Folder.at(options.to)
    model = find_model(options.model, options.root, options.overrides)
    if options.format == "onnx":
        result = write_onnx(model, folder)
    elif isinstance(model, Artifact):
        say(model.folder.uri)
        result = write_pretrained(model, folder, vectors=options.format == "vectors")
    elif options.format is None:
        card = ""
        if options.model.startswith(REGISTERED):
            card = download_served(options.model, options.root).read_bytes(CARD).decode("utf-8")
        result = write_task_model(model, folder, card)
    else:
        raise UserError(f"{options.model} is fine-tuned; --format vectors takes a pretrained model")
    for name in result.files:
        say(f"  {folder.path(name)}  {folder.size(name):,} bytes")
    say(f"load it with {result.loader}")


def promote(options: argparse.Namespace) -> None:
    """Print which version has the alias. Raises UserError, and changes nothing, if checks fail."""
    from rungwise.core.tracking.store import store_client
    from rungwise.pipeline import loading
    from rungwise.serving import registry
    from rungwise.serving.card import serve_command

    say = plain_console().print
    name, number = loading.name_and_version(options.model)
    if not options.model.startswith(loading.REGISTERED) or not number.isdecimal():
        raise UserError(
            f"{options.model}: expected models:/NAME/VERSION, such as models:/rungwise-sst-2/3"
        )
    alias = options.to
    with store_client(loading.registry_uri(options.root)) as client:
        model = loading.find_built(options.model, options.root)
        faults = registry.find_faults(model, loading.download_served(options.model, options.root))
        tags = client.get_model_version(name, number).tags
        if holder := registry.find_better_holder(client, name, alias, tags):
            faults.append(
                f"it scores {tags[registry.SCORE]} in validation, and version {holder.version}, "
                f"which has the alias, {holder.tags[registry.SCORE]}"
            )
        if faults:
            title = f"{options.model} does not become {alias}, and nothing has changed:"
            raise UserError("\n".join([title, *faults]))
        client.set_registered_model_alias(name, alias, number)
        say(f"{alias} is {options.model}; over HTTP: {serve_command(f'models:/{name}@{alias}')}")
