"""Choose a task's examples: split a file, draw a label budget, and count overlaps of splits.

Every choice hashes the text and the seed, so it depends neither on the order of the file nor on
other examples, and a smaller budget is a subset of a larger one.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rungwise.core.randomness import uniform
from rungwise.tasks.config import Draw
from rungwise.tasks.kinds.examples import Example, Text, joined_parts
from rungwise.tokens.text import document_hash


def split_examples(
    examples: Sequence[Example], fractions: dict[str, float], seed: int
) -> dict[str, list[Example]]:
    """Split `examples` by the given fractions; the rest is "train".

    Examples with the same first text, such as questions about one context, stay together, so the
    fractions hold only approximately.
    """
    bounds = np.cumsum(list(fractions.values()))
    splits = [*fractions, "train"]
    places = np.searchsorted(bounds, _draws([e.group for e in examples], seed), side="right")
    by_split: dict[str, list[Example]] = {split: [] for split in splits}
    for example, place in zip(examples, places, strict=True):
        by_split[splits[int(place)]].append(example)
    return by_split


def draw_examples(
    examples: Sequence[Example], number: int, seed: int, draw: Draw = "natural"
) -> list[Example]:
    """Draw `number` of the examples, or all if there are fewer, in their original order.

    `balanced` draws from the labels in turn, so that all have equal numbers until one runs out;
    `stratified` gives each label its share of the whole, rounded.
    """
    draws = _draws([joined_parts(example) for example in examples], seed)
    order = np.argsort(draws, kind="stable")
    if draw != "natural":
        labels = [str(example.target) for example in examples if isinstance(example, Text)]
        assert len(labels) == len(examples), "only classes have a label an example"
        counts, turns = Counter(labels), Counter[str]()
        ranks = []
        for label in (labels[index] for index in order):
            turn = turns[label]
            ranks.append(turn if draw == "balanced" else (turn + 0.5) / counts[label])
            turns[label] += 1
        order = order[np.argsort(ranks, kind="stable")]
    return [examples[index] for index in np.sort(order[:number])]


def find_overlap(train: Sequence[Example], other: Sequence[Example]) -> NDArray[np.bool_]:
    """Mark the examples of `other` whose input is also in `train`."""
    texts = {joined_parts(example) for example in train}
    return np.array([joined_parts(example) in texts for example in other], dtype=bool)


def _draws(texts: Sequence[str], seed: int) -> NDArray[np.float64]:
    hashes = [document_hash(text) for text in texts]
    return uniform(seed, np.array(hashes, dtype=np.uint64))
