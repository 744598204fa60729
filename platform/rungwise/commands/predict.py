"""`rungwise predict|try|inspect`: answers of a model to a file or to a person, and its instances.

Predictions are written batch by batch, so the input may be an endless pipe.
"""

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

from rungwise.commands.parser import Commands, add_served_model, add_verb, positive_integer
from rungwise.core.configuration.secrecy import redact
from rungwise.core.errors import DataError, UserError
from rungwise.core.wording import format_count

if TYPE_CHECKING:
    from rungwise.models.trained.generation import Sampling
    from rungwise.tasks.data.cutting import Format
    from rungwise.tasks.kinds.examples import Example

    Answer = Callable[[Sequence[Example]], list[dict[str, Any]]]


def add(commands: Commands) -> None:
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


def _add_sampling(parser: argparse.ArgumentParser, length_help: str, length: int) -> None:
    parser.add_argument("--length", type=int, default=length, metavar="N", help=length_help)
    help_text = "of what a model writes: 0 takes the likeliest token, 1 draws as the model says "
    help_text += "(default: 0.8)"
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T", help=help_text)
    help_text = "draw among the K likeliest tokens (default: all)"
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help=help_text)
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default: 0)")


def _read_sampling(options: argparse.Namespace) -> Sampling:
    from rungwise.models.trained.generation import Sampling

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
