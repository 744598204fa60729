"""`rungwise predict MODEL`: run a model on text, tables or JSON Lines.

MODEL is a registered model (models:/NAME@alias or models:/NAME/VERSION), the model of an MLflow run
(runs:/ID/model), the folder of an evaluate or pretrain artifact, local or in an object store,
artifacts/evaluate for the newest, or a recipe (its pretraining).
Predictions are written batch by batch, one JSON object per line, so the input may be an endless
pipe; to a file in .npy, the vectors of all texts as one array. serving/predictor.py defines what a
pretrained model answers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rungwise.commands.arguments import Commands, add_served_model, add_verb, positive_integer
from rungwise.core.errors import DataError, UserError

_ARRAY = ".npy"

if TYPE_CHECKING:
    from rungwise.serving.predictor import Model
    from rungwise.tasks.data.cutting import Format
    from rungwise.tasks.kinds.examples import Example


def add(commands: Commands) -> None:
    help_text = "run a model on text, TSV, CSV or JSON Lines; print JSON Lines"
    parser = add_verb(commands, predict, help_text)
    add_served_model(parser)
    parser.add_argument("--input", default="-", metavar="FILE", help="default: standard input")
    parser.add_argument(
        "--to",
        default="-",
        metavar="FILE",
        help="default: standard output; in .npy: an array of vectors",
    )
    parser.add_argument(
        "--format", choices=("text", "tsv", "csv", "jsonl"), help="default: by the file's suffix"
    )
    parser.add_argument("--batch-size", type=positive_integer, default=64, metavar="N")


def predict(options: argparse.Namespace) -> None:
    """Read the input line by line and write the answers; "-" is standard input or output."""
    from rungwise.pipeline.loading import find_served
    from rungwise.serving.predictor import load_predictor
    from rungwise.tasks.data.cutting import read_lines

    source = options.input
    folder = find_served(options.model, options.root)
    file_format = options.format or _detect_format(source)
    predictor = load_predictor(folder)
    with ExitStack() as stack:
        name = "stdin" if source == "-" else source
        lines = check_encoding(_open(source, stack), name)
        as_array = options.to.lower().endswith(_ARRAY)
        output = stack.enter_context(_open_output(options.to, binary=as_array))
        examples = read_lines(lines, file_format, predictor.info, name)
        if as_array:
            write_vectors(predictor, examples, options.batch_size, output)
            return
        for line in predict_lines(predictor, examples, options.batch_size):
            output.write(line)
            output.flush()


def predict_lines(predictor: Model, examples: Iterable[Example], batch_size: int) -> Iterator[str]:
    """Yield the output lines of each batch as one string."""
    for batch, predictions in _answers(predictor, examples, batch_size):
        yield "".join(
            json.dumps({"where": example.where, **prediction}, ensure_ascii=False) + "\n"
            for example, prediction in zip(batch, predictions, strict=True)
        )


def write_vectors(
    predictor: Model, examples: Iterable[Example], batch_size: int, output: IO[bytes]
) -> None:
    """Write the vectors (N, E) of N texts, in their order, as numpy loads them. Raises UserError if
    the model has none."""
    import numpy as np

    rows: list[Any] = []
    for _, predictions in _answers(predictor, examples, batch_size):
        vectors = [prediction.get("vector") for prediction in predictions]
        if None in vectors:
            raise UserError(
                f"--to takes a file in {_ARRAY} for models that answer with vectors, found answers "
                f"of {', '.join(predictions[0])}; give a name without {_ARRAY}"
            )
        rows.append(np.array(vectors, dtype=np.float32))
    np.save(output, np.concatenate(rows) if rows else np.zeros((0, 0), np.float32))


def _answers(
    predictor: Model, examples: Iterable[Example], batch_size: int
) -> Iterator[tuple[list[Example], list[dict[str, Any]]]]:
    iterator = iter(examples)
    while batch := list(islice(iterator, batch_size)):
        yield batch, predictor(batch)


def _detect_format(source: str) -> Format:
    from rungwise.tasks.data.cutting import SUFFIXES

    suffix = Path(source).suffix.lower()
    if source != "-" and suffix in SUFFIXES:
        return SUFFIXES[suffix]
    raise UserError(
        f"{'standard input' if source == '-' else source}: cannot tell the format; give --format "
        "text, tsv, csv or jsonl"
        + ("" if source == "-" else f" (known suffixes: {', '.join(SUFFIXES)})")
    )


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
def _open_output(to: str, binary: bool = False) -> Iterator[IO[Any]]:
    """Open standard output, or a file that gets its name only once it is complete."""
    if to == "-":
        yield sys.stdout
        return
    if os.path.exists(to):
        raise UserError(f"--to {to}: the file already exists; give another name")
    part = f"{to}.part"
    try:
        with open(part, "wb" if binary else "w", encoding=None if binary else "utf-8") as file:
            yield file
    except OSError as error:
        raise UserError(f"cannot write {part}: {error.strerror}") from error
    os.replace(part, to)
