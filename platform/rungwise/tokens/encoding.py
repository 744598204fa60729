"""Encode one file of the corpus: documents as token ids, with the bounds of their sentences.

Sentences are encoded one by one, to keep their bounds. If a blank is text for the tokenizer, every
sentence but a document's first is encoded with the blank before it: the ids of a document then
equal those of its whole text, and serve models of sentences and of running text.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # type checkers miss functions made at run time
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rungwise.core.storage.folder import Folder
from rungwise.core.tokens import TokenisedText
from rungwise.corpus.document import open_corpus_file
from rungwise.corpus.summary import CorpusFile
from rungwise.tokenizer import Encoded, TextEncoder
from rungwise.tokenizer.memo import int32_values
from rungwise.tokens import mask_units
from rungwise.tokens.config import TokensConfig
from rungwise.tokens.text import document_hash, join_texts

_BATCH_BYTES = 8e6
_MOST_ROWS = 2048


def encode_file(
    corpus: Folder,
    file: CorpusFile,
    tokenizer: Tokenizer,
    encoder: TextEncoder,
    config: TokensConfig,
) -> TokenisedText:
    """Encode the documents of a corpus file in order, without empty sentences and documents.

    `encoder` belongs to `tokenizer`. Raises DataError if the file is corrupt.
    """
    blank = " " if blank_is_text(tokenizer) else ""
    parts = []
    for batch in _batches(corpus, file, config.spans):
        sentences = batch.column("sentences")
        counts = int32_values(sentences.value_lengths()).astype(np.int64)
        opens = np.zeros(int(counts.sum()), dtype=np.bool_)
        opens[(np.cumsum(counts) - counts)[counts > 0]] = True
        texts, spans = sentences.flatten(), _spans(batch) if config.spans else None
        if blank:
            before = pc.if_else(pa.array(opens), "", blank)  # pyright: ignore[reportAttributeAccessIssue]
            texts = pc.binary_join_element_wise(before, texts, "")  # pyright: ignore[reportAttributeAccessIssue]
            spans = spans and _shift(spans, ~opens)
        if config.units:
            encoded = mask_units.encode_units(texts, encoder, tokenizer, config.mask_units, spans)
        else:
            encoded = encoder.encode(texts)
        names = [f"{file.source}\0{name}" for name in batch.column("id").to_pylist()]
        parts.append(_text(names, counts, encoded))
    return join_texts(parts)


def blank_is_text(tokenizer: Tokenizer) -> bool:
    """Whether a blank before a word changes its tokens."""
    alone, after_blank = (tokenizer.encode(text, add_special_tokens=False) for text in ("a", " a"))
    return alone.ids != after_blank.ids


def _batches(corpus: Folder, file: CorpusFile, spans: bool) -> Iterator[pa.RecordBatch]:
    columns = ["id", "sentences", *(["spans"] if spans else [])]
    with open_corpus_file(corpus, file.file) as parquet:
        rows = parquet.metadata.num_rows
        at_once = int(max(1, min(_MOST_ROWS, rows * _BATCH_BYTES / max(file.bytes, 1))))
        yield from parquet.iter_batches(at_once, columns=columns, use_threads=False)


def _spans(batch: pa.RecordBatch) -> pa.ListArray | None:
    """Return the spans of each sentence; documents without any may have no lists."""
    spans, sentences = batch.column("spans"), batch.column("sentences")
    lengths, counts = spans.value_lengths(), sentences.value_lengths()
    if lengths.equals(counts):
        return spans.flatten()
    if not pc.any(pc.greater(lengths, 0)).as_py():  # pyright: ignore[reportAttributeAccessIssue]
        return None
    rows = zip(spans.to_pylist(), counts.to_pylist(), strict=True)
    flat = [sentence for row, count in rows for sentence in row or [[]] * count]
    return pa.array(flat, pa.list_(pa.int32()))


def _shift(spans: pa.ListArray, has_blank: NDArray[np.bool_]) -> pa.ListArray:
    """Shift spans by one character where a blank was put before the sentence."""
    counts = spans.value_lengths().fill_null(0).to_numpy()
    values = spans.flatten().to_numpy() + np.repeat(has_blank, counts).astype(np.int32)
    offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.int32()))


def _text(names: list[str], counts: NDArray[np.int64], encoded: Encoded) -> TokenisedText:
    is_filled = encoded.lengths > 0
    first = np.append(0, np.cumsum(is_filled))[np.append(0, np.cumsum(counts))]
    has_text = np.diff(first) > 0
    hashes = np.array([document_hash(name) for name in names], dtype=np.uint64)
    return TokenisedText(
        ids=encoded.ids,
        starts=np.append(0, np.cumsum(encoded.lengths[is_filled])),
        first_sentence=np.append(first[:-1][has_text], first[-1]),
        documents=hashes[has_text],
        unit_starts=encoded.word_starts,
    )
