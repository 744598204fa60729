"""Packed causal blocks, the instances of GPT (Radford et al. 2018, 2019).

The documents of a shard become one stream, `[END] d1 [END] d2 ... [END] dn [END]`, cut into blocks
of T + 1 tokens that overlap by one: inputs are the first T of a block, targets the last T, and
every token of the text is predicted exactly once. The end symbol opens a document and closes the
one before, so a document's first token is predicted from the symbol, the symbol from the last
token, and nothing from another document. Positions and boundaries follow from the symbols and are
not stored; with them attention need not cross documents.

B batch, T sequence
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rungwise.core.configuration.config import Config
from rungwise.instances.contract import Facts, check_rows, must
from rungwise.instances.rows import PaddedRows
from rungwise.instances.shards import Shard
from rungwise.instances.text import Built
from rungwise.tokenizer import SpecialIds
from rungwise.tokens.text import TokenisedText


class CausalConfig(Config):
    """Blocks of text in which each token is predicted from those before."""

    kind: Literal["causal"] = "causal"
    sequence_length: int = Field(default=1024, ge=2, le=1 << 20)  # tokens predicted per block
    seed: int = Field(default=0, ge=0)


@dataclass(frozen=True)
class CausalBlocks:
    """Inputs and targets. `weights` is 0 in padding, which only a section's last block has.
    Position i may attend to j <= i with `document[i] == document[j]`."""

    instances: NDArray[np.int64]  # (B,)
    ids: NDArray[np.int64]  # (B, T)
    targets: NDArray[np.int64]  # (B, T)
    weights: NDArray[np.float32]  # (B, T)
    document: NDArray[np.int64]  # (B, T) counts documents within a block, from 0 or 1
    positions: NDArray[np.int64]  # (B, T) from the beginning of the document, or of the block


def build(
    text: TokenisedText,
    config: CausalConfig,
    special: SpecialIds,
    rng: np.random.Generator,
    planned: int | None = None,
) -> Built:
    """Build the blocks of the first `planned` documents, or of all. Nothing is random."""
    (end_id,) = special.require("end")
    begins = text.starts[text.first_sentence]  # documents + 1
    documents = len(begins) - 1 if planned is None else planned
    begins = begins[: documents + 1]
    tokens = int(begins[-1])
    stream = np.empty(tokens + documents + 1, dtype=text.ids.dtype)
    is_end = np.zeros(len(stream), dtype=bool)
    is_end[begins + np.arange(documents + 1)] = True
    stream[is_end] = end_id
    stream[~is_end] = text.ids[:tokens]
    block = config.sequence_length
    count = -(-(len(stream) - 1) // block)
    first = np.arange(count) * block
    lengths = np.minimum(first + block + 1, len(stream)) - first
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    # Each block but the first repeats the last token of the one before it.
    ids = np.insert(stream, first[1:], stream[first[1:]])
    counts = {"documents_joined": documents, "text_tokens": tokens}
    return Built(Shard(ids, offsets), counts)


def batch(rows: PaddedRows, end_id: int) -> CausalBlocks:
    """Split rows into inputs and targets, and derive documents and positions."""
    ids = rows.ids.astype(np.int64)
    inputs = ids[:, :-1]
    column = np.arange(inputs.shape[1])[None, :]
    opens = inputs == end_id
    begin = np.maximum.accumulate(np.where(opens, column, 0), axis=1)
    return CausalBlocks(
        rows.instances,
        inputs,
        ids[:, 1:],
        (column < rows.lengths[:, None] - 1).astype(np.float32),
        np.cumsum(opens, axis=1),
        column - begin,
    )


def check(shard: Shard, facts: Facts, config: CausalConfig) -> dict[str, Any]:
    """Check one shard and return its counts. Raises DataError if it breaks the contract."""
    (end_id,) = facts.special.require("end")
    ends = int((shard.ids == end_id).sum())
    counts = check_rows(shard, facts, config.sequence_length + 1, {end_id: ends})
    lengths = shard.lengths
    short = int((lengths != config.sequence_length + 1).sum())
    most = facts.sections
    must(facts.name, "blocks that are not full", short, "at most", most, short <= most)
    last, first = shard.ids[shard.offsets[1:-1] - 1], shard.ids[shard.offsets[1:-1]]
    broken = int((last != first).sum())
    what = "blocks that do not begin with the last token of the one before"
    must(facts.name, what, broken, "exactly", 0, broken == 0)
    framed = len(shard.ids) > 0 and shard.ids[0] == end_id and shard.ids[-1] == end_id
    must(facts.name, "stream framed by end symbols", int(framed), "exactly", 1, bool(framed))
    return {
        **counts,
        "predicted": int((lengths - 1).sum()),
        "ends": ends - len(first[first == end_id]),
    }


def statistics(totals: dict[str, Any], config: CausalConfig) -> dict[str, Any]:
    # Every token and end symbol is predicted once, except the symbol that opens a section.
    unused = totals["text_tokens"] + totals["documents_joined"] - totals["predicted"]
    return {
        "fill": totals["predicted"] / (totals["instances"] * config.sequence_length),
        "tokens_predicted": totals["predicted"],
        "tokens_a_document": totals["predicted"] / totals["documents_joined"],
        "tokens_unused": unused,
        "unused_share": unused / max(1, totals["text_tokens"] + totals["documents_joined"]),
    }
