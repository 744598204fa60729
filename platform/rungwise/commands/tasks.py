"""`rungwise tasks PATH`: inspect labelled data, print the recipe block that reads it."""

from __future__ import annotations

import argparse
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rungwise.commands.arguments import Commands, add_verb
from rungwise.core.errors import list_first
from rungwise.core.exit_codes import plain_console

if TYPE_CHECKING:
    from rungwise.tasks.formats.guess import Guess

_EXAMPLES, _CHARACTERS, _MOST_LABELS = 3, 300, 12
_LONGEST_NAME = 40
_PARTS = {"train": "to train on", "validation": "to validate on", "test": "to test on"}


def add(commands: Commands) -> None:
    help_text = "inspect labelled data, print the recipe block that reads it"
    parser = add_verb(commands, tasks, help_text)
    help_text = "a file, folder or glob, local, s3:// or hf://, also in an archive"
    parser.add_argument("path", metavar="PATH", help=help_text)


def tasks(options: argparse.Namespace) -> None:
    """Print the block, what it reads, and three examples. Raises DataError if no format fits."""
    from rungwise.tasks.formats.guess import guess_format

    guess = guess_format(options.path)
    plain_console().print(describe_data(options.path, guess))


def describe_data(path: str, guess: Guess) -> str:
    """The block as YAML of a recipe, then as comments what it reads."""
    lines = [
        "# In a recipe; the keys are in docs/reference/tasks.md.",
        "tasks:",
        f"  {flow(derive_name(path))}:",
        "    data:",
        *(f"      {key}: {flow(value)}" for key, value in guess.block.items()),
        "",
        *(f"# {line}".rstrip() for line in describe_examples(guess, _EXAMPLES)),
    ]
    return "\n".join(lines)


def describe_examples(guess: Guess, most: int) -> Iterator[str]:
    """Yield what a block reads: the sizes of its parts, labels, notes, and so many examples."""
    parts = [f"{count:,} {_PARTS[split]}" for split, count in guess.sizes.items()]
    fractions = {split: guess.block.get(f"{split}_fraction") for split in _PARTS}
    parts += [f"{part:.0%} of them {_PARTS[split]}" for split, part in fractions.items() if part]
    dropped = f", skipped {guess.damaged:,} that are damaged" if guess.damaged else ""
    yield f"examples: {', '.join(parts)}{dropped}; {guess.form.get('encoding', 'utf-8')}"
    if labels := guess.labels:
        total = labels.total()
        shares = [f"{_clip(name)}: {n:,} ({n / total:.0%})" for name, n in labels.most_common()]
        yield f"labels: {list_first(shares, _MOST_LABELS)}"
    yield from map(_clip, guess.notes)
    step = max(1, len(guess.examples) // most)  # from all over, since a file may be sorted
    for example in guess.examples[::step][:most]:
        fields = asdict(example)
        yield from ("", fields.pop("where"))
        yield from (f"  {name}: {_clip(each)}" for name, each in fields.items() if each is not None)


def derive_name(path: str) -> str:
    """A name that recipes and MLflow accept, from that of a file; Latin letters lose accents."""
    stem = unicodedata.normalize("NFKD", Path(path.rstrip("/")).name.partition(".")[0])
    stem = unicodedata.normalize("NFKC", re.sub("([A-Za-z])[\u0300-\u036f]+", r"\1", stem))
    return re.sub(r"[^\w-]+", "-", stem).strip("-_")[:_LONGEST_NAME] or "mine"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def flow(value: Any) -> str:
    """Format a value in YAML's flow style, on one line."""
    options: dict[str, Any] = {"width": float("inf"), "allow_unicode": True, "sort_keys": False}
    # A list of one: alone, a scalar would be a document with an end mark.
    return yaml.dump([value], Dumper=_Dumper, default_flow_style=True, **options)[1:-2]


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
