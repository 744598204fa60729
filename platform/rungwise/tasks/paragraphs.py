"""Task stage: which library does a paragraph document? Sequence classification from the corpus.

Labels are the corpus's own (its documents say where they are from), so the task needs no data
beside it. A paragraph that names its library would be no task, so the name is replaced. Training
and validation paragraphs come from documents the model was pretrained on, without labels, test
paragraphs from held-out documents that no earlier stage has seen; no document gives paragraphs to
two splits, and no text stands in two of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from rungwise.artifact import Artifact
from rungwise.config import Config
from rungwise.context import Context
from rungwise.corpus.document import Document, read_documents
from rungwise.errors import DataError
from rungwise.instances.randomness import uniform
from rungwise.instances.shards import document_hash
from rungwise.storage import Folder

SPLITS = ("train", "validation", "test")
_VALIDATION_DOCUMENTS = 0.4  # of the training documents
_NEUTRAL = "library"


class TaskConfig(Config):
    """How many labels and paragraphs. Every label gets the same number in each split."""

    kind: str = Field(default="paragraph_label", pattern="^paragraph_label$")
    num_labels: int = Field(default=10, ge=2)
    train_per_label: int = Field(default=20, ge=1)
    validation_per_label: int = Field(default=30, ge=1)
    test_per_label: int = Field(default=60, ge=1)
    minimum_words: int = Field(default=12, ge=1)
    maximum_words: int = Field(default=120, ge=1)
    seed: int = Field(default=0, ge=0)


@dataclass(frozen=True)
class Example:
    """One labelled paragraph."""

    text: str
    label: int
    document: str


def run(
    config: TaskConfig, inputs: dict[str, Artifact], output: Folder, context: Context
) -> dict[str, Any]:
    """Write `train.parquet`, `validation.parquet` and `test.parquet`.

    Raises DataError if fewer labels than asked have enough paragraphs.
    """
    corpus = inputs["corpus"]
    pools = _pools(config, corpus)
    wanted = dict(
        zip(
            SPLITS,
            (config.train_per_label, config.validation_per_label, config.test_per_label),
            strict=True,
        )
    )
    enough = [
        label
        for label in sorted(pools)
        if all(len(pools[label][split]) >= number for split, number in wanted.items())
    ]
    # The labels with most to say: the least frequent split decides.
    enough.sort(key=lambda label: (-len(pools[label]["test"]), label))
    labels = sorted(enough[: config.num_labels])
    if len(labels) < config.num_labels:
        found = {label: {split: len(pools[label][split]) for split in SPLITS} for label in pools}
        raise DataError(
            f"task.num_labels is {config.num_labels}, but only {len(labels)} labels of the corpus "
            f"have the paragraphs asked for ({wanted}); lower num_labels or the *_per_label "
            f"numbers, raise corpus.held_out_fraction, or add text. Found: {found}"
        )
    counts = {}
    for split, number in wanted.items():
        examples = [
            Example(text, labels.index(label), document)
            for label in labels
            for text, document in _drawn(pools[label][split], number, config.seed)
        ]
        _write(examples, output, f"{split}.parquet")
        counts[split] = len(examples)
    return {
        "labels": labels,
        "examples": counts,
        "majority_accuracy": 1 / len(labels),
        "headline": f"{len(labels)} labels  {counts['train']} to train on  "
        f"{counts['validation']} to validate  {counts['test']} to test",
    }


def read(task: Artifact, split: str) -> list[Example]:
    """The examples of a split, in the order they were written."""
    return [
        Example(**row) for row in pq.read_table(task.folder.local(f"{split}.parquet")).to_pylist()
    ]


def hide_name(text: str, label: str) -> str:
    """`text` without the name of its library, in any case and as part of a dotted name."""
    return re.sub(rf"(?i)(?<![a-z0-9]){re.escape(label)}(?![a-z0-9])", _NEUTRAL, text)


def _pools(config: TaskConfig, corpus: Artifact) -> dict[str, dict[str, list[tuple[str, str]]]]:
    """(text, document) by label and split; a text that two labels or splits have is left out."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for row in corpus.summary["files"]:
        for document in read_documents(corpus.folder, row["file"]):
            split = _split_of(document, row["split"], config.seed)
            for text in _paragraphs(document, config):
                found.setdefault(text, []).append((document.label, split, document.id))
    pools: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for text, places in found.items():
        if len({(label, split) for label, split, _ in places}) == 1:
            label, split, document = min(places)
            splits = pools.setdefault(label, {name: [] for name in SPLITS})
            splits[split].append((text, document))
    return pools


def _split_of(document: Document, corpus_split: str, seed: int) -> str:
    if corpus_split == "validation":
        return "test"
    draw = float(uniform(seed, document_hash(document.id)))
    return "validation" if draw < _VALIDATION_DOCUMENTS else "train"


def _paragraphs(document: Document, config: TaskConfig) -> Iterator[str]:
    for sentences in document.paragraphs():
        text = hide_name(" ".join(sentences), document.label)
        if config.minimum_words <= len(text.split()) <= config.maximum_words:
            yield text


def _drawn(pool: list[tuple[str, str]], number: int, seed: int) -> list[tuple[str, str]]:
    """`number` of the pool by the hash of the text, so that they do not depend on its order.

    Documents take turns: a large module does not crowd out the small ones.
    """
    taken: Counter[str] = Counter()
    ranked = []
    for text, document in sorted(
        pool, key=lambda item: float(uniform(seed, document_hash(item[0])))
    ):
        ranked.append((taken[document], text, document))
        taken[document] += 1
    ranked.sort(key=lambda item: item[0])
    return [(text, document) for _, text, document in ranked[:number]]


def _write(examples: list[Example], output: Folder, name: str) -> None:
    table = pa.table(
        {
            "text": [example.text for example in examples],
            "label": pa.array([example.label for example in examples], pa.int64()),
            "document": [example.document for example in examples],
        }
    )
    with output.staged(name) as path:
        pq.write_table(table, path)
