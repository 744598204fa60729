"""Tokens stage: encode the corpus once, a file of ids per file of text. Sentences are encoded one
by one, to keep their bounds, with the blank before them if a blank is text for the tokenizer."""

import base64
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.cluster.tasks import FileRow, build_files
from rungwise.core.arrays import Ints
from rungwise.core.configuration.canonical import fingerprint
from rungwise.core.randomness import uniform
from rungwise.core.stages.artifact import Artifact, PerSplit, SharedResults, note_used
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder, file_digest
from rungwise.core.tokens import TokenisedText
from rungwise.corpus.document import open_corpus_file
from rungwise.corpus.summary import CorpusFile, CorpusSummary
from rungwise.tokenizer import TokenizerSummary, load_tokenizer, mask_units
from rungwise.tokenizer import encoder as encoders
from rungwise.tokenizer.token_stage import (
    TOKENS,
    TokensConfig,
    TokensRow,
    TokensSummary,
    tokens_identity,
)
from rungwise.tokenizer.token_text import document_hash, join_texts, write_tokens

_SHARE = 0x5A7E  # separates the draw of documents from other random numbers
_BATCH_BYTES = 8e6
_MOST_ROWS = 2048
_RESULT = "tokens.arrow"


def encode_file(
    corpus: Folder,
    file: CorpusFile,
    tokenizer: Tokenizer,
    encoder: encoders.TextEncoder,
    config: TokensConfig,
) -> TokenisedText:
    """Encode the documents of a corpus file in order, without empty sentences and documents; of a
    training file, the share that the config asks for. `encoder` belongs to `tokenizer`. Raises
    DataError if the file is corrupt."""
    blank = " " if blank_is_text(tokenizer) else ""
    parts = []
    draws = file.split == "train" and (config.skip > 0 or config.share < 1)
    for batch in _batches(corpus, file):
        if draws:
            batch = draw_documents(batch, file.source, config.skip, config.share)
        sentences = batch.column("sentences")
        counts = encoders.int32_values(sentences.value_lengths()).astype(np.int64)
        opens = np.zeros(int(counts.sum()), dtype=np.bool_)
        opens[(np.cumsum(counts) - counts)[counts > 0]] = True
        texts = sentences.flatten()
        if blank:
            before = pc.if_else(pa.array(opens), "", blank)  # pyright: ignore[reportAttributeAccessIssue]
            texts = pc.binary_join_element_wise(before, texts, "")  # pyright: ignore[reportAttributeAccessIssue]
        if config.units:
            encoded = mask_units.encode_units(texts, encoder, tokenizer, config.mask_units)
        else:
            encoded = encoder.encode(texts)
        parts.append(_text(_hash_documents(batch, file.source), counts, encoded))
    return join_texts(parts)


def blank_is_text(tokenizer: Tokenizer) -> bool:
    """Whether a blank before a word changes its tokens."""
    alone, after_blank = (tokenizer.encode(text, add_special_tokens=False) for text in ("a", " a"))
    return alone.ids != after_blank.ids


def _batches(corpus: Folder, file: CorpusFile) -> Iterator[pa.RecordBatch]:
    with open_corpus_file(corpus, file.file) as parquet:
        rows = parquet.metadata.num_rows
        at_once = int(max(1, min(_MOST_ROWS, rows * _BATCH_BYTES / max(file.bytes, 1))))
        yield from parquet.iter_batches(at_once, columns=["id", "sentences"], use_threads=False)


def draw_documents(batch: pa.RecordBatch, source: str, skip: float, share: float) -> pa.RecordBatch:
    """Return the documents between two shares, drawn by their ids: a smaller share is a part of a
    larger one, whatever share of its documents the corpus has drawn."""
    places = uniform(_SHARE, _hash_documents(batch, source))
    return batch.filter(pa.array((places >= skip) & (places < share)))


def _hash_documents(batch: pa.RecordBatch, source: str) -> NDArray[np.uint64]:
    names = batch.column("id").to_pylist()
    return np.array([document_hash(f"{source}\0{name}") for name in names], dtype=np.uint64)


def _text(hashes: NDArray[np.uint64], counts: Ints, encoded: encoders.Encoded) -> TokenisedText:
    is_filled = encoded.lengths > 0
    first = np.append(0, np.cumsum(is_filled))[np.append(0, np.cumsum(counts))]
    has_text = np.diff(first) > 0
    return TokenisedText(
        ids=encoded.ids,
        starts=np.append(0, np.cumsum(encoded.lengths[is_filled])),
        first_sentence=np.append(first[:-1][has_text], first[-1]),
        documents=hashes[has_text],
        unit_starts=encoded.word_starts,
    )


@dataclass(frozen=True)
class FileOrder:
    """An order to encode one corpus file; `result` is the key of what comes of it."""

    source: CorpusFile
    result: str

    @property
    def file(self) -> str:
        return self.source.file.removesuffix(".parquet") + ".arrow"

    @property
    def text_bytes(self) -> int:
        return self.source.bytes


@dataclass(frozen=True)
class EncodeTask:
    """Encodes files of a corpus, unless that was done for another one; holds what they share."""

    config: TokensConfig
    corpus: Folder
    tokenizer: Folder
    output: Folder
    shared: SharedResults
    encoder: encoders.EncoderChoice

    def __call__(self, order: FileOrder) -> FileRow:
        """Encode one file; return its row of the manifest."""
        row = self.shared.read(order.result) or self._encode(order.source, order.result)
        self.output.link_file(self.shared[order.result], _RESULT, order.file)
        return {"file": order.file, "split": order.source.split, **row}

    def _encode(self, source: CorpusFile, result: str) -> FileRow:
        encoder = encoders.open_encoder(self.tokenizer, self.encoder)
        tokenizer = _load_tokenizer(self.tokenizer)
        text = encode_file(self.corpus, source, tokenizer, encoder, self.config)
        with self.shared[result].staged(_RESULT) as path:
            write_tokens(text, path)
            sha256 = file_digest(path)
        counts = np.stack(np.unique(text.ids, return_counts=True)).astype("<u4")
        row = {
            "source": source.source,
            "sha256": sha256,
            "documents": len(text.documents),
            "sentences": len(text.starts) - 1,
            "tokens": len(text.ids),
            "text_bytes": round(source.bytes * len(text.documents) / source.documents)
            if self.config.share < 1
            else source.bytes,
            "token_counts": base64.b64encode(counts.tobytes()).decode(),
        }
        self.shared.write(result, row, {_RESULT: sha256})
        return row


TokenCounts = dict[str, Ints]  # (V,) by split
_load_tokenizer = functools.lru_cache(maxsize=2)(load_tokenizer)  # one serves many files


def encode_corpus(
    config: TokensConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> TokensSummary:
    """Encode every file of the corpus. Raises DataError if a file is corrupt."""
    corpus, tokenizer = CorpusSummary.of(inputs["corpus"]), TokenizerSummary.of(inputs["tokenizer"])
    folders = inputs["corpus"].folder, inputs["tokenizer"].folder
    shared = SharedResults.beside(output)
    orders = list(_list_orders(config, corpus, inputs))
    # What was encoded for another corpus proves nothing new.
    unread = [each.source for each in orders if shared.read(each.result) is None]
    training = [file for file in unread if file.split == "train"]
    proof = fingerprint([_digests(inputs["tokenizer"]), encoders.list_versions()], 32)
    is_proved = shared.read(proof) is not None
    num_bytes = encoders.REPEATED_PROOF_BYTES if is_proved else encoders.PROOF_BYTES
    sample = encoders.sample_corpus(folders[0], training, num_bytes)
    own = load_tokenizer(folders[1])
    choice = encoders.choose_encoder(own, sample, with_hard_texts=not is_proved)
    if choice.notice is not None:
        context.report.note(choice.notice)
    elif not is_proved:
        shared.write(proof, {}, {})
    task = EncodeTask(config, *folders, output, shared, choice)
    counts = count_no_tokens(tokenizer.vocab_size)
    rows = build_files(orders, task, context.report, lambda row, _: add_counts(row, counts))
    note_used(output, {key: key for key in (proof, *(order.result for order in orders))})
    return summarise_files(rows, tokenizer, counts)


def _digests(artifact: Artifact) -> dict[str, str]:
    return {name: file["sha256"] for name, file in artifact.record["files"].items()}


def _list_orders(
    config: TokensConfig, corpus: CorpusSummary, inputs: dict[str, Artifact]
) -> Iterator[FileOrder]:
    files = _digests(inputs["corpus"])
    settings = {
        "version": TOKENS.version,
        "config": tokens_identity(config),
        "tokenizer": _digests(inputs["tokenizer"]),
    }
    for row in corpus.files:
        if row.documents:
            facts = settings | {"source": row.source, "text": files[row.file]}
            yield FileOrder(row, fingerprint(facts, 32))


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


def unigram_loss(train: Ints, held_out: Ints) -> float:
    """Return the mean loss, in nats, of guessing held-out tokens by how often each occurs in the
    training text, given the counts (V,) of both. Each token counts once more, so that none has a
    share of 0; 0.0 without held-out tokens."""
    log_shares = np.log(train + 1) - np.log((train + 1).sum())
    return float(-(held_out * log_shares).sum() / max(1, held_out.sum())) + 0.0
