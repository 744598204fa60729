"""`rungwise try|inspect|predict|export|promote|why|verify|rebuild`: what was built, from what, and
its use. Predictions are written batch by batch, so the input may be an endless pipe."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console

from rungwise.commands.parser import (
    Commands,
    add_overrides,
    add_registry,
    add_served_model,
    add_verb,
    positive_integer,
)
from rungwise.core.configuration.secrecy import redact
from rungwise.core.errors import DataError, UserError, format_count
from rungwise.core.exit_codes import plain_console

if TYPE_CHECKING:
    from rungwise.core.stages.artifact import Artifact
    from rungwise.models.trained.language_models import Sampling
    from rungwise.tasks.data.cutting import Format
    from rungwise.tasks.kinds.examples import Example

    Answer = Callable[[Sequence[Example]], list[dict[str, Any]]]

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
    help_text = "run a model on text, TSV, CSV or JSON Lines; print JSON Lines"
    parser = add_verb(commands, predict, help_text)
    add_served_model(parser)
    parser.add_argument("--input", default="-", metavar="FILE", help="default: standard input")
    parser.add_argument("--to", default="-", metavar="FILE", help="default: standard output")
    formats = ("text", "tsv", "csv", "jsonl")
    parser.add_argument("--format", choices=formats, help="default: by the file's suffix")
    parser.add_argument("--batch-size", type=positive_integer, default=64, metavar="N")
    _add_sampling(parser, "continue each text by N tokens at most (default: 0)", length=0)
    help_text = "type a text and see a model fill its gap, continue it or label it"
    parser = add_verb(commands, try_model, help_text, "try")
    add_served_model(parser)
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="default: ask for it")
    _add_sampling(parser, "a model that writes adds N tokens at most (default: 40)", length=40)
    parser = add_verb(commands, inspect, "print instances as readable text, masks in colour")
    help_text = "artifacts/instances (the newest), or a folder in it"
    parser.add_argument("instances", metavar="INSTANCES", help=help_text)
    parser.add_argument("--index", type=int, help="which instance; default: a few at random")
    parser.add_argument("--split", default="train", choices=("train", "validation"))
    parser.add_argument("--epoch", type=int, default=0, help="each has new masks and windows")
    parser.add_argument("--seed", type=int, default=0, help="seed of the masks and the choice")


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
    from rungwise.pipeline import loading, runner
    from rungwise.pipeline.places import root_folder, spool_folder

    artifacts = _trace(options)
    stages = loading.restore_stages(artifacts)
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
        compared = loading.compare_files(before, outcome.artifacts[stage.display_name])
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


def _add_sampling(parser: argparse.ArgumentParser, length_help: str, length: int) -> None:
    parser.add_argument("--length", type=int, default=length, metavar="N", help=length_help)
    help_text = "of what a model writes: 0 takes the likeliest token, 1 draws as the model says "
    help_text += "(default: 0.8)"
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T", help=help_text)
    help_text = "draw among the K likeliest tokens (default: all)"
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help=help_text)
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default: 0)")


def _read_sampling(options: argparse.Namespace) -> Sampling:
    from rungwise.models.trained.language_models import Sampling

    return Sampling(options.length, options.temperature, options.top_k, options.seed)


def predict(options: argparse.Namespace) -> None:
    """Read the input line by line and write the answers; "-" is standard input or output."""
    from rungwise.pipeline.loading import find_served
    from rungwise.serving.predictor import load_predictor
    from rungwise.tasks.data.cutting import read_lines

    source = options.input
    folder = find_served(options.model, options.root)
    file_format = options.format or _detect_format(source)
    predictor = load_predictor(folder)
    sampling = _read_sampling(options) if options.length else None

    def answer(examples: Sequence[Example]) -> list[dict[str, Any]]:
        return predictor(examples, sampling)

    with ExitStack() as stack:
        name = "stdin" if source == "-" else source
        lines = check_encoding(_open(source, stack), name)
        output = stack.enter_context(_open_output(options.to))
        examples = read_lines(lines, file_format, predictor.info, name)
        for line in predict_lines(answer, examples, options.batch_size):
            output.write(line)
            output.flush()


def predict_lines(answer: Answer, examples: Iterable[Example], batch_size: int) -> Iterator[str]:
    """Yield the output lines of each batch as one string."""
    iterator = iter(examples)
    while batch := list(islice(iterator, batch_size)):
        pairs = zip(batch, answer(batch), strict=True)
        rows = ({"where": example.where, **prediction} for example, prediction in pairs)
        yield "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _detect_format(source: str) -> Format:
    from rungwise.tasks.data.cutting import SUFFIXES

    suffix = Path(source).suffix.lower()
    if source != "-" and suffix in SUFFIXES:
        return SUFFIXES[suffix]
    name = "standard input" if source == "-" else source
    raise UserError(f"{name}: cannot tell the format; give --format text, tsv, csv or jsonl")


def _open(source: str, stack: ExitStack) -> Iterable[str]:
    if source == "-":
        return sys.stdin
    try:
        return stack.enter_context(open(source, encoding="utf-8", newline=""))
    except OSError as error:
        raise DataError(f"cannot read {source}: {error.strerror}") from error


def check_encoding(lines: Iterable[str], source: str) -> Iterator[str]:
    """Yield the lines without a byte order mark; DataError with the line if one is not UTF-8."""
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            yield line.removeprefix("\ufeff") if number == 1 else line
    except UnicodeDecodeError as error:
        # Python decodes whole blocks ahead of the lines.
        number += 1 + error.object.count(b"\n", 0, error.start)
        raise DataError(
            f"{source}:{number}: expected UTF-8, found the byte "
            f"0x{error.object[error.start]:02x}; convert the input"
        ) from None


@contextmanager
def _open_output(to: str) -> Iterator[IO[str]]:
    """Open standard output, or a file that gets its name only once it is complete."""
    if to == "-":
        yield sys.stdout
        return
    if os.path.exists(to):
        raise UserError(f"--to {to}: the file already exists; give another name")
    part = f"{to}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise UserError(f"cannot write {part}: {error.strerror}") from error
    os.replace(part, to)


def try_model(options: argparse.Namespace) -> None:
    """Answer the texts of the command line, or ask for texts until the input ends."""
    from rungwise.pipeline.loading import find_served
    from rungwise.serving.predictor import load_predictor, try_texts
    from rungwise.tasks.interface import task_kind
    from rungwise.tasks.kinds.examples import check_encodable

    model = load_predictor(find_served(options.model, options.root))
    fields, sampling = task_kind(model.info).fields, _read_sampling(options)

    def answer(texts: Sequence[str]) -> str:
        # A terminal that is not UTF-8 sends other bytes.
        each = [check_encodable(text, "the input", "the text") for text in texts]
        return try_texts(model, each, sampling)

    if not options.texts:
        _ask(fields, answer)
        return
    if len(options.texts) != len(fields):
        raise UserError(
            f"expected {format_count(len(fields), 'text')} ({', '.join(fields)}), found "
            f"{len(options.texts)}; put each in quotes"
        )
    print(answer(options.texts))  # noqa: T201


def _ask(fields: Sequence[str], answer: Callable[[Sequence[str]], str]) -> None:
    """Ask for texts and answer them until the input ends; a mistake is said, and asked again."""
    is_terminal = sys.stdin.isatty()
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # which the check of an answer refuses
    with suppress(EOFError):
        while True:
            texts = [input(f"{name}: " if is_terminal else "") for name in fields]
            try:
                print(answer(texts), flush=True)  # noqa: T201
            except DataError as error:
                print(redact(str(error)), file=sys.stderr, flush=True)  # noqa: T201
    if is_terminal:
        print()  # noqa: T201


def inspect(options: argparse.Namespace) -> None:
    from rich.console import Console

    from rungwise.instances import inspection

    instances = inspection.find_instances(options.instances)
    inspection.show_instances(
        instances, options.split, options.index, options.epoch, options.seed, Console()
    )
