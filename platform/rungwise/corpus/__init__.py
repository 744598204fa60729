"""The corpus: sources and readers, clean-up, segmentation, deduplication and splits."""

from rungwise.corpus.document import Document, read_documents
from rungwise.corpus.sources import (
    CorpusConfig,
    JsonLinesSource,
    ParquetSource,
    PydocsSource,
    TextSource,
    WikiTextSource,
    identity,
    outside,
)

__all__ = [
    "CorpusConfig",
    "Document",
    "JsonLinesSource",
    "ParquetSource",
    "PydocsSource",
    "TextSource",
    "WikiTextSource",
    "identity",
    "outside",
    "read_documents",
]
