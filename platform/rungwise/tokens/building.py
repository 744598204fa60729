"""Tokens stage: encode the corpus once, a file of ids per file of text."""

import base64
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.cluster.build_files import MARKERS, FileRow, build_files
from rungwise.core.errors import DataError
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.stages.summary import PerSplit
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.corpus.summary import CorpusFile, CorpusSummary
from rungwise.tokenizer import (
    EncoderChoice,
    TokenizerSummary,
    cached_encoder,
    choose_encoder,
    load_tokenizer,
)
from rungwise.tokenizer.encoder import sample_corpus
from rungwise.tokens import text as texts
from rungwise.tokens.config import TokensConfig
from rungwise.tokens.encoding import encode_file
from rungwise.tokens.summary import TokensRow, TokensSummary


@dataclass(frozen=True)
class FileOrder:
    """An order to encode one corpus file."""

    source: CorpusFile

    @property
    def file(self) -> str:
        return self.source.file.removesuffix(".parquet") + ".arrow"

    @property
    def text_bytes(self) -> int:
        return self.source.bytes


@dataclass(frozen=True)
class EncodeTask:
    """Encodes files of a corpus; holds what they share."""

    config: TokensConfig
    corpus: Folder
    tokenizer: Folder
    output: Folder
    encoder: EncoderChoice

    def __call__(self, order: FileOrder) -> FileRow:
        """Encode one file; return its row of the manifest."""
        source = order.source
        encoder = cached_encoder(self.tokenizer, self.encoder)
        tokenizer = _load_tokenizer(self.tokenizer)
        text = encode_file(self.corpus, source, tokenizer, encoder, self.config)
        with self.output.staged(order.file) as path:
            texts.write_tokens(text, path)
            sha256 = file_digest(path)
        counts = np.stack(np.unique(text.ids, return_counts=True)).astype("<u4")
        return {
            "file": order.file,
            "split": source.split,
            "source": source.source,
            "sha256": sha256,
            "documents": len(text.documents),
            "sentences": len(text.starts) - 1,
            "tokens": len(text.ids),
            "text_bytes": source.bytes,
            "token_counts": base64.b64encode(counts.tobytes()).decode(),
        }


TokenCounts = dict[str, NDArray[np.int64]]  # (V,) by split


@functools.lru_cache(maxsize=2)  # a worker uses one for many files
def _load_tokenizer(tokenizer: Folder) -> Tokenizer:
    return load_tokenizer(tokenizer)


def encode_corpus(
    config: TokensConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> TokensSummary:
    """Encode every file of the corpus.

    Raises DataError if spans are requested and the corpus has none, or a file is corrupt.
    """
    corpus, tokenizer = CorpusSummary.of(inputs["corpus"]), TokenizerSummary.of(inputs["tokenizer"])
    if config.spans and config.mask_units.phrases is None and not corpus.spans.total:
        raise DataError(
            "instances.masking.unit is phrase, but the corpus holds no spans and "
            "instances.mask_units.phrases names no list; name spans_field in a jsonl or parquet "
            "source, or give a list, or set instances.masking.unit=whole_word"
        )
    task = EncodeTask(
        config,
        inputs["corpus"].folder,
        inputs["tokenizer"].folder,
        output,
        _encoder(corpus, inputs, context),
    )
    orders = [FileOrder(row) for row in corpus.files if row.documents]
    counts = count_no_tokens(tokenizer.vocab_size)
    rows = build_files(orders, task, output, context.report, lambda row, _: add_counts(row, counts))
    output.remove(MARKERS)
    return summarise_files(rows, tokenizer, counts)


def _encoder(corpus: CorpusSummary, inputs: dict[str, Artifact], context: Context) -> EncoderChoice:
    sample = sample_corpus(inputs["corpus"].folder, corpus.file_names("train"))
    tokenizer = load_tokenizer(inputs["tokenizer"].folder)
    choice = choose_encoder(tokenizer, context.compute.tokenizer_backend, sample)
    if choice.notice is not None:
        context.report.note(choice.notice)
    return choice


def count_no_tokens(vocab_size: int) -> TokenCounts:
    """The counts (V,) of the tokens of each split, before any is read."""
    return {split: np.zeros(vocab_size, np.int64) for split in ("train", "validation")}


def add_counts(row: FileRow, counts: TokenCounts) -> None:
    """Move the counts of a row into the totals, since the driver keeps all rows."""
    ids, numbers = np.frombuffer(base64.b64decode(row.pop("token_counts")), "<u4").reshape(2, -1)
    counts[row["split"]][ids] += numbers


def summarise_files(
    rows: Sequence[FileRow], tokenizer: TokenizerSummary, counts: TokenCounts
) -> TokensSummary:
    """Summarise files from their rows and the counts of their tokens."""
    files = tuple(TokensRow(**{key: row[key] for key in TokensRow.model_fields}) for row in rows)
    units = ("documents", "tokens", "text_bytes")
    totals: dict[str, Any] = {unit: PerSplit.sum_rows(files, unit) for unit in units}
    tokens, text_bytes = totals["tokens"].total, totals["text_bytes"].total
    return TokensSummary(
        files=files,
        vocab_size=tokenizer.vocab_size,
        special=tokenizer.special,
        **totals,
        unigram_loss=unigram_loss(counts["train"], counts["validation"]),
        headline=f"{tokens / 1e6:.1f} M tokens  {text_bytes / max(tokens, 1):.2f} bytes a token",
        sha256={row.file: row.sha256 for row in files},
    )


def unigram_loss(train: NDArray[np.int64], held_out: NDArray[np.int64]) -> float:
    """Return the mean loss, in nats, of guessing held-out tokens by how often each occurs in the
    training text, given the counts (V,) of both. Each token counts once more, so that none has a
    share of 0; 0.0 without held-out tokens."""
    log_shares = np.log(train + 1) - np.log((train + 1).sum())
    return float(-(held_out * log_shares).sum() / max(1, held_out.sum())) + 0.0
