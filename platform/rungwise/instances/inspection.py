"""Print instances for people: `rungwise inspect INSTANCES [--index N]`. Colours show the model's
task; a note under each instance says the same without colours."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.text import Text
from tokenizers import Tokenizer, decoders

from rungwise import tokenizer as tokenizers
from rungwise.core.errors import UserError
from rungwise.core.randomness import bits
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.core.wording import format_count
from rungwise.instances.kind import ColouredPiece
from rungwise.instances.reader import InstanceReader
from rungwise.instances.summary import InstancesSummary

_SHOWN = 3
_DRAW = 21  # random stream
_STYLES = {
    "special": "dim",
    "masked": "bold red",
    "random": "bold magenta",
    "kept": "bold green",
    "opens": "bold yellow",
}
_SEGMENT_STYLES = ("", "cyan")


def find_instances(path: str) -> Artifact:
    """Return the instances artifact in the folder `path`, or the newest one directly below it.
    Raises UserError if there is none."""
    folder = Folder.at(path)
    instances = artifacts.load(folder)
    if instances is None:
        below = (artifacts.load(folder / name) for name in folder.subfolders())
        finished = [artifact for artifact in below if artifact is not None]
        if not finished:
            raise UserError(
                f"{path}: no artifact here; expected the folder of finished instances, such as "
                "artifacts/instances/NAME-FINGERPRINT, or artifacts/instances for the newest"
            )
        instances = max(finished, key=lambda artifact: artifact.record["finished"])
    if instances.stage != "instances":
        raise UserError(
            f"{instances.folder.uri} holds a {instances.stage} artifact, expected instances"
        )
    return instances


def show_instances(
    instances: Artifact, split: str, index: int | None, epoch: int, seed: int, console: Console
) -> None:
    """Print one instance, or a few chosen by `seed`, as they are read in `epoch`. Raises UserError
    if the split or index does not exist, or the tokenizer is missing."""
    reader = InstanceReader(instances, split)
    if len(reader) == 0:
        splits = ", ".join(
            name for name, count in InstancesSummary.of(instances).instances if count
        )
        raise UserError(f"--split {split}: no instances; there are instances of {splits}")
    if index is not None and not 0 <= index < len(reader):
        raise UserError(f"--index {index}: expected 0 to {len(reader) - 1} in {split}")
    tokenizer = _load_tokenizer(instances)
    sample = (
        np.array([index])
        if index is not None
        else (bits(seed, _DRAW, np.arange(_SHOWN)) % np.uint64(len(reader))).astype(np.int64)
    )
    console.print(f"{instances.folder.uri}", style="dim", highlight=False, soft_wrap=True)
    console.print(
        f"{reader.config.kind}, {split}: {format_count(len(reader), 'instance')}, epoch {epoch}, "
        f"seed {seed}",
        highlight=False,
    )
    spell = functools.partial(_spell, tokenizer)
    batch = reader.batch(sample, np.full_like(sample, epoch), seed)
    for row, instance in enumerate(sample.tolist()):
        console.print()
        console.print(f"instance {instance}", style="bold", highlight=False)
        row_shown = reader.config.show(batch, row, reader.vocabulary, spell)
        console.print(_colour(row_shown.pieces, spell), soft_wrap=False)
        console.print(Text(row_shown.note, style="dim"), soft_wrap=False)


def _load_tokenizer(instances: Artifact) -> Tokenizer:
    tokens = artifacts.find_input(instances, "tokens")
    folder = artifacts.find_input(tokens, "tokenizer").folder
    if not folder.exists(tokenizers.FILE):
        raise UserError(
            f"the tokenizer of these instances is not at {folder.uri}; it is needed to print text"
        )
    return tokenizers.load_tokenizer(folder)


def _colour(pieces: Sequence[ColouredPiece], spell: Callable[[int], str]) -> Text:
    text = Text()
    for piece in pieces:
        style = _STYLES.get(piece.kind, _SEGMENT_STYLES[piece.segment % 2])
        text.append(("\n" if piece.kind == "opens" else "") + spell(piece.token), style=style)
        if piece.original not in (None, piece.token):
            text.append(f"({spell(piece.original)})", style=f"italic {style}")
        text.append(" ", style=style if piece.original is None else "")
    return text


def _spell(tokenizer: Tokenizer, token: int) -> str:
    """A token as the vocabulary spells it, with byte-level letters decoded."""
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return tokenizer.decode([token], skip_special_tokens=False)
    return tokenizer.id_to_token(token) or f"<{token}>"
