"""Build one shard from its specification: read, tokenise, build, check, write, leave a marker.

A shard is the unit of work. Its bytes depend on its documents, the config and the seed alone,
whoever builds it and whatever happened before. The marker is its row of the manifest, written after
the shard, so that a killed job continues where it was.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rungwise.core.errors import DataError
from rungwise.core.storage import Folder
from rungwise.instances import shards
from rungwise.instances.contract import Facts
from rungwise.instances.kinds import KINDS, AnyInstancesConfig
from rungwise.instances.masked import MaskedConfig
from rungwise.instances.tokenised import UnitsOf, sections
from rungwise.tokenizer import EncoderChoice, SpecialIds, cached_encoder, load

MARKERS = "markers"


@dataclass(frozen=True)
class ShardSpec:
    """The specification of a shard: a corpus file, and the number of the pass over it."""

    file: str
    split: str
    text_bytes: int
    dupe: int = 0
    histogram: bool = False  # count its tokens by id

    @property
    def name(self) -> str:
        """The name of the shard file."""
        stem = self.file.removesuffix(".parquet")
        return f"{stem}-{self.dupe:02d}.arrow" if self.dupe else f"{stem}.arrow"

    @property
    def stream(self) -> int:
        """The key that separates its random numbers from those of other shards."""
        return shards.document_hash(f"{self.file}#{self.dupe}" if self.dupe else self.file)


@dataclass(frozen=True)
class ShardTask:
    """Builds the shards of an artifact; it holds everything that they share."""

    config: AnyInstancesConfig
    corpus: Folder
    tokenizer: Folder
    output: Folder
    vocab_size: int
    special: SpecialIds
    encoder: EncoderChoice = field(default_factory=EncoderChoice)

    def build_once(self, spec: ShardSpec) -> dict[str, Any]:
        """The row of a shard, which is built unless an earlier attempt finished it."""
        marker = marker_of(spec)
        if self.output.exists(marker):
            return json.loads(self.output.read_bytes(marker))
        return self.build(spec)

    def build(self, spec: ShardSpec) -> dict[str, Any]:
        """Build one shard and return its row of the manifest, plain data.

        Raises DataError naming the shard if the contract is broken.
        """
        config, kind = self.config, KINDS[self.config.kind]
        encoder = cached_encoder(self.tokenizer, self.encoder)
        key = np.array([config.seed, spec.stream], dtype=np.uint64)
        rng = np.random.Generator(np.random.Philox(key=key))
        parts: list[shards.Shard] = []
        totals: Counter[str] = Counter()
        histogram = np.zeros(self.vocab_size if spec.histogram else 0, dtype=np.int64)
        for text in sections(
            self.corpus, spec.file, spec.text_bytes, encoder, kind.unit, self._units()
        ):
            try:
                built = kind.build(text, config, self.special, rng)
            except DataError as error:
                raise DataError(f"{spec.file}: {error}") from error
            parts.append(built.shard)
            totals.update(built.counts)
            totals.update(documents=len(text.documents), text_tokens=len(text.ids))
            if spec.histogram:
                histogram += np.bincount(text.ids, minlength=self.vocab_size)
        shard = shards.joined(parts)
        facts = Facts(spec.name, self.vocab_size, self.special, config.seed, len(parts))
        counts = kind.check(shard, facts, config)
        with self.output.staged(spec.name) as path:
            shards.write(shard, path)
            written = path.stat().st_size
            sha256 = shards.digest(path)
        row = {
            "file": spec.name,
            "split": spec.split,
            "sha256": sha256,
            "bytes": written,
            **totals,
            **counts,
        }
        if spec.histogram:
            row["histogram"] = histogram.tolist()
        self.output.write_bytes(marker_of(spec), json.dumps(row).encode())
        return row

    def _units(self) -> UnitsOf | None:
        """How to find mask units, or None if each token is one."""
        config = self.config
        if not isinstance(config, MaskedConfig) or config.masking.unit == "token":
            return None
        return UnitsOf(load(self.tokenizer), config.mask_units, config.masking.unit == "phrase")


def marker_of(spec: ShardSpec) -> str:
    """The name of the marker of a finished shard."""
    return f"{MARKERS}/{spec.name}.json"
