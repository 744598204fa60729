"""`rungwise predict MODEL`: answers for text, TSV or JSON Lines, as they are read.

MODEL is a registered model (models:/NAME@alias or models:/NAME/VERSION), the folder of an evaluate
artifact, on this machine or an object store, or artifacts/evaluate for the newest. Predictions go
out batch by batch, one JSON object a line, so that a pipe may be endless.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import TextIO

from rungwise.core import artifact as artifacts
from rungwise.core.errors import DataError, UserError
from rungwise.core.exit_codes import OK
from rungwise.core.storage import Folder
from rungwise.core.tracking import default_uri, quieten_mlflow
from rungwise.finetune import DESCRIPTION
from rungwise.pipeline.workflow import root_folder
from rungwise.serving.predictor import Predictor
from rungwise.tasks.examples import Example
from rungwise.tasks.unlabelled import SUFFIXES, Format, read_lines

_REGISTERED = "models:/"


def predict_command(
    model: str, source: str, to: str, form: Format | None, batch_size: int, root: str
) -> int:
    """Read `source` ("-" is standard input), write to `to` ("-" is standard output)."""
    form = form or _format_of(source)
    predictor = find(model, root)
    with ExitStack() as stack:
        lines = _opened(source, stack)
        written = stack.enter_context(_whole_or_nothing(to))
        examples = read_lines(lines, form, predictor.info, "stdin" if source == "-" else source)
        for line in answers(predictor, examples, batch_size):
            written.write(line)
            written.flush()
    return OK


def answers(predictor: Predictor, examples: Iterable[Example], batch_size: int) -> Iterator[str]:
    """The lines of one batch after the other."""
    rest = iter(examples)
    while batch := list(islice(rest, batch_size)):
        predictions = predictor(batch)
        yield "".join(
            json.dumps({"where": example.where, **prediction}, ensure_ascii=False) + "\n"
            for example, prediction in zip(batch, predictions, strict=True)
        )


def find(model: str, root: str) -> Predictor:
    """The model that is meant. UserError where there is none, with what would do."""
    if model.startswith(_REGISTERED):
        return _registered(model, root)
    folder = Folder.at(model)
    if not folder.exists(DESCRIPTION):
        found = artifacts.at_or_below(folder)
        if found is None:
            raise UserError(
                f"{model}: no fine-tuned model here; expected models:/NAME@ALIAS, the folder of an "
                "evaluate artifact, such as artifacts/evaluate/NAME-FINGERPRINT, or "
                "artifacts/evaluate for the newest"
            )
        folder = found.folder
    return Predictor.load(folder)


def _registered(model: str, root: str) -> Predictor:
    import mlflow.artifacts
    from mlflow.exceptions import MlflowException

    quieten_mlflow()
    uri = default_uri(root_folder(root), os.environ.get("MLFLOW_TRACKING_URI"))
    mlflow.set_tracking_uri(uri)
    try:
        folder = Path(mlflow.artifacts.download_artifacts(model))
    except MlflowException as error:
        raise UserError(
            f"{model}: not found in the registry at {uri} ({error.message}); give --root, or set "
            "MLFLOW_TRACKING_URI"
        ) from error
    return Predictor.load(Folder.at(folder / "artifacts"))


def _format_of(source: str) -> Format:
    suffix = Path(source).suffix.lower()
    if source != "-" and suffix in SUFFIXES:
        return SUFFIXES[suffix]
    raise UserError(
        f"{source}: cannot tell the format; give --format text, tsv or jsonl"
        + ("" if source == "-" else f" (known endings: {', '.join(SUFFIXES)})")
    )


def _opened(source: str, stack: ExitStack) -> Iterable[str]:
    if source == "-":
        return sys.stdin
    try:
        return stack.enter_context(open(source, encoding="utf-8", newline=""))
    except OSError as error:
        raise DataError(f"cannot read {source}: {error.strerror}") from error


@contextmanager
def _whole_or_nothing(to: str) -> Iterator[TextIO]:
    """Standard output, or a file that has its name only when everything is in it."""
    if to == "-":
        yield sys.stdout
        return
    if os.path.exists(to):
        raise UserError(f"--to {to}: there is such a file already; give another name")
    part = f"{to}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise UserError(f"cannot write {part}: {error.strerror}") from error
    os.replace(part, to)
