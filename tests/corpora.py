"""Corpora for tests: built by the stage, or of given sentences in both splits."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rungwise.core.configuration.config import validate
from rungwise.core.stages.artifact import Artifact
from rungwise.core.stages.context import Context
from rungwise.core.storage.folder import Folder
from rungwise.corpus import CorpusConfig
from rungwise.corpus.building import stage
from rungwise.corpus.document import SCHEMA, text_digest
from rungwise.corpus.summary import SPLITS, CorpusSummary
from tests.summaries import corpus_of


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
    row |= {"paragraph_starts": [0], "spans": []}
    files = []
    for split in SPLITS:
        name = f"{split}-00000.parquet"
        pq.write_table(pa.Table.from_pylist([row], schema=SCHEMA), folder / name)
        files.append({"file": name, "split": split, "characters": sum(map(len, sentences))})
    return corpus_of(folder, files)
