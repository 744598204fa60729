"""Corpora for tests: built by the stage, of given sentences in both splits, or with a tokenizer."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.configuration.config import validate
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.stage import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus.building import stage
from rungwise.corpus.building.stage import write_corpus
from rungwise.corpus.config import CorpusConfig, DocumentRules
from rungwise.corpus.document import SCHEMA, RawDocument, text_digest
from rungwise.corpus.summary import SPLITS, CorpusSummary
from rungwise.tokenizer.building import train
from rungwise.tokenizer.config import TrainedConfig
from rungwise.tokenizer.token_text import TokenisedText
from tests.conftest import made_up_sentences
from tests.report_pages import tokenizer_summary
from tests.summaries import corpus_of, finished


def build(
    output: Path, *sources: dict[str, Any], context: Context | None = None, **keys: Any
) -> CorpusSummary:
    """Build a corpus on Ray; its summary as a record holds it."""
    config = validate(CorpusConfig, {"sources": list(sources), **keys})
    summary = stage.build_corpus(config, {}, Folder.at(output), context or Context())
    return CorpusSummary.model_validate_json(summary.model_dump_json())


def corpus_of_sentences(folder: Path, sentences: list[str]) -> Artifact:
    """A corpus whose splits are one document of these sentences each."""
    folder.mkdir(parents=True)
    row = {"id": "d", "label": "l", "digest": text_digest(sentences), "sentences": sentences}
    row["paragraph_starts"] = [0]
    files = []
    for split in SPLITS:
        name = f"{split}-00000.parquet"
        pq.write_table(pa.Table.from_pylist([row], schema=SCHEMA), folder / name)
        files.append({"file": name, "split": split, "characters": sum(map(len, sentences))})
    return corpus_of(folder, files)


def made_up_documents(count: int, sentences: int = 12) -> list[RawDocument]:
    """Documents of made-up English."""
    return [
        RawDocument(f"d{number}", "l", made_up_sentences(number, sentences), segmented=True)
        for number in range(count)
    ]


def text_and_tokenizer(
    root: Path, ranges: list[list[RawDocument]], config: TrainedConfig, **rules: Any
) -> tuple[Artifact, Artifact]:
    """The corpus of these ranges, and a tokenizer trained on them, in folders of `root`."""
    corpus, folder = Folder.at(root / "corpus" / "small-c"), Folder.at(root / "tokenizer/small-t")
    keys = {"minimum_characters": 1, "held_out_fraction": 0.3} | rules
    summary = write_corpus(ranges, validate(DocumentRules, keys), "made up", corpus)
    documents = [document for documents in ranges for document in documents]
    tokenizer = train(config, [line for document in documents for line in document.paragraphs])
    with folder.staged("tokenizer.json") as path:
        tokenizer.save(str(path))
    pieces = tokenizer_summary(tokenizer, config.kind)
    return finished("corpus", corpus, summary, "c"), finished("tokenizer", folder, pieces, "t")


def text_of(lengths: list[list[int]], units: bool = False) -> TokenisedText:
    """Documents with sentences of these lengths; all tokens differ: 10, 11, ..."""
    flat = [length for document in lengths for length in document]
    return TokenisedText(
        ids=np.arange(10, 10 + sum(flat), dtype=np.uint16),
        starts=np.cumsum([0, *flat]),
        first_sentence=np.cumsum([0, *map(len, lengths)]),
        documents=np.arange(10, 10 + len(lengths), dtype=np.uint64),
        unit_starts=np.arange(sum(flat)) % 3 == 0 if units else None,
    )
