"""The paragraph task: classify paragraphs of the corpus by the library that they document.

Labels are the corpus's own (the origin of each document), so the task needs no other data. The name
of the library is replaced in each paragraph, as it would reveal the label. Training and validation
paragraphs come from documents that pretraining read without labels, test paragraphs from held-out
documents that no earlier stage has seen. Splits share neither documents nor texts.
"""

import re
from dataclasses import replace

from rungwise.core.errors import DataError
from rungwise.core.randomness import uniform
from rungwise.core.stages.artifact import Artifact
from rungwise.tasks.config import ParagraphTaskConfig
from rungwise.tasks.data.corpus_text import Paragraph, in_turns, read_paragraphs, text_hash
from rungwise.tasks.data.files import Task
from rungwise.tasks.kinds.examples import SPLITS, TaskInfo, Text

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
            Text(each.document, each.text, target=label)
            for label in labels
            for each in in_turns(pools[label][split], lambda each: each, config.seed)[:number]
        ]
        for split, number in needed.items()
    }
    return Task(TaskInfo("classification", tuple(labels), pair=False, metric="accuracy"), splits)


def hide_name(text: str, label: str) -> str:
    """Replace the library's name in `text`, in any case and inside dotted names."""
    return re.sub(rf"(?i)(?<![a-z0-9]){re.escape(label)}(?![a-z0-9])", _NEUTRAL, text)


def _pools(config: ParagraphTaskConfig, corpus: Artifact) -> dict[str, dict[str, list[Paragraph]]]:
    """The paragraphs by label and split, without texts of several labels or splits."""
    places: dict[str, list[tuple[str, str, Paragraph]]] = {}
    for paragraph in read_paragraphs(corpus):
        split = "test"
        if not paragraph.held_out:
            draw = uniform(config.seed, text_hash(paragraph.document))
            split = "validation" if draw < _VALIDATION_DOCUMENTS else "train"
        text = hide_name(paragraph.text, paragraph.label)
        if config.minimum_words <= len(text.split()) <= config.maximum_words:
            hidden = replace(paragraph, sentences=(text,))
            places.setdefault(text, []).append((paragraph.label, split, hidden))
    pools: dict[str, dict[str, list[Paragraph]]] = {}
    for same_text in places.values():
        if len({(label, split) for label, split, _ in same_text}) == 1:
            label, split, paragraph = min(same_text, key=lambda place: place[2].document)
            pools.setdefault(label, {name: [] for name in SPLITS})[split].append(paragraph)
    return pools
