"""Instances stage on Ray Data: one shard for each file of tokens.

A shard's bytes depend only on its documents, the config and the seed. The driver holds a manifest
row per shard; a killed job leaves its shards and their markers for the next attempt.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rungwise.cluster.tasks import FileRow, build_files
from rungwise.core.errors import DataError, format_count
from rungwise.core.randomness import bits
from rungwise.core.stages.artifact import Artifact, PerSplit, read_note, write_note
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances import shards
from rungwise.instances.kind import Facts, Kind
from rungwise.instances.summary import InstancesConfig, InstancesSummary, ShardFile
from rungwise.tokenizer.token_stage import TokensRow, TokensSummary
from rungwise.tokenizer.token_text import TokensFile, document_hash, join_texts

_SECTION_TOKENS = 8 << 20
_LENT_DOCUMENTS, _LENT_TOKENS = 64, 1 << 18  # at most, from each lender
_MARKERS = "markers"
_SPLITS = ("train", "validation")
_LENDERS = 31  # random stream
_MOST_LENDERS = 8


@dataclass(frozen=True)
class ShardOrder:
    """The order for a shard of a file of tokens. `lenders` are other files of the split, from whose
    documents pairs may draw B."""

    file: str
    split: str
    source: str
    text_bytes: int
    lenders: tuple[str, ...] = ()

    @property
    def stream(self) -> int:
        """The key that separates its random numbers from those of other shards."""
        return document_hash(self.file)


@dataclass(frozen=True)
class ShardTask:
    """Builds the shards of an artifact; holds what they share."""

    config: Kind
    tokens: Folder
    output: Folder
    vocab_size: int
    special: SpecialIds
    labels: tuple[str, ...] = ()

    def __call__(self, order: ShardOrder) -> dict[str, Any]:
        """Build one shard and return its manifest row as plain data. Raises DataError naming the
        shard if it breaks the contract."""
        config = self.config
        key = np.array([config.seed, order.stream], dtype=np.uint64)
        rng = np.random.Generator(np.random.Philox(key=key))
        parts: list[shards.Shard] = []
        totals: Counter[str] = Counter()
        for text, planned in self._sections(order, rng):
            try:
                piece = config.build(text, self.special, rng, planned)
            except DataError as error:
                raise DataError(f"{order.file}: {error}") from error
            parts.append(piece.shard)
            totals.update(piece.counts)
            totals.update(documents=planned)
        shard = shards.join_shards(parts)
        facts = Facts(
            order.file, self.vocab_size, self.special, config.seed, len(parts), len(self.labels)
        )
        counts = config.check(shard, facts)
        with self.output.staged(order.file) as path:
            shards.write_shard(shard, path)
            size = path.stat().st_size
            sha256 = file_digest(path)
        return {
            "file": order.file,
            "split": order.split,
            "source": order.source,
            "sha256": sha256,
            "bytes": size,
            **totals,
            **counts,
        }

    def _sections(
        self, order: ShardOrder, rng: np.random.Generator
    ) -> Iterator[tuple[TokenisedText, int]]:
        """Yield sections of the shard's documents, each followed by the lent ones, and how many
        are the shard's own. Sections of some millions of tokens bound the memory of a task; each
        has at least two documents if the shard has."""
        units = self.config.tokens.units
        lent = [self._lent(name, units, rng) for name in order.lenders]
        tokens = TokensFile(self.tokens.local(order.file))
        count = max(1, min(round(tokens.num_tokens / _SECTION_TOKENS), len(tokens) // 2))
        ends = [len(tokens) * (number + 1) // count for number in range(count)]
        for first, end in zip([0, *ends[:-1]], ends, strict=True):
            yield join_texts([tokens.text(first, end, units), *lent]), end - first

    def _lent(self, name: str, units: bool, rng: np.random.Generator) -> TokenisedText:
        """Some consecutive documents of a file."""
        tokens = TokensFile(self.tokens.local(name))
        fitting = _LENT_TOKENS * len(tokens) // tokens.num_tokens
        count = min(len(tokens), max(1, min(_LENT_DOCUMENTS, fitting)))
        first = int(rng.integers(0, len(tokens) - count + 1))
        return tokens.text(first, first + count, units)


def build_instances(
    config: InstancesConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> InstancesSummary:
    """Build every shard of both splits. Raises DataError if a shard breaks the contract, if a split
    has only one document for NSP, or if the tokenizer lacks a special token that the kind needs."""
    folder, tokens = inputs["tokens"].folder, TokensSummary.of(inputs["tokens"])
    config.check_documents(tokens.documents)
    task = ShardTask(config, folder, output, tokens.vocab_size, tokens.special, tokens.labels)

    def build(order: ShardOrder) -> FileRow:
        marker = f"{_MARKERS}/{order.file}.json"
        if (row := read_note(output, marker)) is None:
            row = task(order)
            write_note(output, marker, row, {order.file: row["sha256"]})
        return row

    def report_row(row: FileRow, done: int) -> None:
        shares = config.statistics(row)
        context.report.metrics(
            {f"contract/{name}": float(value) for name, value in shares.items()}, step=done
        )

    rows = build_files(list_orders(config, tokens.files), build, context.report, report_row)
    output.remove(_MARKERS)
    return _summary(config, tokens, rows)


def list_orders(config: Kind, files: Sequence[TokensRow]) -> list[ShardOrder]:
    """An order for each file with text."""
    rows = [row for row in files if row.documents]
    orders = [ShardOrder(row.file, row.split, row.source, row.text_bytes) for row in rows]
    if not config.needs_other_documents:
        return orders
    files_of = {split: [row.file for row in rows if row.split == split] for split in _SPLITS}
    return [
        dataclasses.replace(order, lenders=_lenders(order, files_of[order.split], config.seed))
        for order in orders
    ]


def _lenders(order: ShardOrder, files: Sequence[str], seed: int) -> tuple[str, ...]:
    """Other files of the split, drawn for this shard: a random B should be from anywhere in the
    corpus, and one file holds neighbouring documents of a source."""
    draws = bits(seed, _LENDERS, order.stream, np.arange(_MOST_LENDERS)) % np.uint64(len(files))
    names = {files[int(draw)] for draw in draws} - {order.file}
    return tuple(sorted(names or set(files[:2]) - {order.file}))


def _summary(config: Kind, tokens: TokensSummary, rows: list[FileRow]) -> InstancesSummary:
    totals = _totals(rows)
    statistics = config.statistics(totals)
    headline = (
        f"{format_count(totals['instances'], 'instance')}  {totals['tokens'] / 1e6:.1f} M tokens"
    )
    if more := config.headline(totals, statistics):
        headline += f"  {more}"
    files = tuple(ShardFile(**{key: row[key] for key in ShardFile.model_fields}) for row in rows)
    return InstancesSummary(
        kind=config.kind,
        sequence_length=config.length,
        files=files,
        vocab_size=tokens.vocab_size,
        special=tokens.special,
        instances=PerSplit.sum_rows(files, "instances"),
        tokens=totals["tokens"],
        text_bytes=tokens.text_bytes,
        statistics=statistics,
        unigram_loss=tokens.unigram_loss,
        labels=tokens.labels,
        headline=headline,
        sha256={row.file: row.sha256 for row in files},
    )


def _totals(rows: list[FileRow]) -> dict[str, Any]:
    """Counts over all shards: sums, but maxima for `most_*`."""
    totals: dict[str, Any] = {}
    for key, value in rows[0].items():
        if key.startswith("most_"):
            totals[key] = max(row[key] for row in rows)
        elif isinstance(value, int):
            totals[key] = sum(row[key] for row in rows)
    return totals
