"""`rungwise tasks PATH`: inspect labelled data, print the recipe block that reads it."""

from __future__ import annotations

import argparse
import unicodedata
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rungwise.commands.arguments import Commands, add_verb
from rungwise.commands.init import derive_name, flow
from rungwise.core.console import plain_console
from rungwise.core.wording import format_count, list_first

if TYPE_CHECKING:
    from rungwise.tasks.formats.guess import Guess

_EXAMPLES, _CHARACTERS, _MOST_LABELS = 3, 300, 12


def add(commands: Commands) -> None:
    parser = add_verb(
        commands, tasks, "inspect labelled data, print the recipe block that reads it"
    )
    parser.add_argument(
        "path",
        metavar="PATH",
        help="a file, folder or glob, local, s3:// or hf://, also in an archive",
    )


def tasks(options: argparse.Namespace) -> None:
    """Print the block, what it reads, and three examples. Raises DataError if no format fits."""
    from rungwise.tasks.formats.guess import guess_format

    plain_console().print(describe_data(options.path, guess_format(options.path)))


def describe_data(path: str, guess: Guess) -> str:
    """The block as YAML of a recipe, then as comments what it reads: notes, labels, examples."""
    from rungwise.tasks.formats.base import WORDS_DROPPED

    examples, labels = guess.examples, guess.labels
    shares = [f"{label} {n / labels.total():.0%}" for label, n in labels.most_common()]
    dropped = ""
    if guess.damaged:
        words = format_count(guess.counts[WORDS_DROPPED], "word")
        dropped = f", skipped {format_count(guess.damaged, 'damaged one')} of {words}"
    block = guess.block(validation=0.1, test=0.1)
    lines = [
        "# In a recipe; the keys are in docs/reference/tasks.md.",
        "tasks:",
        f"  {flow(derive_name(path))}:",
        "    data:",
        *(f"      {key}: {flow(value)}" for key, value in block.items()),
        "",
        f"# Read {format_count(len(examples), 'example')} to train on{dropped}."
        + (f" Labels: {list_first(shares, _MOST_LABELS)}." if labels else ""),
        *(f"# {_clip(note)}" for note in guess.notes),
    ]
    step = max(1, len(examples) // _EXAMPLES)  # from all over, since a file may be sorted
    samples = examples[::step][:_EXAMPLES]
    rows = (line for each in samples for line in _describe_example(asdict(each)))
    return "\n".join([*lines, *(f"# {line}".rstrip() for line in rows)])


def _escape(character: str) -> str:
    # YAML has no control characters, not even in comments.
    if unicodedata.category(character) in ("Cc", "Cs"):
        return character.encode("unicode_escape").decode()
    return character


def _clip(value: Any) -> str:
    if isinstance(value, tuple | list):
        each = [each["text"] if isinstance(each, dict) else each for each in value]
        value = " | ".join(each) or "none"
    text = "".join(map(_escape, " ".join(str(value).split())))
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."


def _describe_example(fields: dict[str, Any]) -> list[str]:
    if fields.get("tags") is not None:
        pairs = zip(fields.pop("words"), fields.pop("tags"), strict=True)
        fields["words"] = [f"{word}/{tag}" if tag != "O" else word for word, tag in pairs]
    if "options" in fields:
        fields["target"] = fields["options"][fields["target"]]
    place = fields.pop("where")
    values = [f"  {name}: {_clip(value)}" for name, value in fields.items() if value is not None]
    return ["", place, *values]
