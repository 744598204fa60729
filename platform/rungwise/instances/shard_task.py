"""Build one shard from its order: read tokens, build, check, write.

A shard is the unit of work. Its bytes depend only on its documents, the config and the seed.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rungwise.core.errors import DataError
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.core.tokens import SpecialIds, TokenisedText
from rungwise.instances import shards
from rungwise.instances.contract import Facts
from rungwise.instances.kind import Kind
from rungwise.tokens.text import TokensFile, document_hash, join_texts

_SECTION_TOKENS = 8 << 20
_LENT_DOCUMENTS, _LENT_TOKENS = 64, 1 << 18  # at most, from each lender


@dataclass(frozen=True)
class ShardOrder:
    """The order for a shard: a file of tokens, and the number of the pass over it. `lenders` are
    other files of the split, from whose documents pairs may draw B."""

    read: str
    split: str
    source: str
    text_bytes: int
    dupe: int = 0
    lenders: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        stem = self.read.removesuffix(".arrow")
        return f"{stem}-{self.dupe:02d}.arrow" if self.dupe else self.read

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
                raise DataError(f"{order.read}: {error}") from error
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
        tokens = TokensFile(self.tokens.local(order.read))
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
