"""The paragraph task: classify paragraphs of the corpus by the library that they document.

Labels are the corpus's own (the origin of each document), so the task needs no other data. The name
of the library is replaced in each paragraph, as it would reveal the label. Training and validation
paragraphs come from documents that pretraining read without labels, test paragraphs from held-out
documents that no earlier stage has seen. Splits share neither documents nor texts.
"""

from __future__ import annotations

import re
from collections import Counter

from rungwise.core.errors import DataError
from rungwise.core.randomness import uniform
from rungwise.core.stages.artifact import Artifact
from rungwise.corpus.document import read_documents
from rungwise.corpus.summary import CorpusSummary
from rungwise.tasks.config import ParagraphTaskConfig
from rungwise.tasks.data.files import Task
from rungwise.tasks.kinds.examples import SPLITS, TaskInfo, Text
from rungwise.tokens.text import document_hash

_VALIDATION_DOCUMENTS = 0.4  # share of the training documents
_NEUTRAL = "library"


def load(config: ParagraphTaskConfig, corpus: Artifact) -> Task:
    """Load the task; `where` of an example is the id of its document.

    Raises DataError if fewer labels than asked have enough paragraphs.
    """
    pools = _pools(config, corpus)
    needed: dict[str, int] = {split: getattr(config, f"{split}_per_label") for split in SPLITS}
    enough = [
        label
        for label in sorted(pools)
        if all(len(pools[label][split]) >= number for split, number in needed.items())
    ]
    # Prefer the labels with the most test paragraphs.
    enough.sort(key=lambda label: (-len(pools[label]["test"]), label))
    labels = sorted(enough[: config.num_labels])
    if len(labels) < config.num_labels:
        counts = {label: {split: len(pools[label][split]) for split in SPLITS} for label in pools}
        raise DataError(
            f"data.num_labels is {config.num_labels}, but only {len(labels)} labels of the corpus "
            f"have the paragraphs asked for ({needed}); lower num_labels or the *_per_label "
            f"numbers, raise corpus.held_out_fraction, or add text. Found: {counts}"
        )
    splits = {
        split: [
            Text(document, text, target=label)
            for label in labels
            for text, document in _draw(pools[label][split], number, config.seed)
        ]
        for split, number in needed.items()
    }
    return Task(TaskInfo("classification", tuple(labels), pair=False, metric="accuracy"), splits)


def hide_name(text: str, label: str) -> str:
    """Replace the library's name in `text`, in any case and inside dotted names."""
    return re.sub(rf"(?i)(?<![a-z0-9]){re.escape(label)}(?![a-z0-9])", _NEUTRAL, text)


def _pools(
    config: ParagraphTaskConfig, corpus: Artifact
) -> dict[str, dict[str, list[tuple[str, str]]]]:
    """(text, document) by label and split, without texts of several labels or splits."""
    places_of: dict[str, list[tuple[str, str, str]]] = {}
    for row in CorpusSummary.of(corpus).files:
        for document in read_documents(corpus.folder, row.file):
            split = "test"
            if row.split != "validation":
                draw = float(uniform(config.seed, document_hash(document.id)))
                split = "validation" if draw < _VALIDATION_DOCUMENTS else "train"
            for sentences in document.paragraphs():
                text = hide_name(" ".join(sentences), document.label)
                if config.minimum_words <= len(text.split()) <= config.maximum_words:
                    places_of.setdefault(text, []).append((document.label, split, document.id))
    pools: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for text, places in places_of.items():
        if len({(label, split) for label, split, _ in places}) == 1:
            label, split, document = min(places)
            splits = pools.setdefault(label, {name: [] for name in SPLITS})
            splits[split].append((text, document))
    return pools


def _draw(pool: list[tuple[str, str]], number: int, seed: int) -> list[tuple[str, str]]:
    """Draw `number` of the pool by the hash of the text, independent of the order of the pool.

    Documents take turns, so that a large module does not crowd out the small ones.
    """
    turns: Counter[str] = Counter()
    ranked = []
    pool = sorted(pool, key=lambda item: float(uniform(seed, document_hash(item[0]))))
    for text, document in pool:
        ranked.append((turns[document], text, document))
        turns[document] += 1
    ranked.sort(key=lambda item: item[0])
    return [(text, document) for _, text, document in ranked[:number]]
