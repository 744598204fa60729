"""Print instances for people: `rungwise inspect INSTANCES [--index N]`.

Colours show the model's task: which tokens are masked, replaced or kept, and where segments and
documents meet. A note under each instance says the same without colours.
"""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.text import Text
from tokenizers import Tokenizer, decoders

from rungwise import tokenizer as tokenizers
from rungwise.core.errors import UserError
from rungwise.core.plural import counted
from rungwise.core.randomness import bits
from rungwise.core.stages import artifact as artifacts
from rungwise.core.stages.artifact import Artifact
from rungwise.core.storage.folder import Folder
from rungwise.instances import causal
from rungwise.instances.kinds import config_of
from rungwise.instances.masked_batch import MaskedBatch, MaskedConfig
from rungwise.instances.reader import InstanceReader, MaskedReader
from rungwise.instances.summary import InstancesSummary

_SHOWN = 3
_DRAW = 21  # random stream
_STYLES = {
    "special": "dim",
    "masked": "bold red",
    "random": "bold magenta",
    "kept": "bold green",
    "start": "bold yellow",
    "a": "",
    "b": "cyan",
}


def find(path: str) -> Artifact:
    """Return the instances artifact in the folder `path`, or the newest one directly below it.
    Raises UserError if there is none."""
    folder = Folder.at(path)
    instances = artifacts.load(folder)
    if instances is None:
        below = (artifacts.load(folder / name) for name in folder.subfolders())
        done = [artifact for artifact in below if artifact is not None]
        if not done:
            raise UserError(
                f"{path}: no artifact here; expected the folder of finished instances, such as "
                "artifacts/instances/NAME-FINGERPRINT, or artifacts/instances for the newest"
            )
        instances = max(done, key=lambda artifact: artifact.record["finished"])
    if instances.stage != "instances":
        raise UserError(
            f"{instances.folder.uri} holds a {instances.stage} artifact, expected instances"
        )
    return instances


def inspect(
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
    tokenizer = _tokenizer_of(instances)
    chosen = (
        np.array([index])
        if index is not None
        else (bits(seed, _DRAW, np.arange(_SHOWN)) % np.uint64(len(reader))).astype(np.int64)
    )
    config = config_of(instances)
    console.print(f"{instances.folder.uri}", style="dim", highlight=False, soft_wrap=True)
    console.print(
        f"{config.kind}, {split}: {counted(len(reader), 'instance')}, epoch {epoch}, seed {seed}",
        highlight=False,
    )
    for instance in chosen.tolist():
        console.print()
        console.print(f"instance {instance}", style="bold", highlight=False)
        for text in _shown(instances, reader, tokenizer, split, instance, epoch, seed):
            console.print(text, soft_wrap=False)


def _tokenizer_of(instances: Artifact) -> Tokenizer:
    tokens = artifacts.find_input(instances, "tokens")
    folder = artifacts.find_input(tokens, "tokenizer").folder
    if not folder.exists(tokenizers.FILE):
        raise UserError(
            f"the tokenizer of these instances is not at {folder.uri}; it is needed to print text"
        )
    return tokenizers.load_tokenizer(folder)


def _shown(
    instances: Artifact,
    reader: InstanceReader,
    tokenizer: Tokenizer,
    split: str,
    instance: int,
    epoch: int,
    seed: int,
) -> list[Text]:
    at, epochs = np.array([instance]), np.array([epoch])
    config = reader.config
    if isinstance(config, MaskedConfig):
        batch = MaskedReader(instances, split).batch(at, epochs, seed)
        return _masked(batch, reader, tokenizer, config.kind)
    blocks = causal.batch(reader.rows(at), reader.special.require("end")[0])
    return _causal(blocks, tokenizer)


def _masked(
    batch: MaskedBatch, reader: InstanceReader, tokenizer: Tokenizer, kind: str
) -> list[Text]:
    masked = batch.masked
    targets = {
        int(position): int(target)
        for position, target, weight in zip(
            masked.positions[0], masked.targets[0], masked.weights[0], strict=True
        )
        if weight
    }
    text = Text()
    (mask_id,) = reader.special.require("mask")
    fates = dict.fromkeys(("masked", "random", "kept"), 0)
    for position in range(int(batch.lengths[0])):
        now = int(masked.ids[0, position])
        style = "b" if batch.segments[0, position] else "a"
        if position in targets:
            was = targets[position]
            fate = "masked" if now == mask_id else "kept" if now == was else "random"
            fates[fate] += 1
            text.append(_spelled(tokenizer, now), style=_STYLES[fate])
            if fate != "kept":
                text.append(f"({_spelled(tokenizer, was)})", style="italic " + _STYLES[fate])
            text.append(" ")
            continue
        if now in reader.special.ids:
            style = "special"
        text.append(_spelled(tokenizer, now) + " ", style=_STYLES[style])
    labels = {
        "masked_pairs": ("B is from another document", "B follows A in its document"),
        "sentence_order": ("A and B are turned round", "A and B are in order"),
    }
    note = [f"{int(batch.lengths[0])} tokens", f"{len(targets)} to predict"]
    note.append(", ".join(f"{count} {fate}" for fate, count in fates.items()))
    if kind in labels:
        note.insert(0, labels[kind][int(batch.label[0])])
    return [text, Text("; ".join(note), style="dim")]


def _causal(batch: causal.CausalBlocks, tokenizer: Tokenizer) -> list[Text]:
    text = Text()
    length = int(batch.weights[0].sum())
    for position in range(length):
        style = ("a", "b")[int(batch.document[0, position]) % 2]
        opens = position > 0 and batch.document[0, position] != batch.document[0, position - 1]
        text.append(
            ("\n" if opens else "") + _spelled(tokenizer, int(batch.ids[0, position])) + " ",
            style=_STYLES["start" if opens else style],
        )
    documents = len(np.unique(batch.document[0, :length]))
    last = _spelled(tokenizer, int(batch.targets[0, length - 1]))
    note = f"{length} tokens to predict, the last is {last}; parts of {documents} documents"
    return [text, Text(note, style="dim")]


def _spelled(tokenizer: Tokenizer, token: int) -> str:
    """A token as the vocabulary spells it, with byte-level letters decoded."""
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return tokenizer.decode([token], skip_special_tokens=False)
    return tokenizer.id_to_token(token) or f"<{token}>"
