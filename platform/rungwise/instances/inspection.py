"""Print instances for people: `rungwise inspect INSTANCES [--index N]`. Colours show the model's
task; a note under each instance says the same without colours."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text
from tokenizers import Tokenizer, decoders

from rungwise import tokenizer as tokenizers
from rungwise.core.errors import UserError, format_count
from rungwise.core.randomness import bits
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.instances.batch import CausalAndMaskedBatch, CausalBatch, MaskedBatch
from rungwise.instances.masking import Vocabulary
from rungwise.instances.reader import InstanceReader
from rungwise.instances.shards import PaddedRows
from rungwise.instances.summary import InstancesSummary

_SHOWN = 3
_DRAW = 21  # random stream
_MASKED, _KEPT, _OTHER, _SPECIAL = "bold red", "bold green", "bold magenta", "dim"


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
    rows, batch = reader.rows(sample), reader.batch(sample, np.full_like(sample, epoch), seed)
    for row, instance in enumerate(sample.tolist()):
        console.print()
        console.print(f"instance {instance}", style="bold", highlight=False)
        console.print(_colour(rows, batch, row, reader.vocabulary, tokenizer), soft_wrap=False)
        note = "; ".join(describe_row(rows, row, reader.vocabulary))
        console.print(Text(note, style="dim"), soft_wrap=False)


def _load_tokenizer(instances: Artifact) -> Tokenizer:
    tokens = artifacts.find_input(instances, "tokens")
    folder = artifacts.find_input(tokens, "tokenizer").folder
    if not folder.exists(tokenizers.FILE):
        raise UserError(
            f"the tokenizer of these instances is not at {folder.uri}; it is needed to print text"
        )
    return tokenizers.load_tokenizer(folder)


def _colour(
    rows: PaddedRows, batch: Any, row: int, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> Text:
    """Write the tokens of a row as a model reads them, each with what is predicted there unless
    that is the next token."""
    if isinstance(batch, CausalAndMaskedBatch):
        batch = batch.causal if batch.is_causal[row] else batch.masked
    ids, length = rows.ids[row], int(rows.lengths[row])
    is_second = np.arange(len(ids)) >= rows.columns.get("first_length", rows.lengths)[row]
    predicted: dict[int, int] = {}
    if isinstance(batch, MaskedBatch):
        assert batch.lengths is not None
        ids, length, is_second = batch.ids[row], int(batch.lengths[row]), batch.segments[row] == 1
        real = batch.masked_weights[row] > 0
        places, targets = batch.masked_positions[row][real], batch.masked_ids[row][real]
        predicted = dict(zip(places.tolist(), targets.tolist(), strict=True))
    elif isinstance(batch, CausalBatch):
        targets = batch.targets[row]
        following = np.roll(ids, -1)[: len(targets)]
        differs = (targets != following) & (batch.weights[row] > 0)
        predicted = {place: int(targets[place]) for place in np.flatnonzero(differs).tolist()}
    text = Text()
    tokens: list[int] = ids[:length].tolist()
    for place, token in enumerate(tokens):
        style = "cyan" if is_second[place] else ""
        style = _SPECIAL if token in vocabulary.special.ids else style
        other = predicted.get(place, token)
        if other != token:
            style = _MASKED if token == vocabulary.special.mask else _OTHER
        elif place in predicted:
            style = _KEPT
        text.append(_spell(tokenizer, token), style=style)
        if other != token:
            text.append(f"({_spell(tokenizer, other)})", style=f"italic {style}")
        text.append(" ")
    return text


def describe_row(rows: PaddedRows, row: int, vocabulary: Vocabulary) -> Iterator[str]:
    """Yield the number of tokens that are stored of a row, and the other columns of its shard."""
    yield format_count(int(rows.lengths[row]), "token")
    for name, values in rows.columns.items():
        if name == "label":
            yield f"label: {vocabulary.labels[int(values[row])]}"
        elif not name.startswith("document"):  # a hash
            yield f"{name}: {values[row]}"


def _spell(tokenizer: Tokenizer, token: int) -> str:
    """A token as the vocabulary spells it, with byte-level letters decoded."""
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return tokenizer.decode([token], skip_special_tokens=False)
    return tokenizer.id_to_token(token) or f"<{token}>"
