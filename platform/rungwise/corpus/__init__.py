"""The corpus: sources and readers, clean-up, segmentation, deduplication and splits."""

from rungwise.corpus.config import CorpusConfig, PydocsSource, identity
from rungwise.corpus.document import Document, read_documents
from rungwise.corpus.files import input_digests

__all__ = [
    "CorpusConfig",
    "Document",
    "PydocsSource",
    "identity",
    "input_digests",
    "read_documents",
]
